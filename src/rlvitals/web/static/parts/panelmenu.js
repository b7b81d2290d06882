/** The menu of one panel: scale, clipping and range, pin and order, full screen, export. */

import {el, fill} from "../dom.js";
import {copyImage, saveCsv, savePng, saveSvg} from "../exports.js";
import {dialog} from "../keys.js";
import * as state from "../state.js";
import {runsShown} from "./overlaid.js";
import {movePin, pins, setSettings, settingsOf, togglePin} from "./panelsettings.js";

/** @typedef {() => import("../charts.js").Chart | null} Drawn The current chart of the panel, or null. */

/** @type {[string, string][]} */
const SCALES = [
  ["", "as all panels"],
  ["linear", "linear"],
  ["log", "log (symlog for values at or below 0)"],
  ["symlog", "symlog"],
];

/**
 * @param {string} name the panel's name
 * @param {string[]} metrics the metrics that it draws
 * @param {Drawn} drawn
 */
export function openMenu(name, metrics, drawn) {
  const status = el("p", {class: "faint small", role: "status"});
  const body = el("div", {class: "panelmenu"});
  const setStatus = (/** @type {string} */ sentence) => {
    status.textContent = sentence;
  };
  const draw = () => fill(body, view(name), place(name, draw), exporting(name, metrics, drawn, setStatus), status);
  draw();
  dialog(name, body);
}

/** @param {string} name */
function view(name) {
  const own = settingsOf(name);
  const scale = el(
    "select",
    {on: {change: () => setSettings(name, {scale: /** @type {import("../scales.js").Kind | ""} */ (scale.value)})}},
    SCALES.map(([value, text]) => el("option", {value, selected: value === own.scale}, text)),
  );
  const clip = el("input", {
    type: "checkbox",
    checked: own.clip,
    on: {change: () => setSettings(name, {clip: clip.checked})},
  });
  const bound = (/** @type {"low" | "high"} */ side, /** @type {string} */ title) => {
    const field = el("input", {
      type: "number",
      step: "any",
      value: own[side] ?? "",
      "aria-label": title,
      on: {change: () => setSettings(name, {[side]: field.value === "" ? null : Number(field.value)})},
    });
    return field;
  };
  return el(
    "fieldset",
    {},
    el("legend", {}, "y-axis"),
    el("label", {}, "scale ", scale),
    el("label", {}, clip, " clip outliers (the outermost 1 % on each side)"),
    el("span", {class: "row"}, "range ", bound("low", "Lowest y"), " to ", bound("high", "Highest y")),
  );
}

/** @param {string} name @param {() => void} redraw */
function place(name, redraw) {
  const order = pins();
  const at = order.indexOf(name);
  const move = (/** @type {number} */ by, /** @type {string} */ word, /** @type {boolean} */ isOff) =>
    el("button", {disabled: isOff, on: {click: () => (movePin(name, by), redraw())}}, word);
  const isFull = state.get("one") === name && state.get("full") === "1";
  const whole = () => {
    closeMenu();
    state.go(isFull ? {full: null} : {one: name, full: 1});
  };
  return el(
    "fieldset",
    {},
    el("legend", {}, "Place"),
    el("button", {"aria-pressed": String(at >= 0), on: {click: () => (togglePin(name), redraw())}}, at < 0 ? "Pin" : "Unpin"),
    at >= 0 && [move(-1, "Earlier", at === 0), move(1, "Later", at === order.length - 1)],
    el("button", {on: {click: whole}}, isFull ? "Leave full screen" : "Full screen"),
  );
}

/**
 * @param {string} name
 * @param {string[]} metrics
 * @param {Drawn} drawn
 * @param {(sentence: string) => void} setStatus
 */
function exporting(name, metrics, drawn, setStatus) {
  const act = (/** @type {string} */ word, /** @type {() => Promise<string>} */ does) =>
    el(
      "button",
      {
        on: {
          click: async () => {
            setStatus("…");
            setStatus(await does().catch((error) => String(error.message ?? error)));
          },
        },
      },
      word,
    );
  const chart = () => {
    const found = drawn();
    if (!found) throw new Error("This panel is empty.");
    return found;
  };
  return el(
    "fieldset",
    {},
    el("legend", {}, "Export"),
    act("CSV (every point)", () => saveCsv(name, runsShown(), metrics)),
    act("SVG", async () => saveSvg(name, chart())),
    act("PNG", async () => savePng(name, chart())),
    act("Copy as image", async () => copyImage(name, chart())),
  );
}

function closeMenu() {
  /** @type {HTMLDialogElement | null} */ (document.querySelector("dialog[open]"))?.close();
}
