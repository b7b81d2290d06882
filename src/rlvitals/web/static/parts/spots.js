/** Places in rollouts that findings cite: their addresses, and marks in the text. */

import {ask} from "../api.js";
import {atMostEvery, el} from "../dom.js";
import * as state from "../state.js";

/** @import {CitedFacts} from "../../contract.d.ts" */

/**
 * The address of a place on the Rollouts screen.
 * @param {CitedFacts} place
 * @param {string} rule the rule whose finding cites it
 */
export function spotOf(place, rule) {
  const {step, group, rollout, turn, part, start, end} = place;
  return {step, group, rollout, cited: rule, spot: [step, group, rollout, turn, part, start, end].join(":")};
}

/**
 * The places that findings cite in a run's rollouts, by rule. Judging may take a while, so they are requested in the
 * background.
 * @param {string} run
 * @param {AbortSignal} signal
 * @param {number} pause milliseconds between two requests
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
    /** The places of the selected finding. */
    places: () => cited.get(state.get("cited")),
    /** @param {import("../../page.d.ts").Changes} without changes of the address when none is selected */
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
 * The marked range of a turn: the one in the address, if it belongs to this rollout and turn.
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
 * A text with a marked range. Positions count code points, not UTF-16 units.
 * @param {string} given
 * @param {{start: number, end: number}} spot
 * @returns {(Node | string)[]}
 */
export function spotted(given, spot) {
  const letters = Array.from(given);
  const piece = (/** @type {number} */ from, /** @type {number} */ to) => letters.slice(from, to).join("");
  return [piece(0, spot.start), el("mark", {class: "spot"}, piece(spot.start, spot.end)), piece(spot.end, letters.length)];
}
