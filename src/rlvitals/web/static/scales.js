/**
 * The y-axis of a chart: linear, logarithmic, or symlog (logarithmic on both sides of zero); its range, and a note on
 * its scale.
 */

import {short} from "./numbers.js";

/** @typedef {import("./lines.js").Line} Line */
/** @typedef {"linear" | "log" | "symlog"} Kind */
/**
 * @typedef {Object} Scale
 * @property {Kind} kind
 * @property {number} threshold Of a symlog scale: within this distance of zero it is about linear.
 */
/** @typedef {readonly [number | null, number | null]} Bounds A range that the user chose; null: from the values. */

const MOST_DECADES = 6;
const CLIPPED = 0.01; // fraction of the values on each side

/**
 * A log scale cannot show zero or negative values. If there are any, the scale is symlog.
 * @param {boolean | Kind} wanted
 * @param {number[]} values
 * @returns {Scale}
 */
export function scaleOf(wanted, values) {
  if (!wanted || wanted === "linear") return {kind: "linear", threshold: 0};
  if (wanted !== "symlog" && values.every((value) => value > 0)) return {kind: "log", threshold: 0};
  return {kind: "symlog", threshold: thresholdOf(values)};
}

/**
 * The decade of the 5th percentile of the absolute values, but at most six decades below the largest.
 * @param {number[]} values
 * @returns {number}
 */
export function thresholdOf(values) {
  const sizes = values.map(Math.abs).filter((size) => size > 0);
  if (!sizes.length) return 1;
  sizes.sort((one, other) => one - other);
  const decade = (/** @type {number} */ size) => Math.floor(Math.log10(size) + 1e-9);
  const least = decade(sizes[Math.floor(sizes.length * 0.05)]);
  return 10 ** Math.max(least, decade(sizes[sizes.length - 1]) + 1 - MOST_DECADES);
}

/**
 * Zero, and the powers of ten on both sides of it.
 * @param {number} low
 * @param {number} high
 * @param {number} threshold
 * @returns {number[]}
 */
export function symlogTicks(low, high, threshold) {
  const side = (/** @type {number} */ reach) => {
    const ticks = [];
    for (let tick = threshold; tick <= reach * (1 + 1e-9); tick *= 10) ticks.push(Number(tick.toPrecision(12)));
    return ticks;
  };
  const zero = low <= 0 && high >= 0 ? [0] : [];
  return [...side(-low).map((tick) => -tick).reverse(), ...zero, ...side(high)];
}

/**
 * The range of the axis that shows all values from `low` to `high`.
 * @param {Scale} scale
 * @param {number | null} low
 * @param {number | null} high
 * @returns {[number, number]}
 */
export function rangeOf({kind, threshold}, low, high) {
  if (kind === "log") {
    if (low === null || high === null || high <= 0) return [0.1, 1];
    return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)];
  }
  if (low === null || high === null) return [0, 1];
  if (kind === "symlog") {
    const out = (/** @type {number} */ edge) => Math.sign(edge) * Math.max(Math.abs(edge) * 1.3, threshold * 0.3);
    return [low < 0 ? out(low) : -threshold * 0.3, high > 0 ? out(high) : threshold * 0.3];
  }
  if (low === high) return low === 0 ? [-0.5, 0.5] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}

/**
 * The range of the values without the outermost hundredth on each side.
 * @param {number[]} values
 * @returns {[number, number] | null}
 */
export function usual(values) {
  if (values.length < 3) return null;
  const sorted = Float64Array.from(values).sort();
  const cut = Math.max(1, Math.floor(sorted.length * CLIPPED));
  const [low, high] = [sorted[Math.min(cut, sorted.length - 1)], sorted[Math.max(sorted.length - 1 - cut, 0)]];
  return low < high ? [low, high] : null;
}

/** @param {Scale} scale @returns {string} a note on the scale; empty if it is linear */
export function scaleNote({kind, threshold}) {
  if (kind === "linear") return "";
  return kind === "log" ? "log" : `symlog, linear within ±${short(threshold)}`;
}

/** @param {Line[]} lines @returns {number[]} all drawn values */
export function drawnValues(lines) {
  return lines.flatMap(({y, low, high}) => [y, low ?? [], high ?? []].flat().filter((value) => value !== null));
}
