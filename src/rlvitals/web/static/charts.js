/**
 * One chart: lines with the range of what thinning left out, the raw line behind a smoothed one, the typical range,
 * findings, ghosts of abandoned attempts, and a zoom that is handed on so that all charts share it.
 */

import {columns, inWords, logRange, yRange} from "./columns.js";
import {number, short} from "./numbers.js";
import {colour} from "./theme.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";
import {symbolOf} from "./pieces.js";

/** @typedef {import("./lines.js").Line} Line */
/** @typedef {Pick<import("../contract.d.ts").FindingMark, "x" | "severity" | "title">} Mark */
/**
 * @typedef {Object} Picture What a chart shows.
 * @property {Line[]} lines
 * @property {readonly (number | null)[] | null} [band] The typical range.
 * @property {Mark[]} [marks] Findings.
 * @property {boolean} [isTime] x is unix seconds.
 * @property {boolean} [log]
 * @property {number} [smooth] 0 to below 1.
 * @property {[number, number] | null} [zoom]
 * @property {string} [sync] Charts of one name share the cursor.
 * @property {(from: number | null, to: number | null) => void} [onZoom]
 * @property {(text: string) => void} [onHover] What lies under the cursor; empty when it leaves.
 * @property {string} [xLabel]
 */

const FONT = "11px system-ui, sans-serif";

export class Chart {
  /**
   * @param {HTMLElement} root
   * @param {Picture} picture
   * @param {{width: number, height: number}} size
   */
  constructor(root, picture, size) {
    this.picture = picture;
    this.columns = columns(picture);
    this.plot = new uPlot(this.options(size), this.columns.data, root);
    const [x] = this.columns.data;
    root.dataset.from = String(x[0]); // for zooming by keys
    root.dataset.to = String(x[x.length - 1]);
    root.setAttribute("role", "img");
    root.setAttribute("aria-label", inWords(picture));
  }

  /** @param {{width: number, height: number}} size */
  resize(size) {
    this.plot.setSize(size);
  }

  destroy() {
    this.plot.destroy();
  }

  /**
   * @param {{width: number, height: number}} size
   * @returns {uPlot.Options}
   */
  options(size) {
    const {picture} = this;
    const grid = {stroke: colour("grid"), width: 1};
    const axis = {stroke: colour("faint"), font: FONT, grid, ticks: {...grid, size: 4}};
    return {
      ...size,
      pxAlign: false,
      padding: [10, 14, 0, 0],
      legend: {show: false},
      scales: {
        x: {time: Boolean(picture.isTime), range: (_, low, high) => this.xRange(low, high)},
        y: {distr: picture.log ? 3 : 1, range: (_, low, high) => this.yRange(low, high)},
      },
      axes: [
        {
          ...axis,
          size: 26,
          space: 50,
          ...(picture.isTime
            ? {}
            : {values: (/** @type {uPlot} */ _, /** @type {number[]} */ ticks) => ticks.map(short)}),
        },
        {
          ...axis,
          size: 52,
          space: 34,
          values: (/** @type {uPlot} */ _, /** @type {(number | null)[]} */ ticks) =>
            ticks.map((tick) => (tick === null ? "" : short(tick))),
        },
      ],
      series: [{}, ...this.columns.series],
      bands: this.columns.bands,
      cursor: {
        y: false,
        drag: {x: true, y: false, setScale: false},
        points: {size: 6},
        sync: picture.sync ? {key: picture.sync, scales: ["x", null], setSeries: false} : undefined,
        bind: {
          dblclick: () => () => {
            picture.onZoom?.(null, null);
            return null;
          },
        },
      },
      hooks: {
        drawClear: [(plot) => this.drawBand(plot)],
        draw: [
          (plot) => {
            this.drawGhosts(plot);
            this.drawMarks(plot);
          },
        ],
        setSelect: [(plot) => this.selected(plot)],
        setCursor: [(plot) => this.hovered(plot)],
      },
    };
  }

  /**
   * @param {number | null} low
   * @param {number | null} high
   * @returns {[number, number]}
   */
  xRange(low, high) {
    if (this.picture.zoom) return this.picture.zoom;
    if (low === null || high === null) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  /**
   * Of the lines, and of the ghosts beside them.
   * @param {number | null} low
   * @param {number | null} high
   * @returns {[number, number]}
   */
  yRange(low, high) {
    const [first, last] = this.picture.zoom ?? [-Infinity, Infinity];
    for (const ghost of this.picture.lines.flatMap((line) => line.ghosts ?? [])) {
      ghost.y.forEach((y, place) => {
        const isSeen = ghost.x[place] >= first && ghost.x[place] <= last;
        if (y === null || !isSeen || (this.picture.log && y <= 0)) return;
        low = Math.min(low ?? y, y);
        high = Math.max(high ?? y, y);
      });
    }
    return this.picture.log ? logRange(low, high) : yRange(low, high);
  }

  /** @param {uPlot} plot */
  selected(plot) {
    const {left, width} = plot.select;
    if (width < 4) return;
    const from = plot.posToVal(left, "x");
    const to = plot.posToVal(left + width, "x");
    plot.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
    this.picture.onZoom?.(from, to);
  }

  /** @param {uPlot} plot */
  hovered(plot) {
    const at = plot.cursor.idx;
    if (!this.picture.onHover) return;
    if (at === null || at === undefined) {
      this.picture.onHover("");
      return;
    }
    const x = plot.data[0][at];
    const where = this.picture.isTime
      ? new Date(x * 1000).toLocaleString()
      : `${this.picture.xLabel ?? "step"} ${number(x)}`;
    const said = this.columns.shown
      .map(({label, column}) => ({label, value: plot.data[column][at]}))
      .filter(({value}) => value !== undefined && value !== null)
      .map(({label, value}) => (this.columns.shown.length > 1 ? `${label} ${number(value)}` : number(value)));
    this.picture.onHover([where, ...said].join(" · "));
  }

  /** @param {uPlot} plot */
  drawBand(plot) {
    const {band} = this.picture;
    if (!band || plot.scales.y.min === undefined || plot.scales.y.min === null) return;
    const {left, top, width, height} = plot.bbox;
    const at = (/** @type {number | null} */ value, /** @type {number} */ open) =>
      value === null || (this.picture.log && value <= 0)
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

  /** @param {uPlot} plot */
  drawGhosts(plot) {
    const {ctx, bbox} = plot;
    const clip = new Path2D();
    clip.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.save();
    ctx.clip(clip);
    ctx.strokeStyle = colour("faint");
    ctx.globalAlpha = 0.55;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const line of this.picture.lines) {
      for (const ghost of line.ghosts ?? []) {
        ctx.beginPath();
        let isDown = false;
        ghost.x.forEach((x, place) => {
          const y = ghost.y[place];
          if (y === null || (this.picture.log && y <= 0)) {
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

  /** @param {uPlot} plot */
  drawMarks(plot) {
    const {ctx, bbox} = plot;
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const mark of this.picture.marks ?? []) {
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
}
