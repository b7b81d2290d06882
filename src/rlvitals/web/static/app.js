/** The page: the bar, the screen below it, the explain drawer, the live connection, and keys of all screens. */

import {ask, follow, wasAborted} from "./api.js";
import {drawBar, setLive} from "./bar.js";
import {announce, byId, fill} from "./dom.js";
import {showExplanation} from "./drawer.js";
import * as keys from "./keys.js";
import {search} from "./search.js";
import {HOME, screenOf, SCREENS} from "./screens.js";
import {notice} from "./pieces.js";
import * as state from "./state.js";
import * as theme from "./theme.js";

/** @import {Entry, Screen} from "../page.d.ts" */

/** @type {Screen | null} */
let screen = null;
let stopFollowing = () => {};
let followed = "";
let leaving = new AbortController();
let isBroken = false; // whether the screen shows an error

/** @param {unknown} error */
function complain(error) {
  if (wasAborted(error)) return;
  const sentence = error instanceof Error ? error.message : String(error);
  isBroken = true;
  fill(byId("content"), notice(sentence));
  announce(sentence);
}

/** @param {Entry} entry */
function load(entry) {
  return entry.load().catch(() => {
    throw new Error("The server does not answer. Is rlvitals serve still running?");
  });
}

/** Leaves the current screen and enters the one in the address. */
async function enter() {
  const {screen: name, query} = state.read();
  leaving.abort();
  leaving = new AbortController();
  const {signal} = leaving;
  isBroken = false;
  screen?.stop?.();
  screen = null;
  keys.setKeys("This screen", []);
  const root = byId("content");
  root.className = `screen-${name}`;
  root.scrollTop = 0;
  root.setAttribute("aria-busy", "true");
  const run = query.get("run") ?? "";
  document.title = name === HOME.name ? "rlvitals" : `${run === "." ? "" : `${run} · `}${name} · rlvitals`;
  try {
    const module = await load(screenOf(name));
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

/** Follows the run in the address, and no other. */
function listen() {
  const run = state.get("run");
  if (run === followed) return;
  stopFollowing();
  followed = run;
  setLive("");
  stopFollowing = run
    ? follow(run, (news) => {
        if (news.kind === "status") setLive(news.facts.status);
        else if (news.facts === null) setLive(news.kind);
        if (isBroken && news.kind === "open") enter(); // the server is back
        screen?.live?.(news);
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

function globalKeys() {
  keys.setKeys("Everywhere", [
    {key: "?", label: "this list", does: keys.help},
    {key: "Ctrl+k", label: "search metrics, runs, screens, rules, rollouts", does: search},
    {key: HOME.key, label: HOME.title, does: () => state.go({run: null, explain: null}, {screen: HOME.name})},
    ...SCREENS.map(({key, title, name}) => ({key, label: title, does: () => state.get("run") && state.go({}, {screen: name})})),
    {key: "t", label: "light or dark", does: theme.toggle},
    {key: "Escape", label: "leave the field, close the explanation", does: () => state.go({explain: null})},
  ]);
}

/** Opens the run if the folder is a run or contains only one. */
async function first() {
  if (state.read().screen !== HOME.name || location.hash.length > 1) return;
  const {runs} = await ask("runs");
  if (runs.length === 1) state.go({run: runs[0].run}, {screen: SCREENS[0].name, replace: true});
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
  setTimeout(() => SCREENS.forEach((entry) => entry.load().catch(() => {})), 300); // preload the other screens
}

start();
