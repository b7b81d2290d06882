/** Groups runs by a setting, a sweep or their seeds, and shows mean, deviation and common values of each group. */

import {el} from "./dom.js";
import {columnOf} from "./runcolumns.js";
import {counted, duration, number} from "./numbers.js";
import {badge, VERDICTS} from "./pieces.js";

/** @import {Line, Value} from "./runcolumns.js" */
/** @typedef {{name: string, lines: Line[]}} Group */

/**
 * @param {Line[]} lines the runs in their order
 * @param {string} key
 * @returns {Group[]} in the order of their first runs; the group without a value is last
 */
export function grouped(lines, key) {
  const {value} = columnOf(key);
  /** @type {Map<string, Group>} */
  const found = new Map();
  for (const line of lines) {
    const own = value(line);
    const name = own === null ? "" : typeof own === "number" ? number(own) : String(own);
    const known = found.get(name);
    if (known) known.lines.push(line);
    else found.set(name, {name, lines: [line]});
  }
  const all = [...found.values()];
  return [...all.filter((group) => group.name), ...all.filter((group) => !group.name)];
}

/**
 * The mean and the standard deviation (with n - 1) of the numbers among the values.
 * @param {Value[]} values
 * @returns {{n: number, mean: number, deviation: number | null} | null}
 */
export function summary(values) {
  const found = values.filter((value) => typeof value === "number" && Number.isFinite(value)).map(Number);
  if (!found.length) return null;
  const mean = found.reduce((sum, value) => sum + value, 0) / found.length;
  const squares = found.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const deviation = found.length > 1 ? Math.sqrt(squares / (found.length - 1)) : null;
  const isRounding = deviation !== null && deviation < 1e-12 * Math.abs(mean); // the values are all equal
  return {n: found.length, mean, deviation: isRounding ? 0 : deviation};
}

/**
 * A group's cell: mean ± deviation of numbers, the value that all runs share, or the number of different values.
 * @param {Group} group
 * @param {string} key
 */
export function groupCell(group, key) {
  const column = columnOf(key);
  const values = group.lines.map((line) => column.value(line));
  if (key === "verdict") return badge(worst(group));
  const known = values.filter((value) => value !== null);
  if (!known.length) return "–";
  const stats = column.isWord ? null : summary(values);
  if (stats) {
    const write = key === "duration" ? duration : number;
    return [
      write(stats.mean),
      stats.deviation ? ` ± ${write(Number(stats.deviation.toPrecision(2)))}` : "",
      stats.n < group.lines.length ? el("span", {class: "faint small"}, ` n ${stats.n}`) : "",
    ];
  }
  const different = new Set(known.map(String));
  if (column.isWord) return "";
  return different.size === 1 ? String(known[0]) : el("span", {class: "faint"}, counted(different.size, "value"));
}

/** @param {Group} group */
function worst(group) {
  const verdicts = group.lines.map(({run}) => run.verdict);
  return VERDICTS.find((word) => verdicts.some((verdict) => verdict === word)) ?? "cannot judge";
}
