/**
 * One panel of the Metrics screen: the logged name, its title, its last value, its chart, and the number of points.
 * A series of slices, or a metric with its evaluation, has several lines, each with a button that hides it.
 */

import {Chart} from "../charts.js";
import {el} from "../dom.js";
import {explainable} from "../drawer.js";
import {dialog} from "../keys.js";
import {howMany} from "../lines.js";
import {counted, number} from "../numbers.js";
import {streamSwatch, swatch} from "./comparison.js";
import {openMenu} from "./panelmenu.js";
import {linesOf} from "./panellines.js";
import {settingsOf} from "./panelsettings.js";
import * as state from "../state.js";

/** @typedef {import("./panellines.js").Part} Part */
/** @typedef {import("../../contract.d.ts").ListedMetric & {streams: string[], lines: Part[], onlyIn?: string[]}} Metric A metric of one or both streams. */
/** @typedef {import("../series.js").Series} Series */
/** @typedef {Partial<import("../charts.js").Picture> & {overlaid: import("./overlaid.js").Overlaid | null}} How */

const HEAD = 62;
const LEGEND = 30;
const MOST_LINES = 20;
const MOST_NAMED = 3;

/** @type {Map<string, Chart>} the current chart of each panel; a change of the address creates new panels */
const drawn = new Map();

export class MetricPanel {
  /**
   * @param {Metric} metric
   * @param {number} height
   * @param {boolean} isAlone whether only one run is shown; the last value is shown only then
   */
  constructor(metric, height, isAlone = true) {
    this.metric = metric;
    this.height = height;
    this.isAlone = isAlone;
    /** @type {Chart | null} */
    this.chart = null;
    /** @type {Series[]} */
    this.drawn = [];
    this.parts = metric.lines.slice(0, MOST_LINES);
    /** @type {Set<string>} */
    this.hidden = new Set();
    this.redraw = () => {};
    this.legend = metric.lines.length > 1 ? el("div", {class: "legend", role: "group", "aria-label": "Lines"}) : null;
    this.legend?.append(...this.parts.map((part, place) => this.button(part, place)));
    this.readout = el("span", {class: "readout"});
    this.count = el("span", {class: "faint small count"});
    this.body = el("div", {class: "plot"});
    const isNew = metric.unit !== "1" && !metric.title.toLowerCase().includes(metric.unit);
    const what = [
      metric.onlyIn && `only ${named(metric.onlyIn)}`,
      metric.title === metric.name ? "" : metric.title,
      isNew && metric.unit,
    ]
      .filter(Boolean)
      .join(" · ");
    this.node = el(
      "article",
      {
        class: "panel",
        tabindex: 0,
        data: {metric: metric.name},
        "aria-label": metric.name,
        on: {keydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event)},
      },
      el(
        "header",
        {},
        el("h3", {class: "mono"}, explainable(metric.lines[0].name, metric.name)),
        this.readout,
        this.icon("⋯", `${metric.name}: scale, range, pin, export`, () => openMenu(metric.name, this.names, () => drawn.get(metric.name) ?? null)),
        this.icon("⤢", `${metric.name}: enlarge or shrink`, () => this.enlarge()),
      ),
      el("div", {class: "sub"}, el("span", {class: "faint small what", title: what}, what), this.count),
      this.body,
      this.legend,
    );
    this.showReadout("");
  }

  /** @param {string} sign @param {string} title @param {() => void} does */
  icon(sign, title, does) {
    return el("button", {class: "plain", title, "aria-label": title, on: {click: does}}, sign);
  }

  /** @returns {string[]} the logged names that it draws */
  get names() {
    return this.parts.map(({name}) => name);
  }

  /** @param {Part} part @param {number} place */
  button({name, label, isHeldOut}, place) {
    const press = () => {
      if (!this.hidden.delete(name)) this.hidden.add(name);
      button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
      this.redraw();
    };
    const button = el(
      "button",
      {class: "plain small", "aria-pressed": "true", title: `${label}: show or hide`, on: {click: press}},
      this.isAlone ? swatch(place) : streamSwatch(isHeldOut),
      label,
    );
    return button;
  }

  enlarge() {
    const isLarge = state.get("one") === this.metric.name;
    state.go({one: isLarge ? null : this.metric.name, ...(isLarge && {full: null})});
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.target !== this.node || event.key !== "Enter") return;
    event.preventDefault();
    this.enlarge();
  }

  /** @param {string} text the values under the cursor */
  showReadout(text) {
    const isOne = this.isAlone && this.parts.filter(({isHeldOut}) => !isHeldOut).length < 2;
    const rest = isOne ? number(this.metric.last) : this.isAlone ? counted(this.metric.lines.length, "line") : "";
    this.readout.textContent = text || rest;
  }

  /** @param {number | null | undefined} value the value in a new row */
  setLast(value) {
    if (value === undefined) return;
    this.metric.last = value;
    this.showReadout("");
  }

  /** @param {Series[]} series @returns {boolean} whether it already shows these */
  shows(series) {
    return this.drawn.length === series.length && series.every((one, place) => one === this.drawn[place]);
  }

  /**
   * @param {Series[]} series one for each of its names
   * @param {How} how
   * @param {number} width
   */
  draw(series, how, width) {
    if (this.shows(series)) return;
    this.drawn = series;
    this.redraw = () => this.paint(series, how, width);
    this.redraw();
  }

  /**
   * @param {Series[]} series
   * @param {How} how
   * @param {number} width
   */
  paint(series, {overlaid, ...how}, width) {
    this.remove();
    this.body.replaceChildren();
    const {lines, nonfinite, refused} = linesOf(this.parts, series, overlaid, this.hidden);
    const own = settingsOf(this.metric.name);
    const left = this.metric.lines.length - this.parts.length;
    const means = lines.filter(({isMean}) => isMean).length;
    const notes = [
      means > 0 && counted(means, "mean"),
      (means < lines.length || !means) && howMany(lines.filter(({isMean}) => !isMean)),
      nonfinite && `${number(nonfinite)} not finite`,
      left > 0 && `${this.parts.length} of ${this.metric.lines.length} lines`,
    ];
    if (lines.some((line) => line.x.length)) {
      this.chart = new Chart(
        this.body,
        {
          lines,
          band: series[0].band,
          marks: this.parts.length > 1 ? [] : series[0].findings,
          onHover: (text) => this.showReadout(text),
          ...how,
          ...(own.scale && {log: own.scale}),
          clip: own.clip,
          bounds: [own.low, own.high],
        },
        {width: width - 18, height: this.height - HEAD - (this.legend ? LEGEND : 0)},
      );
      drawn.set(this.metric.name, this.chart);
      notes.push(this.chart.note);
    } else this.body.append(el("p", {class: "faint empty"}, emptyReason(series)));
    this.count.replaceChildren(notes.filter(Boolean).join(", "));
    this.count.title = this.count.textContent ?? "";
    if (refused.length) this.count.prepend(missing(this.metric.name, refused), " ");
  }

  remove() {
    if (drawn.get(this.metric.name) === this.chart) drawn.delete(this.metric.name);
    this.chart?.destroy();
    this.chart = null;
  }
}

/** @param {string[]} runs @returns {string} */
function named(runs) {
  return runs.length > MOST_NAMED ? `${runs.slice(0, MOST_NAMED).join(", ")} and ${runs.length - MOST_NAMED} more` : runs.join(", ");
}

/** @param {Series[]} series @returns {string} why the panel is empty */
function emptyReason([first]) {
  return first?.problem ?? (first?.lines.length ? "no points in this range" : first?.refused[0]?.reason) ?? "no points in this range";
}

/**
 * A button that shows which runs are not drawn, and why.
 * @param {string} name
 * @param {import("../../contract.d.ts").Refusal[]} refused
 */
function missing(name, refused) {
  const show = () =>
    dialog(
      `Not drawn: ${name}`,
      el(
        "ul",
        {class: "choices"},
        refused.map(({run, reason}) => el("li", {}, el("strong", {}, run), `: ${reason}`)),
      ),
    );
  const words = `${counted(refused.length, "run")} not drawn`;
  return el("button", {class: "plain small refused", title: "Show which runs, and why", on: {click: show}}, words);
}
