/** Further facts about a run, collapsed: problems, trackers, attempts, settings, environment. */

import {el} from "../dom.js";
import {moment} from "../numbers.js";

/** @import {Vitals} from "../../contract.d.ts" */

/** @param {Vitals} facts */
export function about({problems, trackers, attempts, config, environment}) {
  const list = (/** @type {string[]} */ items) =>
    el(
      "ul",
      {},
      items.map((item) => el("li", {}, item)),
    );
  const fold = (/** @type {string} */ title, /** @type {number} */ count, /** @type {() => Node} */ content, isOpen = false) =>
    count > 0 && el("details", {open: isOpen}, el("summary", {}, title), content());
  return el(
    "section",
    {class: "about"},
    fold(`Problems (${problems.length})`, problems.length, () => list(problems), true),
    fold(`Trackers (${trackers.length})`, trackers.length, () => list(trackers.map(plainly))),
    fold(`Attempts (${attempts.length})`, attempts.length - 1, () =>
      list(
        attempts.map(
          ({number, started, from_step: from}) =>
            `${number}: started ${moment(started)}${from === null ? "" : `, from step ${from}`}`,
        ),
      ),
    ),
    fold("Settings", Object.keys(config).length, () => table(flat(config))),
    fold("Environment", Object.keys(environment).length, () => table(flat(environment))),
  );
}

/** @param {object} fields @returns {string} its keys and values, without empty ones */
function plainly(fields) {
  return Object.entries(fields)
    .filter(([, value]) => value !== null && value !== "")
    .map(([key, value]) => `${key} ${value}`)
    .join(", ");
}

/**
 * Nested settings by dotted keys.
 * @param {object} given
 * @param {string} [head]
 * @returns {[string, string][]}
 */
function flat(given, head = "") {
  return Object.entries(given).flatMap(([key, value]) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? flat(value, `${head}${key}.`)
      : [/** @type {[string, string]} */ ([head + key, typeof value === "string" ? value : JSON.stringify(value)])],
  );
}

/** @param {[string, string][]} rows */
function table(rows) {
  return el(
    "div",
    {class: "wide"},
    el(
      "table",
      {class: "facts"},
      rows.map(([key, value]) =>
        el("tr", {}, el("th", {scope: "row", class: "mono"}, key), el("td", {class: "mono"}, value)),
      ),
    ),
  );
}
