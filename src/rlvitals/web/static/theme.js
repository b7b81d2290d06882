/** Light or dark: the system's choice until the user makes one, which this browser remembers. */

/** @type {(() => void)[]} */
const listeners = [];
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @returns {string} "light", "dark", or "" for the system's */
export function chosen() {
  try {
    return localStorage.getItem("rlvitals.theme") ?? "";
  } catch {
    return "";
  }
}

/** @returns {boolean} */
export function isDark() {
  return chosen() ? chosen() === "dark" : dark.matches;
}

/** Goes to the other one. */
export function toggle() {
  const next = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("rlvitals.theme", next);
  } catch {
    // A browser that remembers nothing still changes now.
  }
  document.documentElement.dataset.theme = next;
  listeners.forEach((listener) => listener());
}

export function start() {
  if (chosen()) document.documentElement.dataset.theme = chosen();
  dark.addEventListener("change", () => listeners.forEach((listener) => listener()));
}

/** @param {() => void} listener @returns {() => void} takes the listener away */
export function onChange(listener) {
  listeners.push(listener);
  return () => listeners.splice(listeners.indexOf(listener), 1);
}

/**
 * A colour of the style sheet, for canvases.
 * @param {string} name
 * @returns {string}
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Okabe and Ito's colours, distinguished by all eyes; a dash for each, so that colour is never the only difference. */
export const LINES = 7;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4], [14, 4]];

/** An evaluation beside its training: no line has this dash. */
export const DOTS = [2, 8];

/** @param {number} place @returns {number} which dash a line has: with each round of the colours another one */
function dashOf(place) {
  return (place + 3 * Math.floor(place / LINES)) % DASHES.length;
}

/** @param {number} place @returns {{stroke: string, dash: number[]}} */
export function lineStyle(place) {
  return {stroke: colour(`line-${place % LINES}`), dash: DASHES[dashOf(place)]};
}
