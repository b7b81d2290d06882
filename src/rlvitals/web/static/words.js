/** Verdicts and severities: the same words and symbols everywhere, so that colour is never all there is. */

import {el} from "./dom.js";

/** @type {Record<string, [string, string, string]>} word -> symbol, what is said, style */
const WORDS = {
  act: ["✖", "Act", "act"],
  watch: ["!", "Watch", "watch"],
  healthy: ["✔", "Healthy", "healthy"],
  "cannot judge": ["?", "Cannot judge", "unsure"],
  critical: ["✖", "Critical", "act"],
  warning: ["!", "Warning", "watch"],
  info: ["·", "Info", "unsure"],
};

/**
 * A verdict, severity or status as a badge.
 * @param {string | null | undefined} word
 * @param {boolean} [isShort] the symbol alone; the word is read out all the same
 * @returns {HTMLElement}
 */
export function badge(word, isShort = false) {
  const [symbol, said, style] = WORDS[word ?? ""] ?? ["?", word || "Not judged", "unsure"];
  return el(
    "span",
    {class: `badge ${style}${isShort ? " short" : ""}`, title: said},
    el("span", {"aria-hidden": "true"}, symbol),
    el("span", {class: isShort ? "unseen" : ""}, said),
  );
}

/** @param {string | null | undefined} word @returns {string} the style's name */
export function styleOf(word) {
  return (WORDS[word ?? ""] ?? ["", "", "unsure"])[2];
}

/**
 * A notice in the place of what is not there.
 * @param {string} sentence
 * @param {string} [more]
 * @returns {HTMLElement}
 */
export function notice(sentence, more = "") {
  return el("div", {class: "notice"}, el("p", {}, sentence), more && el("p", {class: "faint"}, more));
}
