/** One vital sign: its value, its curve, its typical range, its change, and the severity of its findings. */

import {el} from "../dom.js";
import {explainable} from "../drawer.js";
import {number, range} from "../numbers.js";
import {badge, link, styleOf} from "../pieces.js";
import {spark} from "../spark.js";

/** @import {TileFacts} from "../../contract.d.ts" */

/** @param {TileFacts} tile */
export function tile(tile) {
  const isFound = tile.status !== "ok";
  return el(
    "article",
    {class: `tile ${isFound ? styleOf(tile.status) : ""}`, data: {tile: tile.name}},
    el(
      "header",
      {},
      el("h2", {}, explainable(tile.name, tile.title)),
      isFound && badge(tile.status, true),
    ),
    el(
      "p",
      {class: "value"},
      el("span", {data: {value: ""}}, number(tile.value)),
      tile.unit && !["none", "1"].includes(tile.unit) && el("span", {class: "unit"}, tile.unit),
    ),
    link(
      {class: "sparklink", "aria-label": `${tile.title}: chart`},
      {one: tile.name},
      "metrics",
      spark(tile.spark, tile.band),
    ),
    el("p", {class: "small faint", title: "Levels are means of a tenth of the points."}, tile.change?.told ?? "too few points for a change", range(tile.band) && ` · typical ${range(tile.band)}`),
    isFound && el("p", {class: "small why"}, tile.why),
    tile.slices.length > 0 && division(tile),
  );
}

/** @type {Set<string>} the tiles whose slices are open; kept when tiles are drawn again */
const unfolded = new Set();

/** @param {TileFacts} tile its slices, collapsed at first */
function division({name, divided_by, slices}) {
  const fold = el(
    "details",
    {
      class: "small slices",
      open: unfolded.has(name),
      on: {toggle: () => unfolded[fold.open ? "add" : "delete"](name)},
    },
    el("summary", {}, `by ${divided_by}`),
    el(
      "table",
      {},
      el(
        "tbody",
        {},
        slices.map((slice) =>
          el(
            "tr",
            {},
            el("th", {scope: "row"}, link({title: slice.name}, {one: slice.name}, "metrics", slice.label)),
            el("td", {class: "num"}, number(slice.value)),
          ),
        ),
      ),
    ),
  );
  return fold;
}
