/** Places in rollouts that findings cite: their addresses, and their words in a text. */

import {el} from "../dom.js";
import * as state from "../state.js";

/** @import {CitedFacts} from "../../contract.d.ts" */

/**
 * The address of a place on the Rollouts screen.
 * @param {CitedFacts} place
 * @param {string} rule whose finding cites it
 */
export function spotOf(place, rule) {
  const {step, group, rollout, turn, part, start, end} = place;
  return {step, group, rollout, cited: rule, spot: [step, group, rollout, turn, part, start, end].join(":")};
}

/**
 * What is marked of a turn: the stretch that the address names, if it is of this rollout and turn.
 * @param {number} step
 * @param {number} group
 * @param {number} rollout
 * @param {number} turn
 * @returns {{part: string, start: number, end: number} | null}
 */
export function spotIn(step, group, rollout, turn) {
  const [s, g, r, t, part, start, end] = state.get("spot").split(":");
  const isHere = [s, g, r, t].map(Number).join() === [step, group, rollout, turn].join();
  return isHere && part ? {part, start: Number(start), end: Number(end)} : null;
}

/**
 * A text with a stretch of it marked. Places are counted in characters, not in halves of them.
 * @param {string} given
 * @param {{start: number, end: number}} spot
 * @returns {(Node | string)[]}
 */
export function spotted(given, spot) {
  const letters = Array.from(given);
  const piece = (/** @type {number} */ from, /** @type {number} */ to) => letters.slice(from, to).join("");
  return [piece(0, spot.start), el("mark", {class: "spot"}, piece(spot.start, spot.end)), piece(spot.end, letters.length)];
}
