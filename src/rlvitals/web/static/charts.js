/**
 * One chart: lines with the range of what thinning left out, the raw line behind a smoothed one, the healthy band,
 * findings, ghosts of abandoned attempts, and a zoom that is handed on so that all charts share it.
 */

import {byX, smoothed} from "./lines.js";
import {number, short} from "./numbers.js";
import {colour, lineStyle} from "./theme.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

/** @typedef {import("./lines.js").Line} Line */
/** @typedef {{x: number, severity: string, title: string}} Mark */
/**
 * @typedef {Object} Picture What a chart shows.
 * @property {Line[]} lines
 * @property {(number | null)[] | null} [band] The healthy range.
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

const SYMBOLS = /** @type {Record<string, string>} */ ({critical: "✖", warning: "!", info: "·"});
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
      padding: [10, 8, 0, 0],
      legend: {show: false},
      scales: {
        x: {time: Boolean(picture.isTime), range: (_, low, high) => this.xRange(low, high)},
        y: {distr: picture.log ? 3 : 1, range: picture.log ? logRange : yRange},
      },
      axes: [
        {...axis, size: 26, space: 70, ...(picture.isTime ? {} : {values: (/** @type {uPlot} */ _, /** @type {number[]} */ ticks) => ticks.map(short)})},
        {...axis, size: 52, space: 34, values: (/** @type {uPlot} */ _, /** @type {(number | null)[]} */ ticks) => ticks.map((tick) => tick === null ? "" : short(tick))},
      ],
      series: [{}, ...this.columns.series],
      bands: this.columns.bands,
      cursor: {
        y: false,
        drag: {x: true, y: false, setScale: false},
        points: {size: 6},
        sync: picture.sync ? {key: picture.sync, scales: ["x", null], setSeries: false} : undefined,
        bind: {dblclick: () => () => { picture.onZoom?.(null, null); return null; }},
      },
      hooks: {
        drawClear: [(plot) => this.drawBand(plot)],
        draw: [(plot) => { this.drawGhosts(plot); this.drawMarks(plot); }],
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
    const where = this.picture.isTime ? new Date(x * 1000).toLocaleString() : `${this.picture.xLabel ?? "step"} ${number(x)}`;
    const said = this.columns.shown
      .map(({label, column}) => ({label, value: plot.data[column][at]}))
      .filter(({value}) => value !== undefined && value !== null)
      .map(({label, value}) => this.columns.shown.length > 1 ? `${label} ${number(value)}` : number(value));
    this.picture.onHover([where, ...said].join(" · "));
  }

  /** @param {uPlot} plot */
  drawBand(plot) {
    const {band} = this.picture;
    if (!band || plot.scales.y.min === undefined || plot.scales.y.min === null) return;
    const {left, top, width, height} = plot.bbox;
    const at = (/** @type {number | null} */ value, /** @type {number} */ open) =>
      value === null || (this.picture.log && value <= 0) ? open : Math.min(Math.max(plot.valToPos(value, "y", true), top), top + height);
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
      ctx.fillText(SYMBOLS[mark.severity] ?? "·", x, bbox.top - 1);
    }
    ctx.restore();
  }
}

/** @param {uPlot} _ @param {number | null} low @param {number | null} high @returns {[number, number]} */
function yRange(_, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [-0.5, 0.5] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}

/** @param {uPlot} _ @param {number | null} low @param {number | null} high @returns {[number, number]} */
function logRange(_, low, high) {
  if (low === null || high === null || high <= 0) return [0.1, 1];
  return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)];
}

/**
 * The columns uPlot wants, and how each is drawn.
 * @param {Picture} picture
 */
function columns(picture) {
  /** @type {(number | null)[][][]} */
  const tables = [];
  /** @type {uPlot.Series[]} */
  const series = [];
  /** @type {uPlot.Band[]} */
  const bands = [];
  /** @type {{label: string, column: number}[]} */
  const shown = [];
  const fit = (/** @type {(number | null)[]} */ values) =>
    picture.log ? values.map((value) => value !== null && value > 0 ? value : null) : values;
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
  return `${hex}${Math.round(share * 255).toString(16).padStart(2, "0")}`;
}

/** @param {Picture} picture @returns {string} the chart for those who cannot see it */
function inWords(picture) {
  return picture.lines.map((line) => {
    const values = /** @type {number[]} */ (line.y.filter((value) => value !== null));
    if (!values.length) return `${line.label}: no finite value`;
    const bounds = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    return `${line.label}: ${values.length} points from ${number(bounds[0])} to ${number(bounds[1])}, last ${number(values[values.length - 1])}`;
  }).join("; ");
}
