/** Lines of numbers before they are drawn: as the server gives them, smoothed, brought to one x. */

import uPlot from "./vendor/uplot/uPlot.esm.js";

/** @import {Curve, Ghost} from "../contract.d.ts" */

/**
 * @typedef {Object} Line
 * @property {string} label
 * @property {number[]} x
 * @property {(number | null)[]} y
 * @property {(number | null)[]} [low] Where points were left out: the lowest value around each that stayed.
 * @property {(number | null)[]} [high]
 * @property {Ghost[]} [ghosts] What abandoned attempts had logged.
 * @property {number} [total]
 * @property {number} [shown]
 * @property {number} [style] Which colour and dash.
 * @property {boolean} [isDotted] Drawn in dots whatever its style: an evaluation beside its training.
 * @property {boolean} [isMean] The mean of several runs, at places between their points.
 * @property {boolean} [isBare] Without a dot at each point, however few there are.
 * @property {"front" | "back"} [rank] One line in front, the others behind it.
 */
/** @typedef {{kind: "weight" | "points" | "x", size: number}} Smoothing A weight of what was before, or a time constant. */

/**
 * A curve of the server. The range is only drawn where points were left out.
 * @param {Omit<Curve, "steps" | "nonfinite"> & {ghosts?: Ghost[]}} given
 * @param {string} label
 * @param {number} [style]
 * @returns {Line}
 */
export function lineOf({x, y, low, high, total, shown, ghosts}, label, style = 0) {
  return {label, style, x, y, total, shown, ghosts, ...(shown < total && {low, high})};
}

/**
 * The exponential moving average, without the pull to zero at the start; what is missing stays missing. A time constant
 * is in logged points or in units of x: so far back a value counts 37 % of what it counted when it was new.
 * @param {Line} line
 * @param {Smoothing} how
 * @returns {(number | null)[]}
 */
export function smoothed({x, y, total, shown}, {kind, size}) {
  const each = shown && total ? total / shown : 1; // logged points behind one that is drawn
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
 * How to smooth, as the address says it: 0.9 is a weight, 50p a time constant in points, 200x one in units of x.
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
 * Tables of x and values as one table, the x of all of them in order.
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
  const word = (/** @type {number} */ count) => count.toLocaleString("en");
  return shown < total ? `${word(shown)} of ${word(total)} points` : `${word(total)} point${total === 1 ? "" : "s"}`;
}
