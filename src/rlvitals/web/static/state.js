/**
 * What is being looked at, kept in the page's address and nowhere else: `#metrics?run=demo&x=tokens&log=1`.
 * A copied address shows the same view; back and forward walk through views.
 */

/**
 * @typedef {Object} State
 * @property {string} screen
 * @property {URLSearchParams} query
 */

export const SCREENS = ["vitals", "metrics", "health", "rollouts", "compare", "performance", "evaluations"];

/** Settings of the view that stay when the screen changes; everything else belongs to one screen. */
const KEPT = ["run", "x", "log", "smooth", "from", "to", "explain"];

/** @type {((now: State, before: State) => void)[]} */
const listeners = [];
let last = read();

/** @returns {State} */
export function read() {
  const [screen, ...rest] = location.hash.replace(/^#/, "").split("?");
  return {screen: SCREENS.includes(screen) ? screen : "runs", query: new URLSearchParams(rest.join("?"))};
}

/**
 * The address of a view that differs from this one so far: null takes a setting away, a list gives it several times.
 * @param {Record<string, string | number | string[] | null | undefined>} changes
 * @param {string} [screen]
 * @returns {string}
 */
export function address(changes, screen) {
  const now = read();
  const query = new URLSearchParams();
  const stays = !screen || screen === now.screen;
  for (const [key, value] of now.query) if (stays || KEPT.includes(key)) query.append(key, value);
  for (const [key, value] of Object.entries(changes)) {
    query.delete(key);
    if (Array.isArray(value)) value.forEach((item) => query.append(key, item));
    else if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  return `#${screen ?? now.screen}${query.size ? `?${query}` : ""}`;
}

/**
 * Goes to another view. `replace` leaves no step behind for the back button: for typing and dragging.
 * @param {Record<string, string | number | string[] | null | undefined>} changes
 * @param {{screen?: string, replace?: boolean}} [how]
 */
export function go(changes, how = {}) {
  const to = address(changes, how.screen);
  if (to === location.hash) return;
  history[how.replace ? "replaceState" : "pushState"](null, "", to);
  tell();
}

/** @param {string} key @returns {string} the setting, or an empty text */
export function get(key) {
  return read().query.get(key) ?? "";
}

/** @param {string} key @returns {number | null} the setting as a number */
export function getNumber(key) {
  const text = read().query.get(key);
  return text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null;
}

/** @param {(now: State, before: State) => void} listener */
export function onChange(listener) {
  listeners.push(listener);
}

function tell() {
  const before = last;
  last = read();
  for (const listener of listeners) listener(last, before);
}

addEventListener("popstate", tell);
