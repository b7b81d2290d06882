/** Tables of the Compare screen: settings that differ, best and final values, metrics that only one run logs. */

import {calm, el, fill, svg} from "../dom.js";
import {explainable} from "../drawer.js";
import {number} from "../numbers.js";
import {head, wideTable} from "../pieces.js";
import * as state from "../state.js";
import {stylesOf} from "../runstyles.js";
import {DOTS, lineStyle} from "../theme.js";

/** @import {Compared, ComparedMetric} from "../../contract.d.ts" */

const WORDS = /** @type {Record<string, string>} */ ({
  same: "",
  convert: "≈ converted",
  caution: "! with care",
  different: "✖ not the same quantity",
});

/** @param {number} place the number of a run's line style: its colour and dash */
export function swatch(place) {
  const {stroke, dash} = lineStyle(place);
  return drawnLine(stroke, dash);
}

/** @param {boolean} isHeldOut whether to show the style of evaluation or of training lines, without a colour */
export function streamSwatch(isHeldOut) {
  return drawnLine("currentColor", isHeldOut ? DOTS : []);
}

/** @param {string} stroke @param {number[]} dash */
function drawnLine(stroke, dash) {
  const made = svg("svg", {class: "swatch", width: 26, height: 6, "aria-hidden": "true"});
  made.append(svg("line", {x1: 0, x2: 26, y1: 3, y2: 3, stroke, "stroke-width": 3, "stroke-dasharray": dash.join(" ")}));
  return made;
}

/** @param {string[]} names @param {number} at @returns {Element} the swatch of one of several runs */
export function runSwatch(names, at) {
  return swatch(stylesOf(names).get(names[at]) ?? at);
}

/** @param {Record<string, unknown[]>} found @param {string[]} names */
export function differences(found, names) {
  const rows = Object.entries(found);
  if (!rows.length) return el("p", {class: "faint"}, "None.");
  return wideTable(
    "Settings that differ",
    "",
    head("Setting", ...names.map((name, at) => [runSwatch(names, at), " ", name])),
    el(
      "tbody",
      {},
      rows.map(([key, values]) =>
        el(
          "tr",
          {},
          el("th", {scope: "row", class: "mono"}, key),
          values.map((value) => el("td", {class: "mono"}, written(value))),
        ),
      ),
    ),
  );
}

/** @param {unknown} value */
function written(value) {
  if (value === null || typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Settings that differ even between two starts of the same run. @param {Record<string, unknown[]>} found @param {string[]} names */
export function folded(found, names) {
  const count = Object.keys(found).length;
  if (!count) return null;
  const words = `${count} more: ids, paths, times, machines, versions, and copies of other settings`;
  return el("details", {}, el("summary", {}, words), differences(found, names));
}

/**
 * The steps at which a metric's curves differ from the first run's by more than the noise of both.
 * @param {ComparedMetric} row
 * @param {string[]} names
 */
export function parting(row, names) {
  const found = (/** @type {(number | null)[]} */ steps) =>
    names.map((name, at) => ({name, at, step: steps[at] ?? null})).filter(({step}) => step !== null);
  const listed = (/** @type {string} */ words, /** @type {{name: string, at: number, step: number | null}[]} */ runs) =>
    el(
      "p",
      {class: "small"},
      words,
      runs.flatMap(({name, at, step}, place) => [place ? ", " : "", runSwatch(names, at), ` ${name} at step ${number(step)}`]),
    );
  const bands = found(row.bands);
  if (bands.length) return listed("The band of its seeds differs from the first run's: ", bands);
  const parted = found(row.parts);
  if (parted.length) return listed("Differs from the first run beyond noise: ", parted);
  return el("p", {class: "faint small"}, row.common_steps ? "No difference beyond noise." : "");
}

/**
 * @param {Compared} compared
 * @param {string[]} names
 * @param {string[]} wanted
 */
export function table(compared, names, wanted) {
  const field = el("input", {
    type: "search",
    placeholder: "filter metrics",
    "aria-label": "Filter metrics",
    on: {input: calm(() => draw(), 100)},
  });
  const body = el("tbody");
  const mark = (/** @type {string} */ name, /** @type {boolean} */ isOn) =>
    state.go({metric: isOn ? [...wanted, name] : wanted.filter((other) => other !== name)});
  const draw = () => {
    const text = field.value.toLowerCase();
    fill(
      body,
      ...compared.metrics
        .filter((row) => row.name.toLowerCase().includes(text))
        .slice(0, 300)
        .map((row) =>
          el(
            "tr",
            {},
            el(
              "td",
              {},
              el("input", {
                type: "checkbox",
                checked: wanted.includes(row.name),
                disabled: row.verdict === "different",
                "aria-label": `Curve of ${row.name}`,
                on: {change: (event) => mark(row.name, event.target.checked)},
              }),
            ),
            el(
              "th",
              {scope: "row"},
              explainable(row.name),
              row.verdict !== "same" &&
                el(
                  "div",
                  {class: `small ${row.verdict === "different" ? "act" : "watch"}`},
                  WORDS[row.verdict],
                  row.note ? `: ${row.note}` : "",
                ),
            ),
            row.best.flatMap((best) => [
              el(
                "td",
                {class: "num"},
                number(best?.best),
                best?.best_step != null && el("span", {class: "faint small"}, ` @${best.best_step}`),
              ),
              el("td", {class: "num"}, number(best?.last)),
            ]),
            el("td", {class: "num"}, row.verdict === "different" ? "not compared" : number(row.first_divergence)),
            el("td", {class: "num"}, number(earliest(row.parts))),
          ),
        ),
    );
  };
  draw();
  return el(
    "div",
    {},
    el("div", {class: "controls"}, field),
    wideTable(
      "Best and final values",
      "compared",
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", {rowspan: 2}, el("span", {class: "unseen"}, "Curve")),
          el("th", {rowspan: 2, scope: "col"}, "Metric"),
          names.map((name, at) => el("th", {colspan: 2, scope: "colgroup"}, runSwatch(names, at), " ", name)),
          el("th", {rowspan: 2, scope: "col"}, "Differs from step"),
          el("th", {rowspan: 2, scope: "col"}, "Beyond noise from"),
        ),
        el(
          "tr",
          {},
          names.flatMap(() => ["best", "final"].map((title) => el("th", {scope: "col"}, title))),
        ),
      ),
      body,
    ),
  );
}

/** @param {(number | null)[]} steps */
function earliest(steps) {
  const known = steps.filter((step) => step !== null);
  return known.length ? Math.min(...known) : null;
}

/** @param {Record<string, string[]>} given */
export function only(given) {
  const rows = Object.entries(given);
  return rows.length
    ? el(
        "ul",
        {},
        rows.map(([name, metrics]) =>
          el(
            "li",
            {},
            `${name}: `,
            el(
              "span",
              {class: "mono small"},
              metrics.slice(0, 40).join(", "),
              metrics.length > 40 ? ` and ${metrics.length - 40} more` : "",
            ),
          ),
        ),
      )
    : null;
}
