/**
 * The current view, stored only in the page's address: `#metrics?run=demo&x=tokens&log=1`. A copied address shows the
 * same view, and the browser's back and forward buttons move between views.
 */

import {screenOf} from "./screens.js";

/**
 * @typedef {Object} State
 * @property {string} screen
 * @property {URLSearchParams} query
 */

/** @import {Changes} from "../page.d.ts" */

/** Parameters that are kept when the screen changes. All others belong to one screen. */
const KEPT = ["run", "also", "by", "x", "log", "smooth", "from", "to", "explain"];

/** @type {((now: State, before: State) => void)[]} */
const listeners = [];
/** @type {{hash: string, now: State} | null} */
let parsed = null;
let last = read();

/** @returns {State} parsed once per address, because every chart reads several parameters */
export function read() {
  const {hash} = location;
  if (hash !== parsed?.hash) {
    const [screen, ...rest] = hash.replace(/^#/, "").split("?");
    parsed = {hash, now: {screen: screenOf(screen).name, query: new URLSearchParams(rest.join("?"))}};
  }
  return parsed.now;
}

/**
 * The address of a view with changed parameters. null removes a parameter; a list repeats it.
 * @param {Changes} changes
 * @param {string} [screen]
 * @returns {string}
 */
export function address(changes, screen) {
  const now = read();
  const query = new URLSearchParams();
  const stays = !screen || screen === now.screen;
  for (const [key, value] of now.query) if (stays || KEPT.includes(key)) query.append(key, value);
  changed(query, changes);
  return `#${screen ?? now.screen}${query.size ? `?${query}` : ""}`;
}

/** @param {URLSearchParams} query @param {Changes} changes */
export function changed(query, changes) {
  for (const [key, value] of Object.entries(changes)) {
    query.delete(key);
    for (const item of [value ?? ""].flat()) if (item !== "") query.append(key, String(item));
  }
  return query;
}

/**
 * Goes to another view. `replace` adds no entry to the browser's history; it is for typing and dragging.
 * @param {Changes} changes
 * @param {{screen?: string, replace?: boolean}} [how]
 */
export function go(changes, how = {}) {
  const to = address(changes, how.screen);
  if (to === location.hash) return;
  history[how.replace ? "replaceState" : "pushState"](null, "", to);
  notify();
}

/** @param {string} key @returns {string} the parameter, or an empty text */
export function get(key) {
  return read().query.get(key) ?? "";
}

/** @param {string} key @returns {string[]} all values of the parameter */
export function getAll(key) {
  return read().query.getAll(key);
}

/** @param {string} key @returns {number | null} the parameter as a number */
export function getNumber(key) {
  const text = read().query.get(key);
  return text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null;
}

/** @param {(now: State, before: State) => void} listener */
export function onChange(listener) {
  listeners.push(listener);
}

function notify() {
  const before = last;
  last = read();
  for (const listener of listeners) listener(last, before);
}

addEventListener("popstate", notify);
