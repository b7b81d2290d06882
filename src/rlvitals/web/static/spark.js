/** A small SVG curve for a tile, with its typical range. It needs no script after it is drawn. */

import {svg} from "./dom.js";

const WIDTH = 200;
const HEIGHT = 44;

/**
 * A curve without axes. A missing value leaves a gap.
 * @param {[number, number | null][]} points
 * @param {readonly (number | null)[] | null | undefined} band
 * @returns {SVGElement}
 */
export function spark(points, band) {
  const root = svg("svg", {
    class: "spark",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const values = /** @type {number[]} */ (points.map(([, y]) => y).filter((y) => y !== null));
  if (!values.length) return root;
  const low = Math.min(...values);
  const high = Math.max(...values);
  const span = high - low || Math.abs(high) || 1;
  const first = points[0][0];
  const across = points[points.length - 1][0] - first || 1;
  const x = (/** @type {number} */ value) => ((value - first) / across) * WIDTH;
  const y = (/** @type {number} */ value) =>
    high === low ? HEIGHT / 2 : HEIGHT - 3 - ((value - low) / span) * (HEIGHT - 6);
  if (band) {
    const top = band[1] === null ? 0 : clamp(y(band[1]));
    const bottom = band[0] === null ? HEIGHT : clamp(y(band[0]));
    if (bottom > top) root.append(svg("rect", {class: "band", x: 0, width: WIDTH, y: top, height: bottom - top}));
  }
  let path = "";
  let isDown = false;
  for (const [at, value] of points) {
    if (value !== null) path += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isDown = value !== null;
  }
  root.append(svg("path", {class: "curve", d: path}));
  return root;
}

/** @param {number} y @returns {number} */
function clamp(y) {
  return Math.min(Math.max(y, 0), HEIGHT);
}
