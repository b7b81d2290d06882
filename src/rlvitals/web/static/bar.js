/** The bar at the top: the run, the screens, the live status, search, theme, help. */

import {isShared} from "./api.js";
import {byId, el, fill} from "./dom.js";
import {help} from "./keys.js";
import {link} from "./pieces.js";
import {HOME, SCREENS} from "./screens.js";
import {search} from "./search.js";
import * as state from "./state.js";
import * as theme from "./theme.js";

let live = "";
let words = "";
let lostAt = "";

const LIVE = /** @type {Record<string, [string, string]>} */ ({
  lost: ["○", "reconnecting"],
  open: ["●", "connected"],
  running: ["●", "live"],
  finished: ["■", "finished"],
  failed: ["✖", "failed"],
  interrupted: ["■", "interrupted"],
});

/**
 * @param {string} now "", lost, open, or the run's status
 * @param {string} [text] text to show instead of the default one
 */
export function setLive(now, text = "") {
  if (now === "open" && live && live !== "lost") return;
  if (now === "lost" && live !== "lost") lostAt = new Date().toLocaleTimeString("en-GB");
  live = now;
  words = text;
  const place = document.getElementById("live");
  if (place) fill(place, ...lamp());
}

/** @returns {(HTMLElement | string)[]} */
function lamp() {
  if (isShared && !state.get("run")) return []; // a list of shared runs is not live
  if (!live) return [];
  const [symbol, label] = LIVE[live] ?? ["●", live];
  const text = live === "lost" ? `reconnecting since ${lostAt}` : words || label;
  return [el("span", {"aria-hidden": "true", class: `lamp ${live}`}, symbol), el("span", {}, ` ${text}`)];
}

export function drawBar() {
  const {screen, query} = state.read();
  const run = query.get("run") ?? "";
  const tabs = SCREENS.map(({name, title}) => link({"aria-current": screen === name && "page"}, {}, name, title));
  fill(
    byId("bar"),
    link(
      {class: "brand", title: HOME.title},
      {run: null, explain: null},
      HOME.name,
      el("img", {src: "static/icon.svg", alt: "", width: 22, height: 22}),
      el("span", {class: run ? "word" : ""}, "rlvitals"),
    ),
    run && el("span", {class: "where", title: run}, run === "." ? "this folder" : run),
    run && el("nav", {"aria-label": "Screens"}, tabs),
    el("span", {id: "live", class: "faint"}, ...lamp()),
    el(
      "span",
      {class: "tools"},
      isShared && el("button", {class: "chip", on: {click: about}, title: "What this shared copy contains"}, "shared copy"),
      el("button", {on: {click: search}, title: "Search (Ctrl+K)"}, "Search", el("kbd", {}, "Ctrl K")),
      el(
        "button",
        {class: "plain", on: {click: theme.toggle}, title: "Light or dark (t)", "aria-label": "Light or dark"},
        theme.isDark() ? "☀" : "☾",
      ),
      el("button", {class: "plain", on: {click: help}, title: "Keyboard (?)", "aria-label": "Keyboard"}, "?"),
    ),
  );
  const tab = /** @type {HTMLElement | null} */ (document.querySelector("#bar nav a[aria-current]"));
  // scrollIntoView would also change which element the next Tab key reaches.
  if (tab?.parentElement) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft - 40;
}

async function about() {
  (await import("./shared.js")).about();
}
