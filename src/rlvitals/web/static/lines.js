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
 */

/**
 * A curve of the server. The range is only drawn where points were left out.
 * @param {Curve & {ghosts?: Ghost[]}} given
 * @param {string} label
 * @param {number} [style]
 * @returns {Line}
 */
export function lineOf({x, y, low, high, total, shown, ghosts}, label, style = 0) {
  return {label, style, x, y, total, shown, ghosts, ...(shown < total && {low, high})};
}

/**
 * The exponential moving average, without the pull to zero at the start; what is missing stays missing.
 * @param {(number | null)[]} values
 * @param {number} weight of what was before
 * @returns {(number | null)[]}
 */
export function smoothed(values, weight) {
  let level = 0;
  let count = 0;
  return values.map((value) => {
    if (value === null) return null;
    level = weight * level + (1 - weight) * value;
    count += 1;
    return level / (1 - weight ** count);
  });
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
