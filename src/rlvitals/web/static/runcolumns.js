/** Columns of the list of runs: their titles, values and drawing, and which are shown. */

import {el} from "./dom.js";
import {now as marks} from "./marks.js";
import {ago, duration, number} from "./numbers.js";
import {badge, link, VERDICTS} from "./pieces.js";
import * as state from "./state.js";

/** @import {TableRun} from "../contract.d.ts" */
/** @import {Children} from "./dom.js" */
/** @typedef {string | number | boolean | null} Value */
/** @typedef {{run: TableRun, cells: Record<string, Value>}} Line A run with its cells by column. */

/**
 * @typedef {Object} Column
 * @property {string} title
 * @property {(line: Line) => Value} value For sorting, filtering and groups.
 * @property {(line: Line) => Children} [draw]
 * @property {boolean} [isWord] Whether it is never averaged, even if it is a number.
 */

const REMEMBERED = "rlvitals.columns";
const DEFAULT = ["verdict", "tags", "algorithm", "status", "step", "duration", "updated"];
export const MOST = 40;

/** @type {Record<string, Column>} columns that every run has; the others are settings and metrics */
export const OWN = {
  verdict: {
    title: "Verdict",
    isWord: true,
    value: ({run}) => VERDICTS.indexOf(run.verdict),
    draw: ({run}) => badge(run.verdict),
  },
  name: {title: "Name", value: ({run}) => marksOf(run).name ?? run.name},
  tags: {
    title: "Tags",
    value: ({run}) => (marksOf(run).tags ?? []).join(", ") || null,
    draw: ({run}) => (marksOf(run).tags ?? []).map((tag) => el("span", {class: "tag"}, tag)),
  },
  note: {
    title: "Note",
    value: ({run}) => marksOf(run).note ?? null,
    draw: ({run}) => el("span", {class: "clip note"}, marksOf(run).note ?? ""),
  },
  algorithm: {title: "Algorithm", value: ({run}) => run.algorithm && [run.algorithm, run.framework].filter(Boolean).join(" · ")},
  status: {
    title: "Status",
    value: ({run}) => run.status,
    draw: ({run}) => [
      run.status,
      run.status_note ? el("div", {class: "faint small clip", title: run.status_note}, run.status_note) : "",
    ],
  },
  step: {
    title: "Step",
    value: ({run}) => run.last_step,
    draw: ({run}) =>
      run.total_steps ? `${number(run.last_step)} of ${number(run.total_steps)}` : number(run.last_step),
  },
  duration: {title: "Duration", value: ({run}) => run.seconds, draw: ({run}) => duration(run.seconds)},
  updated: {title: "Updated", isWord: true, value: ({run}) => run.updated, draw: ({run}) => ago(run.updated)},
  started: {title: "Started", isWord: true, value: ({run}) => run.started, draw: ({run}) => ago(run.started)},
  host: {title: "Host", value: ({run}) => run.host},
  rows: {title: "Rows", value: ({run}) => run.rows},
  metrics: {title: "Metrics", value: ({run}) => run.metrics},
};

/** @param {TableRun} run */
const marksOf = (run) => marks().runs[run.run] ?? {};

/** @type {Column} the first column, which is always shown */
export const RUN = {
  title: "Run",
  value: ({run}) => marksOf(run).name ?? run.run,
  draw: ({run}) => [
    el("span", {class: "narrow"}, badge(run.verdict, true), " "), // on a phone
    link({}, {run: run.run, filter: null}, "vitals", marksOf(run).name ?? (run.run === "." ? run.name : run.run)),
    el(
      "div",
      {class: "faint small clip", title: run.reason},
      marksOf(run).name ? `${run.run} · ${run.reason}` : run.reason,
    ),
  ],
};

/** @param {string} key @returns {Column} */
export function columnOf(key) {
  if (key === "run") return RUN;
  return OWN[key] ?? {title: key, value: ({cells}) => cells[key] ?? null, isWord: /(^|\.)\w*seed$/.test(key)};
}

/** @param {Column} column @param {Line} line @returns {Children} */
export function drawn(column, line) {
  if (column.draw) return column.draw(line);
  const value = column.value(line);
  return typeof value === "boolean" ? String(value) : number(value);
}

/** @returns {string[]} those in the address, otherwise those chosen last, otherwise the default ones */
export function chosenColumns() {
  const named = state.read().query.getAll("column");
  if (named.length) return named.slice(0, MOST);
  try {
    const kept = JSON.parse(localStorage.getItem(REMEMBERED) ?? "null");
    if (Array.isArray(kept) && kept.every((key) => typeof key === "string")) return kept.slice(0, MOST);
  } catch {
    // Without local storage, the default ones are shown.
  }
  const {editable, runs} = marks();
  return DEFAULT.filter((key) => key !== "tags" || editable || Object.values(runs).some((one) => one.tags?.length));
}

/** @param {string[]} keys */
export function chooseColumns(keys) {
  try {
    localStorage.setItem(REMEMBERED, JSON.stringify(keys));
  } catch {
    // Without local storage, only the address holds them.
  }
  state.go({column: keys}, {replace: true});
}

/**
 * A run's value of a name in the filter.
 * @param {Line} line
 * @param {string} name
 * @returns {Value | string[]}
 */
export function filterValue({run, cells}, name) {
  const own = marksOf(run);
  switch (name) {
    case "tag":
    case "tags":
      return own.tags ?? [];
    case "run":
      return run.run;
    case "verdict":
      return run.verdict;
    case "algorithm":
      return run.algorithm;
    case "framework":
      return run.framework;
    case "archived":
      return own.archived ?? false;
    case "deleted":
      return own.deleted ?? false;
    default:
      return name in OWN ? OWN[name].value({run, cells}) : (cells[name] ?? null);
  }
}

/** @param {string} name @returns {boolean} whether it must be requested from the server */
export function needsRequest(name) {
  return !(name in OWN) && !["tag", "run", "framework", "archived", "deleted"].includes(name);
}

/**
 * Runs sorted by a column. Runs without a value are last in both directions.
 * @param {Line[]} lines
 * @param {string} key
 * @param {boolean} isDown
 */
export function sorted(lines, key, isDown) {
  const {value} = columnOf(key);
  const sign = isDown ? -1 : 1;
  return [...lines].sort((one, other) => {
    const [left, right] = [value(one), value(other)];
    if (left === null || right === null) return left === right ? newest(one, other) : left === null ? 1 : -1;
    if (typeof left === "number" && typeof right === "number") return sign * (left - right) || newest(one, other);
    return sign * String(left).localeCompare(String(right), "en", {numeric: true}) || newest(one, other);
  });
}

/** Running runs first, sorted by their start so that their order is stable. @param {Line} one @param {Line} other */
export function newest({run: one}, {run: other}) {
  const rank = (/** @type {TableRun} */ run) => (run.status === "running" ? Infinity : (run.updated ?? 0));
  if (rank(one) !== rank(other)) return rank(other) - rank(one);
  return (other.started ?? 0) - (one.started ?? 0) || one.run.localeCompare(other.run);
}
