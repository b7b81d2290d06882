/** Lists of the Rollouts screen: the groups of a step, the hits of a search, and the places that a finding cites. */

import {el} from "../dom.js";
import {number} from "../numbers.js";
import {notice} from "../pieces.js";
import * as state from "../state.js";
import {spotOf} from "./spots.js";

/** @import {CitedFacts, GroupFacts, HitFacts, ListedGroup} from "../../contract.d.ts" */

/** @param {GroupFacts} group @returns {string} */
export function kept(group) {
  const word =
    group.kept === true
      ? "trained on"
      : group.kept === false
        ? `filtered: ${group.reason || "no reason recorded"}`
        : "not decided";
  return [`mean ${number(group.mean)} ± ${number(group.std)}`, word, group.early ? `${group.early} ended early` : ""]
    .filter(Boolean)
    .join(" · ");
}

/**
 * @param {ListedGroup[]} groups
 * @param {number} chosen
 */
export function groupList(groups, chosen) {
  return groups.map((group) =>
    el(
      "button",
      {
        class: `group ${group.number === chosen ? "here" : ""}`,
        "aria-current": group.number === chosen && "true",
        on: {click: () => state.go({group: group.number, rollout: null})},
      },
      el(
        "span",
        {class: "line"},
        el("strong", {}, group.number),
        el("span", {class: "num"}, `${number(group.mean)} ± ${number(group.std)}`),
        el("span", {class: "faint small"}, `n ${group.rollouts}`),
        el(
          "span",
          {class: `small ${group.kept === false ? "watch" : "healthy"}`},
          group.kept === true ? "✔ kept" : group.kept === false ? "✂ filtered" : "",
        ),
      ),
      el("span", {class: "small clip"}, group.prompt),
      group.kept === false && group.reason && el("span", {class: "small faint"}, group.reason),
      el(
        "span",
        {class: "small faint"},
        Object.entries(group.outcomes)
          .map(([name, count]) => `${name} ${count}`)
          .join(", "),
      ),
    ),
  );
}

/**
 * @param {HitFacts[]} hits
 * @param {(hit: HitFacts) => boolean} isHere
 */
export function hitList(hits, isHere) {
  if (!hits.length) return [notice("No rollouts match.")];
  return hits.map((hit) =>
    el(
      "button",
      {
        class: `group ${isHere(hit) ? "here" : ""}`,
        on: {click: () => state.go({step: hit.step, group: hit.group, rollout: hit.rollout})},
      },
      el(
        "span",
        {class: "line"},
        el("strong", {}, `step ${hit.step}`),
        el("span", {class: "small faint"}, `group ${hit.group}, rollout ${hit.rollout}`),
        el("span", {class: "num"}, number(hit.reward)),
      ),
      el("span", {class: "small clip"}, hit.prompt),
      el("span", {class: "small faint"}, [hit.outcome, hit.stop].filter(Boolean).join(" · ")),
    ),
  );
}

/**
 * The places that a finding cites.
 * @param {CitedFacts[]} places
 * @param {string} rule
 * @param {(place: CitedFacts) => boolean} isHere
 */
export function citedList(places, rule, isHere) {
  return places.map((place) =>
    el(
      "button",
      {class: `group ${isHere(place) ? "here" : ""}`, on: {click: () => state.go(spotOf(place, rule))}},
      el(
        "span",
        {class: "line"},
        el("strong", {}, `step ${place.step}`),
        el("span", {class: "small faint"}, `group ${place.group}, rollout ${place.rollout}`),
        el("span", {class: "num"}, place.reward === null ? "" : number(place.reward)),
      ),
      el("span", {class: "small clip mono"}, place.quote),
    ),
  );
}
