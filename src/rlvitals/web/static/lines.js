/** Prepares lines for drawing: converts the server's curves, smooths them, and aligns them on one x. */

import {counted, number} from "./numbers.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

/** @import {Curve, Ghost} from "../contract.d.ts" */

/**
 * @typedef {Object} Line
 * @property {string} label
 * @property {number[]} x
 * @property {(number | null)[]} y
 * @property {(number | null)[]} [low] If points were omitted: the lowest value around each remaining one.
 * @property {(number | null)[]} [high]
 * @property {Ghost[]} [ghosts] Points of abandoned attempts.
 * @property {number} [total]
 * @property {number} [shown]
 * @property {number} [style] The number of its colour and dash.
 * @property {boolean} [isDotted] Always drawn dotted: an evaluation next to its training metric.
 * @property {boolean} [isMean] The mean of several runs, interpolated between their points.
 * @property {boolean} [isBare] Never drawn with a dot at each point.
 * @property {"front" | "back"} [rank] One line in front, the others behind it.
 */
/** @typedef {{kind: "weight" | "points" | "x", size: number}} Smoothing A weight, or a time constant. */

/**
 * The line of a server's curve. It has a range only if points were omitted.
 * @param {Omit<Curve, "steps" | "nonfinite"> & {ghosts?: Ghost[]}} given
 * @param {string} label
 * @param {number} [style]
 * @returns {Line}
 */
export function lineOf({x, y, low, high, total, shown, ghosts}, label, style = 0) {
  return {label, style, x, y, total, shown, ghosts, ...(shown < total && {low, high})};
}

/**
 * The exponential moving average, without a bias to zero at the start. Missing values stay missing. A time constant is
 * in logged points or in units of x: after it, the weight of a value has fallen to 37 %.
 * @param {Line} line
 * @param {Smoothing} how
 * @returns {(number | null)[]}
 */
export function smoothed({x, y, total, shown}, {kind, size}) {
  const each = shown && total ? total / shown : 1; // logged points per drawn point
  let level = 0;
  let share = 0;
  let before = x[0];
  return y.map((value, place) => {
    if (value === null) return null;
    const weight = kind === "weight" ? size : Math.exp(-(kind === "points" ? each : x[place] - before) / size);
    before = x[place];
    level = weight * level + value;
    share = weight * share + 1;
    return level / share;
  });
}

/**
 * The smoothing in the address: 0.9 is a weight, 50p a time constant in points, 200x one in units of x.
 * @param {string} text
 * @returns {Smoothing | null}
 */
export function smoothingOf(text) {
  const [, digits, unit] = /^([\d.e+]+)([px]?)$/.exec(text) ?? [];
  const size = Number(digits);
  if (!digits || !Number.isFinite(size) || size <= 0) return null;
  if (unit) return {kind: unit === "p" ? "points" : "x", size};
  return {kind: "weight", size: Math.min(size, 0.999)};
}

/**
 * Joins tables of x and values into one table, sorted by x.
 * @param {number[][][]} tables
 * @returns {uPlot.AlignedData}
 */
export function byX(tables) {
  if (!tables.length) return [[]];
  if (tables.length === 1) return /** @type {uPlot.AlignedData} */ (/** @type {unknown} */ (tables[0]));
  return uPlot.join(/** @type {uPlot.AlignedData[]} */ (/** @type {unknown} */ (tables)));
}

/**
 * @param {Line[]} lines
 * @returns {string} "800 of 100,000 points"
 */
export function howMany(lines) {
  const shown = lines.reduce((sum, line) => sum + (line.shown ?? line.x.length), 0);
  const total = lines.reduce((sum, line) => sum + (line.total ?? line.x.length), 0);
  return `${shown < total ? `${number(shown)} of ` : ""}${counted(total, "point")}`;
}
