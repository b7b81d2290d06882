/** The keyboard: the actions of keys, and the list of them that `?` shows. */

import {el, isTyping} from "./dom.js";

/** @import {Key} from "../page.d.ts" */

/** Keys that move a slider. */
const SLIDES = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"]);

/** @type {Map<string, Key[]>} keys by the part of the page */
const known = new Map();

/**
 * Replaces the keys of a part of the page.
 * @param {string} part
 * @param {Key[]} keys
 */
export function setKeys(part, keys) {
  known.set(part, keys);
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  const name = event.ctrlKey || event.metaKey ? `Ctrl+${event.key.toLowerCase()}` : event.key;
  if (isSliding() && SLIDES.has(event.key)) return;
  if (event.altKey || (isTyping() && !name.startsWith("Ctrl+") && name !== "Escape")) return;
  if (document.querySelector("dialog[open]")) return;
  if (name === "Escape" && isTyping()) {
    /** @type {HTMLElement} */ (document.activeElement).blur(); // the next Escape applies to the page
    return;
  }
  for (const keys of [...known.values()].reverse()) {
    const found = keys.find((key) => key.key === name);
    if (found) {
      event.preventDefault();
      found.does();
      return;
    }
  }
}

/**
 * A dialog. Escape, its button or a click outside closes it and returns the focus.
 * @param {string} title
 * @param {...Node} content
 * @returns {HTMLDialogElement}
 */
export function dialog(title, ...content) {
  const made = el(
    "dialog",
    {"aria-label": title},
    el(
      "header",
      {},
      el("h2", {}, title),
      el("button", {class: "plain", "aria-label": "Close", on: {click: () => made.close()}}, "✕"),
    ),
    ...content,
  );
  made.addEventListener("click", (event) => event.target === made && made.close());
  made.addEventListener("close", () => made.remove());
  document.body.append(made);
  made.showModal();
  return made;
}

/** Shows all keys that work here. */
export function help() {
  const parts = [...known]
    .filter(([, keys]) => keys.length)
    .map(([part, keys]) =>
      el(
        "section",
        {},
        el("h3", {}, part),
        el(
          "dl",
          {class: "keys"},
          keys.flatMap((key) => [
            el(
              "dt",
              {},
              ...partsOf(key.key).flatMap((name, place) => [place ? " + " : "", el("kbd", {}, word(name))]),
            ),
            el("dd", {}, key.label),
          ]),
        ),
      ),
    );
  dialog("Keyboard", el("div", {class: "help"}, ...parts));
}

/** @returns {boolean} whether a slider has the focus */
function isSliding() {
  const at = document.activeElement;
  return at instanceof HTMLInputElement && at.type === "range";
}

/** @param {string} key @returns {string[]} the keys that are pressed together */
function partsOf(key) {
  return key.length > 1 ? key.split("+") : [key];
}

/** @param {string} key @returns {string} */
function word(key) {
  return {ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc"}[key] ?? key;
}

export function start() {
  document.addEventListener("keydown", pressed);
}
