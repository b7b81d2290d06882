/** What else is known of a run: problems, trackers, attempts, settings, environment; folded away. */

import {el} from "../dom.js";
import {moment} from "../numbers.js";

/** @param {any} facts */
export function about(facts) {
  const list = (/** @type {any[]} */ items) =>
    el(
      "ul",
      {},
      items.map((item) => el("li", {}, typeof item === "string" ? item : JSON.stringify(item))),
    );
  const fold = (/** @type {string} */ title, /** @type {any} */ content, isOpen = false) =>
    Boolean(content) && el("details", {open: isOpen}, el("summary", {}, title), content);
  const trackers = Array.isArray(facts.trackers)
    ? facts.trackers
    : Object.entries(facts.trackers ?? {}).map(([name, told]) => `${name}: ${plainly(told)}`);
  return el(
    "section",
    {class: "about"},
    fold(`Problems (${facts.problems?.length})`, facts.problems?.length && list(facts.problems), true),
    fold(
      `Trackers (${trackers.length})`,
      trackers.length &&
        list(trackers.map((/** @type {any} */ item) => (typeof item === "string" ? item : plainly(item)))),
    ),
    fold(
      `Attempts (${facts.attempts?.length})`,
      facts.attempts?.length > 1 &&
        list(
          facts.attempts.map(
            (/** @type {any} */ item) =>
              `${item.number}: started ${moment(item.started)}${item.from_step === null ? "" : `, from step ${item.from_step}`}`,
          ),
        ),
    ),
    fold("Settings", Object.keys(facts.config ?? {}).length && table(flat(facts.config))),
    fold("Environment", Object.keys(facts.environment ?? {}).length && table(flat(facts.environment))),
  );
}

/** @param {any} told @returns {string} */
function plainly(told) {
  return typeof told === "object" && told
    ? Object.entries(told)
        .filter(([, value]) => value !== null && value !== "")
        .map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`)
        .join(", ")
    : String(told);
}

/**
 * Nested settings by dotted keys.
 * @param {any} given
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
