/** Elements that screens share: badges of verdicts and severities, notices, links to other views, sections, tables. */

import {el} from "./dom.js";
import * as state from "./state.js";

/** @import {Changes} from "../page.d.ts" */
/** @import {Children} from "./dom.js" */

/** @type {Record<string, [string, string, string]>} word -> symbol, text, style */
const WORDS = {
  act: ["✖", "Act", "act"],
  watch: ["!", "Watch", "watch"],
  healthy: ["✔", "Healthy", "healthy"],
  "cannot judge": ["?", "Cannot judge", "unsure"],
  critical: ["✖", "Critical", "act"],
  warning: ["!", "Warning", "watch"],
  info: ["·", "Remark", "unsure"],
};

/** The most severe first. */
export const VERDICTS = ["act", "watch", "cannot judge", "healthy"];

/**
 * A verdict, severity or status as a badge.
 * @param {string | null | undefined} word
 * @param {boolean} [isShort] only the symbol; screen readers still read the word
 * @returns {HTMLElement}
 */
export function badge(word, isShort = false) {
  const [symbol, label, style] = WORDS[word ?? ""] ?? ["?", word || "Not judged", "unsure"];
  return el(
    "span",
    {class: `badge ${style}${isShort ? " short" : ""}`, title: label},
    el("span", {"aria-hidden": "true"}, symbol),
    el("span", {class: isShort ? "unseen" : ""}, label),
  );
}

/** @param {string} word @returns {string} a severity's symbol */
export function symbolOf(word) {
  return WORDS[word]?.[0] ?? "·";
}

/** @param {string | null | undefined} word @returns {string} the style's name */
export function styleOf(word) {
  return (WORDS[word ?? ""] ?? ["", "", "unsure"])[2];
}

/**
 * A notice in place of missing content.
 * @param {string} sentence
 * @param {string} [more]
 * @returns {HTMLElement}
 */
export function notice(sentence, more = "") {
  return el("div", {class: "notice"}, el("p", {}, sentence), more && el("p", {class: "faint"}, more));
}

/**
 * A link to another view that does not reload the page. The browser handles clicks with a modifier key.
 * @param {Record<string, unknown>} properties
 * @param {Changes} changes
 * @param {string} [screen]
 * @param {...Children} children
 */
export function link(properties, changes, screen, ...children) {
  const click = (/** @type {MouseEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    state.go(changes, {screen});
  };
  return el("a", {...properties, href: state.address(changes, screen), on: {click}}, ...children);
}

/**
 * A part of a screen under its heading; false if it has no content.
 * @param {Children} title
 * @param {...(Children | 0)} content
 */
export function section(title, ...content) {
  return content.some(Boolean) && el("section", {class: "part"}, el("h2", {}, title), ...content);
}

/**
 * A table that scrolls sideways if it is wider than the page.
 * @param {string} label
 * @param {string} style
 * @param {...Children} content
 */
export function wideTable(label, style, ...content) {
  return el("div", {class: "wide", tabindex: 0, role: "region", "aria-label": label}, el("table", {class: style}, ...content));
}

/** @param {...Children} titles @returns {HTMLElement} a table's head */
export function head(...titles) {
  const cells = titles.map((title) => el("th", {scope: "col"}, title));
  return el("thead", {}, el("tr", {}, cells));
}
