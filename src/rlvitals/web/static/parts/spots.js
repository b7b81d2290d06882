/** Places in rollouts that findings cite: their addresses, and their words in a text. */

import {ask} from "../api.js";
import {atMostEvery, el} from "../dom.js";
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
 * What findings cite of a run's rollouts, by rule. The doctor may take a while, so it is asked beside everything else.
 * @param {string} run
 * @param {AbortSignal} signal
 * @param {number} pause milliseconds between two questions
 * @param {() => void} onNews
 */
export function citations(run, signal, pause, onNews) {
  /** @type {Map<string, CitedFacts[]>} */
  const cited = new Map();
  const asking = atMostEvery(pause, () => {
    ask("findings", {run}, signal)
      .then(({findings, judging}) => {
        for (const {rule, cited: places} of findings) if (places.length) cited.set(rule, places);
        if (judging) asking.ask();
        if (cited.size) onNews();
      })
      .catch(() => {});
  });
  asking.ask();
  return {
    /** The places of the finding that was picked. */
    places: () => cited.get(state.get("cited")),
    /** @param {import("../../page.d.ts").Changes} without where to go when none is picked */
    picker: (without) => {
      if (!cited.size) return null;
      const select = el(
        "select",
        {
          "aria-label": "Cited by a finding",
          on: {
            change: () => {
              const place = cited.get(select.value)?.[0];
              const rule = select.value;
              select.blur();
              state.go(place ? {page: null, ...spotOf(place, rule)} : {...without, cited: null, spot: null});
            },
          },
        },
        el("option", {value: ""}, "cited by a finding"),
        [...cited.keys()].map((rule) => el("option", {value: rule, selected: rule === state.get("cited")}, rule)),
      );
      return select;
    },
    stop: asking.stop,
  };
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
