/** Converts a picture for the plotting library: its columns, their styles, and a description in words. */

import {byX, smoothed} from "./lines.js";
import {number} from "./numbers.js";
import {DOTS, lineStyle} from "./theme.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

/** @typedef {import("./charts.js").Picture} Picture */

export const MOST_RANGES = 6; // with more lines, raw lines are not drawn, and ranges only for the front line

/**
 * The columns in uPlot's format, and the style of each.
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
  const many = picture.lines.length > MOST_RANGES;
  picture.lines.forEach((line, place) => {
    const style = lineStyle(line.style ?? place);
    const stroke = line.rank === "back" ? alpha(style.stroke, 0.3) : style.stroke;
    const dash = line.isDotted ? DOTS : line.rank === "front" ? [] : style.dash;
    const table = [line.x];
    const add = (/** @type {(number | null)[]} */ values, /** @type {uPlot.Series} */ how) => {
      table.push(/** @type {number[]} */ (values));
      return series.push({points: {show: false}, ...how});
    };
    if (line.low && line.high && line.low.length && line.rank !== "back" && (!many || line.rank === "front")) {
      const edge = {stroke: alpha(stroke, 0.45), width: 1};
      const [high, low] = [line.high, line.low].map((y) =>
        add(picture.smooth && line.isMean ? smoothed({...line, y}, picture.smooth) : y, edge),
      );
      bands.push({series: [high, low], fill: alpha(stroke, 0.2)});
    }
    const few = line.x.length <= 60 && !line.isBare ? {show: true, size: 4, fill: stroke, stroke} : {show: false};
    if (picture.smooth && !many && !line.isMean && line.rank !== "back") add(line.y, {stroke: alpha(style.stroke, 0.3), width: 1});
    const values = picture.smooth ? smoothed(line, picture.smooth) : line.y;
    const width = line.rank === "front" ? 3 : 1.7;
    const column = add(values, {stroke, width, dash, points: picture.smooth || many ? {show: false} : few});
    shown.push({label: line.label, column});
    tables.push(table);
  });
  return {data: byX(/** @type {number[][][]} */ (tables)), series, bands, shown};
}

/** @param {string} hex @param {number} share @returns {string} the colour, partly transparent */
function alpha(hex, share) {
  return `${hex}${Math.round(share * 255)
    .toString(16)
    .padStart(2, "0")}`;
}

/** @param {Picture} picture @returns {string} the chart's description for screen readers */
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
