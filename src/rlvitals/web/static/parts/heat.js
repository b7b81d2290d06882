/** The table of advantages: one row per rollout, one column per turn, blue if positive, orange if negative. */

import {el} from "../dom.js";
import {number} from "../numbers.js";
import {head, wideTable} from "../pieces.js";
import * as state from "../state.js";

/** @import {GroupFacts, RolloutFacts} from "../../contract.d.ts" */

const MOST_TURNS = 60;
/** An advantage below this is written as 0.00 without colour: with equal rewards it is only a rounding error. */
const LEAST = 0.005;

/**
 * @param {GroupFacts} group
 * @param {number} chosen
 * @returns {HTMLElement}
 */
export function heatTable(group, chosen) {
  const rollouts = group.rollouts ?? [];
  const turns = Math.min(Math.max(0, ...rollouts.map((rollout) => rollout.turns?.length ?? 0)), MOST_TURNS);
  const all = rollouts.flatMap((rollout) => rollout.turns ?? []);
  const largest = Math.max(LEAST, ...all.map((turn) => size(turn.advantage)));
  const titles = ["#", "Reward", "Outcome", ...Array.from({length: turns}, (_, place) => `T${place + 1}`)];
  return wideTable(
    "Advantages turn by turn",
    "heat",
    head(...titles),
    el(
      "tbody",
      {},
      rollouts.map((rollout, place) => row(rollout, place + 1, turns, largest, chosen)),
    ),
  );
}

/**
 * @param {RolloutFacts} rollout
 * @param {number} place
 * @param {number} turns
 * @param {number} largest
 * @param {number} chosen
 */
function row(rollout, place, turns, largest, chosen) {
  const cells = Array.from({length: turns}, (_, at) => {
    const turn = rollout.turns?.[at];
    if (!turn) return el("td", {class: "none"}, "–");
    const cell = el(
      "td",
      {
        class: "num",
        title: [turn.outcome, ...(turn.calls ?? []).map((call) => call.name)].filter(Boolean).join(" · "),
      },
      signed(turn.advantage),
    );
    const share = size(turn.advantage) / largest;
    if (share) cell.style.backgroundColor = shade(Number(turn.advantage) > 0 ? "--above" : "--below", share);
    return cell;
  });
  return el(
    "tr",
    {class: place === chosen ? "here" : "", on: {click: () => state.go({rollout: place}, {replace: true})}},
    el(
      "th",
      {scope: "row"},
      el("button", {class: "plain", "aria-label": `Rollout ${place}`, "aria-pressed": String(place === chosen)}, place),
    ),
    el("td", {class: "num"}, number(rollout.reward)),
    el("td", {}, rollout.outcome || rollout.stop || "–"),
    cells,
  );
}

/** @param {string} colour @param {number} share @returns {string} pale enough that the number stays readable */
function shade(colour, share) {
  return `color-mix(in srgb, var(${colour}) ${Math.round(8 + share * 42)}%, transparent)`;
}

/** @param {unknown} value @returns {number} */
function size(value) {
  return typeof value === "number" && Math.abs(value) >= LEAST && Number.isFinite(value) ? Math.abs(value) : 0;
}

/** @param {number | string | undefined} value @returns {string} */
function signed(value) {
  if (typeof value !== "number") return value ?? "·";
  return `${!size(value) ? "" : value > 0 ? "+" : "−"}${Math.abs(value).toFixed(2)}`;
}
