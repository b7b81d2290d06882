/** Fetches the lines of the visible metrics, several in one request, and caches them while they are valid. */

import {ask, Refused, wasAborted} from "./api.js";

/** @import {FindingMark, Ghost, OverlaidLine, Refusal, RunBand, RunGroup} from "../contract.d.ts" */

/** @typedef {OverlaidLine & {ghosts: Ghost[]}} RunLine A line of one run. */
/**
 * @typedef {Object} Series The server's answer about one metric.
 * @property {RunLine[]} lines
 * @property {RunBand[]} bands Bands of groups of runs.
 * @property {Refusal[]} refused Runs that are not drawn, and why.
 * @property {readonly (number | null)[] | null} band
 * @property {FindingMark[]} findings
 * @property {string} [problem] Why there are no lines.
 */
/** @typedef {{groups: RunGroup[], settings: string[]}} Grouping The groups of overlaid runs, and settings to group by. */

const MANY_RUNS = 6;
const POINTS = {few: 300, many: 200}; // points per line of an overlay; a panel is hardly wider in pixels
const AT_ONCE = 12;
const KEPT = 400;

export class SeriesStore {
  /**
   * @param {string[]} runs the first is the current run
   * @param {AbortSignal} signal
   * @param {(name: string, series: Series) => void} arrived
   * @param {(sentence: string) => void} failed
   * @param {(grouping: Grouping) => void} grouped
   */
  constructor(runs, signal, arrived, failed, grouped) {
    this.runs = runs;
    this.by = "";
    this.grouped = grouped;
    this.signal = signal;
    this.arrived = arrived;
    this.failed = failed;
    /** @type {Map<string, Series>} */
    this.kept = new Map();
    /** @type {Set<string>} */
    this.stale = new Set();
    /** @type {Set<string>} */
    this.underWay = new Set();
    /** @type {import("../page.d.ts").Changes} */
    this.view = {};
  }

  /**
   * Sets the axis, range and runs, and drops the lines of the previous ones.
   * @param {import("../page.d.ts").Changes} view
   * @param {string[]} runs
   * @param {string} by
   */
  setView(view, runs, by) {
    this.view = view;
    this.runs = runs;
    this.by = by;
    this.kept.clear();
    this.stale.clear();
    this.underWay.clear();
  }

  /** Rows were added. The cached lines are kept until newer ones arrive. */
  grow() {
    for (const name of this.kept.keys()) this.stale.add(name);
  }

  /** @param {string[]} names */
  want(names) {
    const missing = names.filter((name) => (!this.kept.has(name) || this.stale.has(name)) && !this.underWay.has(name));
    for (let at = 0; at < missing.length; at += AT_ONCE) this.fetch(missing.slice(at, at + AT_ONCE));
  }

  /** @param {string[]} names */
  async fetch(names) {
    const {view} = this;
    names.forEach((name) => this.underWay.add(name));
    try {
      const found = await (this.runs.length > 1 ? this.ofAll(names) : this.ofOne(names));
      if (view !== this.view) return;
      found.forEach((series, place) => this.keep(names[place], series));
    } catch (error) {
      if (!wasAborted(error) && view === this.view) await this.without(names, error);
    } finally {
      if (view === this.view) names.forEach((name) => this.underWay.delete(name));
    }
  }

  /** @param {string[]} names @returns {Promise<Series[]>} the series of the current run */
  async ofOne(names) {
    const [run] = this.runs;
    const answer = await ask("series", {run, name: names, ...this.view}, this.signal);
    return names.map((name) => ({
      lines: answer.lines.filter((line) => line.name === name).map((line) => ({...line, run, caution: ""})),
      bands: [],
      refused: [],
      band: answer.bands[name] ?? null,
      findings: answer.findings.filter((found) => found.metrics.includes(name)),
    }));
  }

  /** @param {string[]} names @returns {Promise<Series[]>} the series of all runs, from one request */
  async ofAll(names) {
    const {view} = this;
    const question = {run: this.runs, by: this.by, name: names, points: this.runs.length > MANY_RUNS ? POINTS.many : POINTS.few, ...view};
    const {overlays, ...grouping} = await ask("overlays", question, this.signal);
    if (view === this.view) this.grouped(grouping);
    return overlays.map(({lines, bands, refused, missing, typical}) => ({
      lines: lines.map((line) => ({...line, ghosts: []})),
      bands,
      refused: [...refused, ...missing.map((run) => ({run, reason: "does not log it"}))],
      band: typical,
      findings: [],
    }));
  }

  /**
   * One refused name must not hide the others: each is requested alone, and a refused one shows its reason.
   * @param {string[]} names
   * @param {unknown} error
   */
  async without(names, error) {
    const sentence = error instanceof Error ? error.message : String(error);
    if (!(error instanceof Refused) || error.status === 0) this.failed(sentence);
    else if (names.length > 1) await Promise.all(names.map((name) => this.fetch([name])));
    else this.keep(names[0], {lines: [], bands: [], refused: [], band: null, findings: [], problem: sentence});
  }

  /**
   * @param {string} name
   * @param {Series} series
   */
  keep(name, series) {
    this.kept.delete(name);
    this.kept.set(name, series);
    this.stale.delete(name);
    if (this.kept.size > KEPT) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    this.arrived(name, series);
  }
}
