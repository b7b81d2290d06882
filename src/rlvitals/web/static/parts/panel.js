/** One panel of the Metrics screen: what it is, its last value, its chart, how many points are shown of how many. */

import {Chart} from "../charts.js";
import {el} from "../dom.js";
import {explainable} from "../drawer.js";
import {howMany, lineOf} from "../lines.js";
import {number} from "../numbers.js";
import * as state from "../state.js";

/** @typedef {import("../../contract.d.ts").ListedMetric & {streams: string[]}} Metric Of both streams. */
/** @typedef {import("../series.js").Series} Series */

const HEAD = 62;

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
    /** @type {Series | null} */
    this.drawn = null;
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
        el("h3", {}, explainable(metric.name, metric.title)),
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
    );
    this.say("");
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
    this.readout.textContent = text || number(this.metric.last);
  }

  /** @param {number | null | undefined} value what a new row says */
  heard(value) {
    if (value === undefined) return;
    this.metric.last = value;
    this.say("");
  }

  /**
   * @param {Series} series
   * @param {Partial<import("../charts.js").Picture>} how
   * @param {number} width
   */
  draw(series, how, width) {
    if (this.drawn === series) return;
    this.drawn = series;
    this.chart?.destroy();
    this.chart = null;
    this.body.replaceChildren();
    const lines = series.lines.map((line, place) => lineOf(line, line.stream, place));
    this.count.textContent = howMany(lines) + lost(series.lines) + (how.log ? ", log" : "");
    if (!lines.some((line) => line.x.length)) {
      this.body.append(el("p", {class: "faint empty"}, series.problem ?? "no point in this stretch"));
      return;
    }
    this.chart = new Chart(
      this.body,
      {lines, band: series.band, marks: series.findings, onHover: (text) => this.say(text), ...how},
      {width: width - 18, height: this.height - HEAD},
    );
  }

  remove() {
    this.chart?.destroy();
    this.chart = null;
  }
}

/** @param {Series["lines"]} lines @returns {string} points that are no number */
function lost(lines) {
  const count = lines.reduce((sum, line) => sum + line.nonfinite, 0);
  return count ? `, ${number(count)} not finite` : "";
}
