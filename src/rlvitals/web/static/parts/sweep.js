/** A sweep on the Compare screen: parallel coordinates, the importance of settings, the runs in the chosen ranges. */

import {ask} from "../api.js";
import {el, fill} from "../dom.js";
import {counted, number} from "../numbers.js";
import {head, link, notice, section, wideTable} from "../pieces.js";
import * as state from "../state.js";
import {axesOf, drawParallel, kept} from "./parallel.js";

/** @import {Importance, Sweep} from "../../contract.d.ts" */

const LISTED = 50;

/**
 * @param {string[]} names
 * @param {string[]} metrics the possible targets
 * @param {AbortSignal} signal
 * @returns {HTMLElement} filled when the answer arrives
 */
export function sweepOf(names, metrics, signal) {
  const place = el("div", {class: "sweep"});
  look().catch((error) => {
    if (!signal.aborted) fill(place, notice(error instanceof Error ? error.message : String(error)));
  });
  return place;

  async function look() {
    const sweep = await ask("sweep", {run: names, target: state.get("target") || null}, signal);
    if (signal.aborted || !place.isConnected) return;
    if (!sweep.settings.length) {
      fill(place, el("p", {class: "faint"}, "No setting differs between these runs."));
      return;
    }
    const drawing = el("div");
    fill(place, targetField(sweep, metrics), drawing, left(sweep), importance(sweep));
    drawParallel(drawing, sweep);
  }
}

/** @param {Sweep} sweep @param {string[]} metrics */
function targetField(sweep, metrics) {
  const columns = metrics.flatMap((name) => [`${name}.last`, `${name}.best`]);
  const options = [...new Set([sweep.target, ...columns])].slice(0, 400);
  const field = el(
    "select",
    {"aria-label": "Target", on: {change: () => state.go({target: field.value, range: null})}},
    options.map((name) => el("option", {value: name, selected: name === sweep.target}, name)),
  );
  const known = sweep.runs.filter((run) => run.target !== null).length;
  return el(
    "div",
    {class: "controls"},
    el("label", {}, "Target ", field),
    el("span", {class: "faint"}, `${counted(sweep.runs.length, "run")}, ${known} with the target`),
    sweep.left_out > 0 && el("span", {class: "faint"}, `${sweep.left_out} more settings differ`),
  );
}

/** The runs in the chosen ranges. @param {Sweep} sweep */
function left(sweep) {
  const places = kept(axesOf(sweep), sweep.runs.length);
  if (places.length === sweep.runs.length) return null;
  const runs = places
    .map((place) => sweep.runs[place])
    .sort((one, other) => (other.target ?? -Infinity) - (one.target ?? -Infinity));
  const [base, ...others] = runs.map((run) => run.run);
  return el(
    "div",
    {class: "left"},
    el(
      "div",
      {class: "controls"},
      el("strong", {}, `${places.length} of ${counted(sweep.runs.length, "run")} in the ranges`),
      others.length > 0 && link({class: "button"}, {run: base, with: others, range: null}, "compare", "Compare these"),
      base && link({class: "button"}, {run: base, also: others}, "metrics", "Overlay on Metrics"),
      el("button", {on: {click: () => state.go({range: null})}}, "Every run"),
    ),
    el(
      "ul",
      {class: "plainlist"},
      runs
        .slice(0, LISTED)
        .map((run) =>
          el(
            "li",
            {},
            link({class: "mono"}, {run: run.run}, "vitals", run.run),
            el("span", {class: "num"}, number(run.target)),
          ),
        ),
    ),
  );
}

/** @param {Sweep} sweep */
function importance(sweep) {
  const bar = (/** @type {Importance} */ one) => {
    const filled = el("span", {class: `strength ${(one.strength ?? 0) < 0 ? "below" : "above"}`});
    filled.style.width = `${Math.abs(one.strength ?? 0) * 5}rem`;
    return one.strength === null ? "" : filled;
  };
  const correlation = (/** @type {Importance} */ one) => {
    if (one.strength === null) return "–";
    return one.kind === "category" ? number(one.strength) : `${one.strength > 0 ? "+" : ""}${number(one.strength)}`;
  };
  return section(
    "Importance of settings",
    wideTable(
      "Importance of settings",
      "importance",
      head("Setting", "Rank correlation", unseen("Size"), "Runs", unseen("In words")),
      el(
        "tbody",
        {},
        sweep.importance.map((one) =>
          el(
            "tr",
            {},
            el("th", {scope: "row", class: "mono"}, one.key),
            el("td", {class: "num"}, correlation(one)),
            el("td", {}, bar(one)),
            el("td", {class: "num"}, one.n),
            el("td", {class: "faint small"}, one.is_clear && one.kind === "number" ? direction(one) : one.note),
          ),
        ),
      ),
    ),
    el(
      "p",
      {class: "faint small"},
      `Spearman's rank correlation with ${sweep.target}. Correlation is not causation. A setting whose best value lies in the middle is near 0, and settings that were changed together cannot be distinguished.`,
    ),
  );
}

/** @param {string} title */
function unseen(title) {
  return el("span", {class: "unseen"}, title);
}

/** @param {Importance} one */
function direction(one) {
  return (one.strength ?? 0) > 0 ? "larger values go with a larger target" : "larger values go with a smaller target";
}
