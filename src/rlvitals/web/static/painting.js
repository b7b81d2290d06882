/** Draws the parts of a chart other than its lines: the typical range, ghosts, findings, the kind of scale. */

import {symbolOf} from "./pieces.js";
import {scaleNote} from "./scales.js";
import {colour} from "./theme.js";

/** @typedef {import("./charts.js").Chart} Chart */
/** @import uPlot from "./vendor/uplot/uPlot.esm.js" */

/** @param {uPlot} plot @param {Chart} chart */
export function paintBand(plot, chart) {
  const {band} = chart.picture;
  if (!band || plot.scales.y.min === undefined || plot.scales.y.min === null) return;
  const {left, top, width, height} = plot.bbox;
  const at = (/** @type {number | null} */ value, /** @type {number} */ open) =>
    value === null || chart.isOff(value)
      ? open
      : Math.min(Math.max(plot.valToPos(value, "y", true), top), top + height);
  const high = at(band[1], top);
  const low = at(band[0], top + height);
  const {ctx} = plot;
  ctx.save();
  ctx.fillStyle = colour("band");
  ctx.fillRect(left, high, width, Math.max(low - high, 0));
  ctx.strokeStyle = colour("band-edge");
  ctx.setLineDash([4, 4]);
  for (const edge of [high, low]) {
    if (edge <= top || edge >= top + height) continue;
    ctx.beginPath();
    ctx.moveTo(left, edge);
    ctx.lineTo(left + width, edge);
    ctx.stroke();
  }
  ctx.restore();
}

/** @param {uPlot} plot @param {Chart} chart */
export function paintGhosts(plot, chart) {
  const {ctx, bbox} = plot;
  const clip = new Path2D();
  clip.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.save();
  ctx.clip(clip);
  ctx.strokeStyle = colour("faint");
  ctx.globalAlpha = 0.55;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const line of chart.picture.lines) {
    for (const ghost of line.ghosts ?? []) {
      ctx.beginPath();
      let isDown = false;
      ghost.x.forEach((x, place) => {
        const y = ghost.y[place];
        if (y === null || chart.isOff(y)) {
          isDown = false;
          return;
        }
        ctx[isDown ? "lineTo" : "moveTo"](plot.valToPos(x, "x", true), plot.valToPos(y, "y", true));
        isDown = true;
      });
      ctx.stroke();
    }
  }
  ctx.restore();
}

/** @param {uPlot} plot @param {Chart} chart */
export function paintMarks(plot, chart) {
  const {ctx, bbox} = plot;
  ctx.save();
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of chart.picture.marks ?? []) {
    const x = plot.valToPos(mark.x, "x", true);
    if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
    ctx.strokeStyle = ctx.fillStyle = colour(mark.severity);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(symbolOf(mark.severity), x, bbox.top - 1);
  }
  ctx.restore();
}

/** Writes the kind of scale at the axis. @param {uPlot} plot @param {Chart} chart */
export function paintScale({ctx, bbox}, {scale}) {
  const note = scaleNote(scale);
  if (!note) return;
  ctx.save();
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.fillStyle = colour("faint");
  ctx.textAlign = "left";
  ctx.fillText(note, bbox.left + 4 * devicePixelRatio, bbox.top + 10 * devicePixelRatio);
  ctx.restore();
}
