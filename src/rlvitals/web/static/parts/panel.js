/**
 * One panel of the Metrics screen: what it is, its last value, its chart, how many points are shown of how many. Of a
 * series of slices: a line for each, and a button to hide it.
 */

import {Chart} from "../charts.js";
import {el} from "../dom.js";
import {explainable} from "../drawer.js";
import {howMany, lineOf} from "../lines.js";
import {counted, number} from "../numbers.js";
import {swatch} from "./comparison.js";
import * as state from "../state.js";

/** @typedef {{name: string, label: string}} Slice A logged name; the label is empty for what is no slice. */
/** @typedef {import("../../contract.d.ts").ListedMetric & {streams: string[], lines: Slice[]}} Metric Of both streams. */
/** @typedef {import("../series.js").Series} Series */

const HEAD = 62;
const LEGEND = 30;
const MOST_LINES = 20;

export class MetricPanel {
  /**
   * @param {Metric} metric
   * @param {number} height
   */
  constructor(metric, height) {
    this.metric = metric;
    this.height = height;
    /** @type {Chart | null} */
    this.chart = null;
    /** @type {Series[]} */
    this.drawn = [];
    this.slices = metric.lines.slice(0, MOST_LINES);
    /** @type {Set<string>} */
    this.hidden = new Set();
    this.redraw = () => {};
    this.legend = metric.lines.length > 1 ? el("div", {class: "legend", role: "group", "aria-label": "Slices"}) : null;
    this.legend?.append(...this.slices.map((slice, place) => this.button(slice, place)));
    this.readout = el("span", {class: "readout"});
    this.count = el("span", {class: "faint small count"});
    this.body = el("div", {class: "plot"});
    this.node = el(
      "article",
      {
        class: "panel",
        tabindex: 0,
        data: {metric: metric.name},
        "aria-label": metric.title,
        on: {keydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event)},
      },
      el(
        "header",
        {},
        el("h3", {}, explainable(metric.lines[0].name, metric.title)),
        this.readout,
        el(
          "button",
          {
            class: "plain",
            title: "Large",
            "aria-label": `${metric.title}: large or small`,
            on: {click: () => this.enlarge()},
          },
          "⤢",
        ),
      ),
      el(
        "div",
        {class: "sub"},
        el(
          "span",
          {class: "mono faint small", title: metric.name},
          metric.title === metric.name ? metric.unit : metric.name,
        ),
        this.count,
      ),
      this.body,
      this.legend,
    );
    this.say("");
  }

  /** @returns {string[]} the logged names it draws */
  get names() {
    return this.slices.map(({name}) => name);
  }

  /** @param {Slice} slice @param {number} place */
  button({name, label}, place) {
    const press = () => {
      if (!this.hidden.delete(name)) this.hidden.add(name);
      button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
      this.redraw();
    };
    const button = el(
      "button",
      {class: "plain small", "aria-pressed": "true", title: `${label}: show or hide`, on: {click: press}},
      swatch(place),
      label,
    );
    return button;
  }

  enlarge() {
    state.go({one: state.get("one") === this.metric.name ? null : this.metric.name});
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.target !== this.node || event.key !== "Enter") return;
    event.preventDefault();
    this.enlarge();
  }

  /** @param {string} text what lies under the cursor */
  say(text) {
    const rest = this.legend ? counted(this.metric.lines.length, "slice") : number(this.metric.last);
    this.readout.textContent = text || rest;
  }

  /** @param {number | null | undefined} value what a new row says */
  heard(value) {
    if (value === undefined) return;
    this.metric.last = value;
    this.say("");
  }

  /** @param {Series[]} series @returns {boolean} whether it shows these already */
  shows(series) {
    return this.drawn.length === series.length && series.every((one, place) => one === this.drawn[place]);
  }

  /**
   * @param {Series[]} series one for each of its names
   * @param {Partial<import("../charts.js").Picture>} how
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
   * @param {Partial<import("../charts.js").Picture>} how
   * @param {number} width
   */
  paint(series, how, width) {
    this.chart?.destroy();
    this.chart = null;
    this.body.replaceChildren();
    const drawn = series.flatMap(({lines}, place) => {
      const {name, label} = this.slices[place];
      if (this.hidden.has(name)) return [];
      return lines.map((line, at) => ({line, ...(label ? {label, style: place} : {label: line.stream, style: at})}));
    });
    const lines = drawn.map(({line, label, style}) => lineOf(line, label, style));
    const left = this.metric.lines.length - this.slices.length;
    this.count.textContent =
      howMany(lines) +
      lost(drawn.map(({line}) => line)) +
      (how.log ? ", log" : "") +
      (left > 0 ? `, ${this.slices.length} of ${this.metric.lines.length} slices` : "");
    if (!lines.some((line) => line.x.length)) {
      this.body.append(el("p", {class: "faint empty"}, series[0]?.problem ?? "no point in this stretch"));
      return;
    }
    const marks = this.legend ? [] : series[0].findings;
    this.chart = new Chart(
      this.body,
      {lines, band: series[0].band, marks, onHover: (text) => this.say(text), ...how},
      {width: width - 18, height: this.height - HEAD - (this.legend ? LEGEND : 0)},
    );
  }

  remove() {
    this.chart?.destroy();
    this.chart = null;
  }
}

/** @param {{nonfinite: number}[]} lines @returns {string} points that are no number */
function lost(lines) {
  const count = lines.reduce((sum, line) => sum + line.nonfinite, 0);
  return count ? `, ${number(count)} not finite` : "";
}
