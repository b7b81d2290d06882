/** The keyboard: what each key does, and the list of them behind `?`. */

import {el, isTyping} from "./dom.js";

/** @import {Key} from "../page.d.ts" */

/** What moves a slider. */
const SLIDES = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"]);

/** @type {Map<string, Key[]>} keys by where they count */
const known = new Map();

/**
 * Sets the keys of a part of the page, in the place of those it had.
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
    /** @type {HTMLElement} */ (document.activeElement).blur(); // the next Escape is the page's
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
 * A dialog that closes by Escape, by its button or by a click beside it, and gives the focus back.
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

/** Shows every key that does something here. */
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
            el("dd", {}, key.says),
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
