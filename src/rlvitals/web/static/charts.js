/**
 * One chart: downsampled lines with the range of the omitted points, raw lines behind smoothed ones, the typical range,
 * findings, and ghosts of abandoned attempts. A zoom is reported to the caller, so that all charts can share it.
 */

import {columns, inWords} from "./columns.js";
import {number, short} from "./numbers.js";
import {paintBand, paintGhosts, paintMarks, paintScale} from "./painting.js";
import {drawnValues, rangeOf, scaleOf, symlogTicks, usual} from "./scales.js";
import {colour} from "./theme.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

/** @typedef {import("./lines.js").Line} Line */
/** @typedef {Pick<import("../contract.d.ts").FindingMark, "x" | "severity" | "title">} Mark */
/**
 * @typedef {Object} Picture The content of a chart.
 * @property {Line[]} lines
 * @property {readonly (number | null)[] | null} [band] The typical range.
 * @property {Mark[]} [marks] Findings.
 * @property {boolean} [isTime] x is unix seconds.
 * @property {boolean | import("./scales.js").Kind} [log] A log scale; symlog if some values are not positive.
 * @property {boolean} [clip] Exclude outliers from the range of y.
 * @property {import("./scales.js").Bounds | null} [bounds] The range of y that the user chose.
 * @property {import("./lines.js").Smoothing | null} [smooth]
 * @property {[number, number] | null} [zoom]
 * @property {string} [sync] Charts with the same name share the cursor.
 * @property {(from: number | null, to: number | null) => void} [onZoom]
 * @property {(text: string) => void} [onHover] Receives the values under the cursor; empty when it leaves.
 * @property {string} [xLabel]
 */

const FONT = "11px system-ui, sans-serif";
const LABEL = 16; // minimum distance of two labels of a symlog axis, in pixels
const NAMED = 4; // up to this many lines, the values of all are shown under the cursor; otherwise that of the nearest

const DISTRIBUTIONS = /** @type {const} */ ({linear: 1, log: 3, symlog: 4}); // uPlot's numbers

/**
 * @param {uPlot} plot
 * @param {{label: string, value: number}[]} under
 * @returns {{label: string, value: number}[]} the value nearest to the cursor
 */
function nearest(plot, under) {
  const at = plot.cursor.top ?? -1;
  const away = (/** @type {{value: number}} */ {value}) => Math.abs(plot.valToPos(value, "y") - at);
  return at < 0 ? [] : [under.reduce((best, one) => (away(one) < away(best) ? one : best))];
}

/**
 * @param {uPlot} plot
 * @param {number[]} ticks
 * @returns {(number | null)[]} null for ticks that do not fit; zero and then the largest have priority
 */
function apart(plot, ticks) {
  /** @type {number[]} */
  const taken = [];
  const order = [...ticks].sort((one, other) => (one === 0 ? -1 : other === 0 ? 1 : Math.abs(other) - Math.abs(one)));
  const kept = order.filter((tick) => {
    const at = plot.valToPos(tick, "y");
    return taken.every((other) => Math.abs(other - at) >= LABEL) && taken.push(at);
  });
  return ticks.map((tick) => (kept.includes(tick) ? tick : null));
}

export class Chart {
  /**
   * @param {HTMLElement} root
   * @param {Picture} picture
   * @param {{width: number, height: number}} size
   */
  constructor(root, picture, size) {
    this.picture = picture;
    this.columns = columns(picture);
    const values = picture.log || picture.clip ? drawnValues(picture.lines) : []; // only if needed: there may be thousands of charts
    this.scale = scaleOf(picture.log ?? false, values);
    this.usual = picture.clip ? usual(values) : null;
    const [least, most] = this.usual ?? [-Infinity, Infinity];
    this.clipped = values.filter((value) => value < least || value > most).length;
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
        y: {
          distr: DISTRIBUTIONS[this.scale.kind],
          asinh: this.scale.threshold || 1,
          range: (_, low, high) => this.yRange(low, high),
        },
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
          ...(this.scale.kind === "symlog" && {
            splits: (/** @type {uPlot} */ _, /** @type {number} */ _at, /** @type {number} */ low, /** @type {number} */ high) =>
              symlogTicks(low, high, this.scale.threshold),
            filter: (/** @type {uPlot} */ plot, /** @type {number[]} */ ticks) => apart(plot, ticks),
          }),
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
        drawClear: [(plot) => paintBand(plot, this)],
        draw: [
          (plot) => {
            paintGhosts(plot, this);
            paintMarks(plot, this);
            paintScale(plot, this);
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
   * The range of the lines and of their ghosts.
   * @param {number | null} low
   * @param {number | null} high
   * @returns {[number, number]}
   */
  yRange(low, high) {
    const [first, last] = this.picture.zoom ?? [-Infinity, Infinity];
    for (const ghost of this.picture.lines.flatMap((line) => line.ghosts ?? [])) {
      ghost.y.forEach((y, place) => {
        const isSeen = ghost.x[place] >= first && ghost.x[place] <= last;
        if (y === null || !isSeen || this.isOff(y)) return;
        low = Math.min(low ?? y, y);
        high = Math.max(high ?? y, y);
      });
    }
    const [least, most] = rangeOf(this.scale, ...(this.usual ?? [low, high]));
    const [from, to] = this.picture.bounds ?? [null, null];
    const chosen = /** @type {[number, number]} */ ([from ?? least, to ?? most]);
    return chosen[0] < chosen[1] && !this.isOff(chosen[0]) ? chosen : [least, most];
  }

  /** @param {number} value @returns {boolean} whether the scale cannot show it */
  isOff(value) {
    return this.scale.kind === "log" && value <= 0;
  }

  /** A note on the y axis: its scale, clipped outliers, a chosen range. */
  get note() {
    const bounds = this.picture.bounds;
    return [
      this.scale.kind !== "linear" && this.scale.kind,
      this.usual && `${number(this.clipped)} outliers clipped`,
      bounds && (bounds[0] !== null || bounds[1] !== null) && "manual y range",
    ]
      .filter(Boolean)
      .join(", ");
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
    const under = this.columns.shown.flatMap(({label, column}) => {
      const value = plot.data[column][at];
      return value === undefined || value === null ? [] : [{label, value}];
    });
    const readings = (under.length > NAMED ? nearest(plot, under) : under)
      .map(({label, value}) => (this.columns.shown.length > 1 ? `${label} ${number(value)}` : number(value)));
    this.picture.onHover([where, ...readings].join(" · "));
  }
}
