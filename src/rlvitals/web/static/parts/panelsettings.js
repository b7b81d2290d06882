/**
 * Settings of single panels, stored in the address: scale, clipping and range (`panel=log,clip,y:0:1;NAME`), and the
 * pinned panels in their order (`pin=NAME`).
 */

import * as state from "../state.js";

/** @typedef {import("../scales.js").Kind} Kind */
/**
 * @typedef {Object} PanelSettings
 * @property {Kind | ""} scale Empty for the same as all panels.
 * @property {boolean} clip
 * @property {number | null} low
 * @property {number | null} high
 */

/** @type {PanelSettings} */
const NONE = {scale: "", clip: false, low: null, high: null};
const KINDS = ["linear", "log", "symlog"];

/** @param {string} name @returns {PanelSettings} */
export function settingsOf(name) {
  const own = state.getAll("panel").find((text) => nameIn(text) === name);
  return own === undefined ? NONE : parsed(own);
}

/**
 * @param {string} name
 * @param {Partial<PanelSettings>} changes
 */
export function setSettings(name, changes) {
  const others = state.getAll("panel").filter((text) => nameIn(text) !== name);
  const settings = written({...settingsOf(name), ...changes});
  state.go({panel: settings ? [...others, `${settings};${name}`] : others}, {replace: true});
}

/** @returns {string[]} the pinned panels */
export function pins() {
  return state.getAll("pin");
}

/** @param {string} name pins a panel, or unpins it */
export function togglePin(name) {
  const now = pins();
  const next = now.includes(name) ? now.filter((other) => other !== name) : [...now, name];
  state.go({pin: next, ...(next.length ? {} : {show: null, board: null})});
}

/** @param {string} name @param {number} by moves a pinned panel forward or back */
export function movePin(name, by) {
  const now = pins();
  const from = now.indexOf(name);
  const to = Math.min(Math.max(from + by, 0), now.length - 1);
  if (from < 0 || from === to) return;
  now.splice(to, 0, ...now.splice(from, 1));
  state.go({pin: now}, {replace: true});
}

/** @param {string} text @returns {string} */
function nameIn(text) {
  return text.slice(text.indexOf(";") + 1);
}

/** @param {string} text @returns {PanelSettings} */
function parsed(text) {
  const found = {...NONE};
  for (const word of text.slice(0, Math.max(text.indexOf(";"), 0)).split(",")) {
    if (KINDS.includes(word)) found.scale = /** @type {Kind} */ (word);
    else if (word === "clip") found.clip = true;
    else if (word.startsWith("y:")) [found.low, found.high] = word.slice(2).split(":").map(numberIn);
  }
  return found;
}

/** @param {PanelSettings} settings @returns {string} */
function written({scale, clip, low, high}) {
  const range = low === null && high === null ? "" : `y:${low ?? ""}:${high ?? ""}`;
  return [scale, clip && "clip", range].filter(Boolean).join(",");
}

/** @param {string | undefined} text @returns {number | null} */
function numberIn(text) {
  return text && Number.isFinite(Number(text)) ? Number(text) : null;
}
