/** Light or dark theme. The system's setting applies until the user chooses one, which the browser stores. */

/** @type {(() => void)[]} */
const listeners = [];
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @returns {string} "light", "dark", or "" for the system's setting */
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

/** Switches to the other theme. */
export function toggle() {
  const next = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("rlvitals.theme", next);
  } catch {
    // Without local storage, the choice applies to this page only.
  }
  document.documentElement.dataset.theme = next;
  listeners.forEach((listener) => listener());
}

export function start() {
  if (chosen()) document.documentElement.dataset.theme = chosen();
  dark.addEventListener("change", () => listeners.forEach((listener) => listener()));
}

/** @param {() => void} listener @returns {() => void} removes the listener */
export function onChange(listener) {
  listeners.push(listener);
  return () => listeners.splice(listeners.indexOf(listener), 1);
}

/**
 * A colour of the style sheet, for drawing on a canvas.
 * @param {string} name
 * @returns {string}
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Number of line colours (Okabe and Ito's, safe for colour-blind readers). Lines also differ in their dashes. */
export const LINES = 7;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4], [14, 4]];

/** The dash of evaluations; no other line has it. */
export const DOTS = [2, 8];

/** @param {number} place @returns {number} the number of a line's dash; it changes each time the colours repeat */
function dashOf(place) {
  return (place + 3 * Math.floor(place / LINES)) % DASHES.length;
}

/** @param {number} place @returns {{stroke: string, dash: number[]}} */
export function lineStyle(place) {
  return {stroke: colour(`line-${place % LINES}`), dash: DASHES[dashOf(place)]};
}
