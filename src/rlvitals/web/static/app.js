/** The page itself: the bar above, the screen below it, the explain drawer, the live connection, keys of everywhere. */

import {ask, follow, wasCalledOff} from "./api.js";
import {drawBar, setLive} from "./bar.js";
import {byId, fill, say} from "./dom.js";
import {showExplanation} from "./drawer.js";
import * as keys from "./keys.js";
import {search} from "./search.js";
import * as state from "./state.js";
import * as theme from "./theme.js";
import {notice} from "./words.js";

/**
 * @typedef {Object} Live What the server says of a run that is being written.
 * @property {"rows" | "findings" | "status" | "open" | "lost"} kind
 * @property {any} facts
 */
/**
 * @typedef {Object} Screen
 * @property {(now: URLSearchParams) => void} [update] The address has changed.
 * @property {(live: Live) => void} [live]
 * @property {() => void} [stop]
 * @property {keys.Key[]} [keys]
 */
/**
 * @typedef {Object} Place
 * @property {string} run
 * @property {HTMLElement} root
 * @property {AbortSignal} signal Tells that the screen was left.
 * @property {() => void} again Enters the screen anew.
 */
/** @typedef {{mount(place: Place): Screen | Promise<Screen>}} ScreenModule */

/** @type {Screen | null} */
let screen = null;
let stopFollowing = () => {};
let followed = "";
let leaving = new AbortController();

/** @param {unknown} error */
function complain(error) {
  if (wasCalledOff(error)) return;
  const sentence = error instanceof Error ? error.message : String(error);
  fill(byId("content"), notice(sentence));
  say(sentence);
}

/**
 * @param {string} name
 * @returns {Promise<ScreenModule>}
 */
async function load(name) {
  return import(`./screens/${name}.js`).catch(() => {
    throw new Error("The server does not answer. Is rlvitals serve still running?");
  });
}

/** Leaves the screen there was and enters the one the address names. */
async function enter() {
  const {screen: name, query} = state.read();
  leaving.abort();
  leaving = new AbortController();
  const {signal} = leaving;
  screen?.stop?.();
  screen = null;
  keys.setKeys("This screen", []);
  const root = byId("content");
  root.className = `screen-${name}`;
  root.scrollTop = 0;
  root.setAttribute("aria-busy", "true");
  const run = query.get("run") ?? "";
  document.title = name === "runs" ? "rlvitals" : `${run === "." ? "" : `${run} · `}${name} · rlvitals`;
  try {
    const module = await load(name);
    if (signal.aborted) return;
    fill(root);
    const entered = await module.mount({run, root, signal, again: enter});
    if (signal.aborted) {
      entered.stop?.();
      return;
    }
    screen = entered;
    keys.setKeys("This screen", entered.keys ?? []);
  } catch (error) {
    if (!signal.aborted) complain(error);
  } finally {
    if (!signal.aborted) root.setAttribute("aria-busy", "false");
  }
}

/** Follows the run the address names, and no other. */
function listen() {
  const run = state.get("run");
  if (run === followed) return;
  stopFollowing();
  followed = run;
  setLive("");
  stopFollowing = run
    ? follow(run, (kind, facts) => {
        if (kind === "lost") setLive("lost");
        else if (kind === "open") setLive("open");
        if (kind === "status") setLive(facts.status ?? "open");
        screen?.live?.({kind, facts});
      })
    : () => {};
}

/**
 * @param {state.State} now
 * @param {state.State} before
 */
function changed(now, before) {
  drawBar();
  listen();
  if (now.query.get("explain") !== before.query.get("explain")) showExplanation().catch(complain);
  if (now.screen !== before.screen || now.query.get("run") !== before.query.get("run")) enter();
  else screen?.update?.(now.query);
}

/** @param {string} name */
function openScreen(name) {
  if (state.get("run")) state.go({}, {screen: name});
}

function globalKeys() {
  /** @type {keys.Key[]} */
  const everywhere = [
    {key: "?", says: "this list", does: keys.help},
    {key: "Ctrl+k", says: "search metrics, runs, screens, rules, rollouts", does: search},
    {key: "r", says: "all runs of the folder", does: () => state.go({run: null, explain: null}, {screen: "runs"})},
    ...state.SCREENS.map((name, place) => ({
      key: String(place + 1),
      says: `${name[0].toUpperCase()}${name.slice(1)}`,
      does: () => openScreen(name),
    })),
    {key: "t", says: "light or dark", does: theme.toggle},
    {key: "Escape", says: "close the explanation", does: () => state.go({explain: null})},
  ];
  keys.setKeys("Everywhere", everywhere);
}

/** A folder that is itself a run, or holds one alone, opens with it. */
async function first() {
  if (state.read().screen !== "runs" || location.hash.length > 1) return;
  const {runs} = await ask("runs");
  if (runs.length === 1) state.go({run: runs[0].run}, {screen: "vitals", replace: true});
}

async function start() {
  theme.start();
  keys.start();
  globalKeys();
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("content").focus();
  });
  await first().catch(complain);
  state.onChange(changed);
  theme.onChange(() => {
    drawBar();
    enter();
  });
  drawBar();
  listen();
  await Promise.all([enter(), showExplanation().catch(complain)]);
  setTimeout(() => state.SCREENS.forEach((name) => load(name).catch(() => {})), 300); // so that they open at once later
}

start();
