/** Fetches the lines of the metrics in view, several at once, and keeps what it has for as long as it is true. */

import {ask, Refused, wasCalledOff} from "./api.js";

/** @import {DrawnLine, FindingMark} from "../contract.d.ts" */

/**
 * @typedef {Object} Series What the server says of one metric.
 * @property {DrawnLine[]} lines
 * @property {readonly (number | null)[] | null} band
 * @property {FindingMark[]} findings
 * @property {string} [problem] Why there are no lines.
 */

const AT_ONCE = 12;
const KEPT = 400;

export class SeriesStore {
  /**
   * @param {string} run
   * @param {AbortSignal} signal
   * @param {(name: string, series: Series) => void} arrived
   * @param {(sentence: string) => void} failed
   */
  constructor(run, signal, arrived, failed) {
    this.run = run;
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
   * Another axis or stretch: what is there is of no use any more.
   * @param {import("../page.d.ts").Changes} view
   */
  setView(view) {
    this.view = view;
    this.kept.clear();
    this.stale.clear();
    this.underWay.clear();
  }

  /** New rows have come: what is there stays until newer has come. */
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
      const answer = await ask("series", {run: this.run, name: names, ...view}, this.signal);
      if (view !== this.view) return;
      for (const name of names) {
        this.keep(name, {
          lines: answer.lines.filter((line) => line.name === name),
          band: answer.bands[name] ?? null,
          findings: answer.findings.filter((found) => found.metrics.includes(name)),
        });
      }
    } catch (error) {
      if (!wasCalledOff(error) && view === this.view) await this.without(names, error);
    } finally {
      if (view === this.view) names.forEach((name) => this.underWay.delete(name));
    }
  }

  /**
   * One name that cannot be answered must not take the others with it: each is asked for alone and says why not.
   * @param {string[]} names
   * @param {unknown} error
   */
  async without(names, error) {
    const sentence = error instanceof Error ? error.message : String(error);
    if (!(error instanceof Refused) || error.status === 0) this.failed(sentence);
    else if (names.length > 1) await Promise.all(names.map((name) => this.fetch([name])));
    else this.keep(names[0], {lines: [], band: null, findings: [], problem: sentence});
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
