/** The explain drawer: a metric's meaning, formula, typical range, and what to do when it is off. */

import {ask} from "./api.js";
import {byId, el, fill} from "./dom.js";
import {number, range} from "./numbers.js";
import * as state from "./state.js";

/** @import {Band, Explained} from "../contract.d.ts" */
/** @import {Children} from "./dom.js" */

const DIRECTIONS = /** @type {Record<string, string>} */ ({
  up: "higher is better",
  down: "lower is better",
  none: "no direction",
  band: "healthy in a range",
});
let requested = "";
let wasPanel = false;

/** @param {string} name opens the drawer on a metric, or closes it */
export function explain(name) {
  wasPanel = document.activeElement?.classList.contains("panel") ?? false;
  state.go({explain: state.get("explain") === name ? null : name});
}

/**
 * A metric's name as a button that opens its explanation.
 * @param {string} name
 * @param {string} [text]
 * @returns {HTMLElement}
 */
export function explainable(name, text = name) {
  return el(
    "button",
    {class: "explain", title: `${name}: explain`, data: {explains: name}, on: {click: () => explain(name)}},
    text,
  );
}

/** @param {string} name the metric that was explained */
function giveFocusBack(name) {
  if (document.activeElement !== document.body) return; // the focus has moved elsewhere
  const wanted = CSS.escape(name);
  const selector = wasPanel ? `.panel[data-metric="${wanted}"]` : `#content [data-explains="${wanted}"]`;
  const place = /** @type {HTMLElement | null} */ (document.querySelector(selector));
  (place ?? byId("content")).focus({preventScroll: true});
}

/** Shows the explanation that the address names. */
export async function showExplanation() {
  const drawer = byId("drawer");
  const name = state.get("explain");
  const before = requested;
  requested = name;
  if (!name) {
    const hadFocus = drawer.contains(document.activeElement);
    drawer.hidden = true;
    if (hadFocus) setTimeout(() => giveFocusBack(before), 50); // after the panels were laid out for the new width
    return;
  }
  const made = await ask("explain", {name, run: state.get("run")}).then(
    (entry) => content(name, entry),
    (error) => [top(name), el("p", {class: "mono faint"}, name), el("p", {}, String(error.message ?? error))],
  );
  if (requested !== name) return;
  fill(drawer, ...made);
  drawer.hidden = false;
  drawer.scrollTop = 0;
  drawer.querySelector("button")?.focus();
}

/** @param {string} title */
function top(title) {
  const how = {class: "plain", "aria-label": "Close the explanation", on: {click: () => state.go({explain: null})}};
  return el("header", {}, el("h2", {}, title), el("button", how, "✕"));
}

/**
 * @param {string} name
 * @param {Explained} entry
 */
function content(name, entry) {
  const sources = entry.sources.filter((source) => source.definition || source.trap);
  return [
    top(entry.title),
    el("p", {class: "mono faint"}, name, entry.id === name ? "" : ` → ${entry.id}`),
    el("p", {}, entry.what),
    el(
      "p",
      {class: "faint"},
      [DIRECTIONS[entry.direction], entry.unit && `in ${entry.unit}`].filter(Boolean).join(" · "),
    ),
    part("Formula", entry.formula && el("pre", {}, entry.formula), entry.estimator && el("p", {}, entry.estimator)),
    part("Typical range", ...entry.bands.map(band)),
    part(
      "When it is off",
      ...entry.symptoms.map((symptom) =>
        el(
          "div",
          {class: "symptom"},
          el("p", {class: "strong"}, symptom.when),
          el("p", {}, symptom.means),
          el("p", {class: "do"}, symptom.do),
        ),
      ),
    ),
    part(
      "Worth knowing",
      entry.notes && el("p", {}, entry.notes),
      ...sources.map((source) =>
        el(
          "p",
          {},
          el("code", {}, source.framework),
          " ",
          source.definition ?? "",
          " ",
          source.trap && el("strong", {}, source.trap),
        ),
      ),
    ),
    part("Other names", aliases(entry.aliases)),
    entry.page && el("p", {}, el("a", {href: entry.page, target: "_blank", rel: "noreferrer"}, "In the documentation")),
  ].filter(Boolean);
}

/**
 * @param {string} title
 * @param {...Children} content
 */
function part(title, ...content) {
  const there = content.filter(Boolean);
  return there.length ? el("section", {}, el("h3", {}, title), ...there) : null;
}

/** @param {Band} given */
function band(given) {
  const size = given.min_parameters && `from ${number(given.min_parameters)} parameters`;
  const where = [given.algorithm, given.stage, size, given.estimator].filter((word) => word && word !== "any").join(", ");
  return el(
    "p",
    {},
    el("strong", {}, range([given.low, given.high])),
    where ? ` (${where})` : "",
    given.note ? ` ${given.note}` : "",
    el("span", {class: "faint"}, ` — ${given.source}`),
  );
}

/** @param {Record<string, string[]>} names */
function aliases(names) {
  const rows = Object.entries(names);
  if (!rows.length) return null;
  return el(
    "table",
    {},
    rows.map(([framework, list]) =>
      el(
        "tr",
        {},
        el("th", {scope: "row"}, framework),
        el("td", {class: "mono"}, list.join(", ")),
      ),
    ),
  );
}
