/** Tables of the Compare screen: settings that differ, best and final values, what one run alone has. */

import {calm, el, fill} from "../dom.js";
import {explainable} from "../drawer.js";
import {number} from "../numbers.js";
import {head, wideTable} from "../pieces.js";
import * as state from "../state.js";
import {lineStyle} from "../theme.js";

/** @import {Compared} from "../../contract.d.ts" */

const WORDS = /** @type {Record<string, string>} */ ({
  same: "",
  convert: "≈ converted",
  caution: "! with care",
  different: "✖ not the same quantity",
});

/** @param {number} place a run's line: its colour and its dash */
export function swatch(place) {
  const {stroke} = lineStyle(place);
  const made = el("span", {class: `swatch dash-${place % 7}`, "aria-hidden": "true"});
  made.style.borderTopColor = stroke;
  return made;
}

/** @param {Record<string, unknown[]>} found @param {string[]} names */
export function differences(found, names) {
  const rows = Object.entries(found);
  if (!rows.length) return el("p", {class: "faint"}, "None.");
  return wideTable(
    "Settings that differ",
    "",
    head("Setting", ...names.map((name, at) => [swatch(at), " ", name])),
    el(
      "tbody",
      {},
      rows.map(([key, values]) =>
        el(
          "tr",
          {},
          el("th", {scope: "row", class: "mono"}, key),
          values.map((value) =>
            el("td", {class: "mono"}, value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value)),
          ),
        ),
      ),
    ),
  );
}

/**
 * @param {Compared} told
 * @param {string[]} names
 * @param {string[]} wanted
 */
export function table(told, names, wanted) {
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
      ...told.metrics
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
          names.map((name, at) => el("th", {colspan: 2, scope: "colgroup"}, swatch(at), " ", name)),
          el("th", {rowspan: 2, scope: "col"}, "Differs from step"),
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
