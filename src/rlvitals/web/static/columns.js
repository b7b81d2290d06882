/** What a picture is to the plotting library: columns, how each is drawn, the range of y, the whole in words. */

import {byX, smoothed} from "./lines.js";
import {number} from "./numbers.js";
import {lineStyle} from "./theme.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

/** @typedef {import("./charts.js").Picture} Picture */

/** @param {number | null} low @param {number | null} high @returns {[number, number]} */
export function yRange(low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [-0.5, 0.5] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}

/** @param {number | null} low @param {number | null} high @returns {[number, number]} */
export function logRange(low, high) {
  if (low === null || high === null || high <= 0) return [0.1, 1];
  return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)];
}

/**
 * The columns uPlot wants, and how each is drawn.
 * @param {Picture} picture
 */
export function columns(picture) {
  /** @type {(number | null)[][][]} */
  const tables = [];
  /** @type {uPlot.Series[]} */
  const series = [];
  /** @type {uPlot.Band[]} */
  const bands = [];
  /** @type {{label: string, column: number}[]} */
  const shown = [];
  const fit = (/** @type {(number | null)[]} */ values) =>
    picture.log ? values.map((value) => (value !== null && value > 0 ? value : null)) : values;
  picture.lines.forEach((line, place) => {
    const {stroke, dash} = lineStyle(line.style ?? place);
    const table = [line.x];
    const add = (/** @type {(number | null)[]} */ values, /** @type {uPlot.Series} */ how) => {
      table.push(/** @type {number[]} */ (fit(values)));
      return series.push({points: {show: false}, ...how});
    };
    if (line.low && line.high && line.low.length) {
      const high = add(line.high, {stroke: alpha(stroke, 0.45), width: 1});
      const low = add(line.low, {stroke: alpha(stroke, 0.45), width: 1});
      bands.push({series: [high, low], fill: alpha(stroke, 0.2)});
    }
    const few = line.x.length <= 60 ? {show: true, size: 4, fill: stroke, stroke} : {show: false};
    if (picture.smooth) add(line.y, {stroke: alpha(stroke, 0.3), width: 1, points: {show: false}});
    const values = picture.smooth ? smoothed(line.y, picture.smooth) : line.y;
    const column = add(values, {stroke, width: 1.7, dash, points: picture.smooth ? {show: false} : few});
    shown.push({label: line.label, column});
    tables.push(table);
  });
  return {data: byX(/** @type {number[][][]} */ (tables)), series, bands, shown};
}

/** @param {string} hex @param {number} share @returns {string} the colour, partly clear */
function alpha(hex, share) {
  return `${hex}${Math.round(share * 255)
    .toString(16)
    .padStart(2, "0")}`;
}

/** @param {Picture} picture @returns {string} the chart for those who cannot see it */
export function inWords(picture) {
  return picture.lines
    .map((line) => {
      const values = /** @type {number[]} */ (line.y.filter((value) => value !== null));
      if (!values.length) return `${line.label}: no finite value`;
      const bounds = values.reduce(
        ([low, high], value) => [Math.min(low, value), Math.max(high, value)],
        [Infinity, -Infinity],
      );
      const [low, high, last] = [...bounds, values[values.length - 1]].map(number);
      return `${line.label}: ${values.length} points from ${low} to ${high}, last ${last}`;
    })
    .join("; ");
}
