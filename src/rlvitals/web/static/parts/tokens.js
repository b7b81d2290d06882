/**
 * A rollout token by token: coloured by an overlay, with a legend, and the numbers of the token under the pointer or
 * reached with the arrow keys. One listener per turn serves all its tokens, so that thousands of them stay fast.
 */

import {el, fill} from "../dom.js";
import {number} from "../numbers.js";
import * as state from "../state.js";
import {overlaysOf, real} from "./overlays.js";

/** @import {RolloutFacts, TraceFacts} from "../../contract.d.ts" */
/** @import {Overlay} from "./overlays.js" */

const SPECIAL = /^\s*(<[^<>\s]{1,40}>|\[[A-Z_/]{2,20}\])\s*$/;

/**
 * The buttons above a transcript that choose an overlay. Without a trace, there is one button that loads the tokens.
 * @param {RolloutFacts} rollout
 * @param {TraceFacts | null} trace
 * @returns {HTMLElement}
 */
export function overlaySwitch(rollout, trace) {
  const chosen = state.get("tokens");
  const names = trace ? overlaysOf(trace, rollout).map(({name, title}) => ({name, title})) : [{name: "probability", title: "tokens"}];
  const choice = (/** @type {string} */ name, /** @type {string} */ title) =>
    el(
      "button",
      {
        class: "chip",
        "aria-pressed": String(chosen === name),
        on: {click: () => state.go({tokens: name || null}, {replace: true})},
      },
      title,
    );
  return el(
    "div",
    {class: "overlays", role: "group", "aria-label": "Colour tokens by"},
    choice("", "plain"),
    names.map(({name, title}) => choice(name, title)),
  );
}

/**
 * @param {RolloutFacts} rollout
 * @param {TraceFacts} trace
 * @returns {HTMLElement[]} the legend, the tokens of each turn, and the numbers of the selected token
 */
export function tokenView(rollout, trace) {
  const overlays = overlaysOf(trace, rollout);
  const overlay = overlays.find(({name}) => name === state.get("tokens")) ?? overlays[0];
  const count = (trace.ids ?? trace.texts ?? trace.trained ?? trace.logprobs ?? []).length;
  const about = el("div", {class: "about-token", role: "status"}, "Point at a token, or use the arrow keys.");
  /** @type {HTMLElement | null} */
  let here = null;
  const show = (/** @type {HTMLElement} */ token) => {
    here?.classList.remove("here");
    here = token;
    here.classList.add("here");
    fill(about, ...numbersOf(rollout, trace, Number(token.dataset.at)));
  };
  const pointed = (/** @type {Event} */ event) => {
    if (event.target instanceof HTMLElement && event.target.dataset.at) show(event.target);
  };
  const walked = (/** @type {KeyboardEvent} */ event) => {
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10}[event.key];
    const stream = event.currentTarget;
    if (!by || event.ctrlKey || event.metaKey || event.altKey || !(stream instanceof HTMLElement)) return;
    event.preventDefault();
    const tokens = stream.children;
    const at = here && stream.contains(here) ? Number(here.dataset.place) + by : 0;
    const next = tokens[Math.min(Math.max(at, 0), tokens.length - 1)];
    if (next instanceof HTMLElement) {
      show(next);
      next.scrollIntoView({block: "nearest"});
    }
  };
  const sections = turnsOf(trace, count).map(({turn, from, to}) =>
    el(
      "section",
      {class: "turn"},
      el("header", {}, el("h3", {}, turn === null ? "Tokens" : `Turn ${turn + 1}`), el("span", {class: "faint small"}, `${to - from} tokens`)),
      el(
        "pre",
        {
          class: "text tokens",
          tabindex: 0,
          role: "group",
          "aria-label": `Tokens of ${turn === null ? "the rollout" : `turn ${turn + 1}`}; use the arrow keys to move`,
          on: {pointerover: pointed, click: pointed, keydown: walked},
        },
        ...Array.from({length: to - from}, (_, place) => drawn(trace, overlay, from + place, place)),
      ),
    ),
  );
  return [legend(overlay), ...sections, about];
}

/** @param {Overlay | undefined} overlay */
function legend(overlay) {
  if (!overlay) return el("p", {class: "faint"}, "The tokens have no numbers.");
  return el(
    "div",
    {class: "legend"},
    el("p", {class: "small"}, overlay.about),
    el(
      "ul",
      {class: "steps"},
      overlay.steps.map(({look, label}) => el("li", {}, el("span", {class: `token ${look}`, "aria-hidden": "true"}, "abc"), label)),
    ),
  );
}

/**
 * Consecutive tokens that belong to one turn.
 * @param {TraceFacts} trace
 * @param {number} count
 * @returns {{turn: number | null, from: number, to: number}[]}
 */
function turnsOf(trace, count) {
  if (!trace.turns) return [{turn: null, from: 0, to: count}];
  /** @type {{turn: number, from: number, to: number}[]} */
  const found = [];
  trace.turns.forEach((turn, at) => {
    const last = found[found.length - 1];
    if (last && last.turn === turn) last.to = at + 1;
    else found.push({turn, from: at, to: at + 1});
  });
  return found;
}

/**
 * @param {TraceFacts} trace
 * @param {Overlay | undefined} overlay
 * @param {number} at
 * @param {number} place its index in the turn
 */
function drawn(trace, overlay, at, place) {
  const text = trace.texts?.[at];
  const step = overlay?.at(at) ?? null;
  const look = overlay && step !== null ? overlay.steps[step].look : trace.trained?.[at] === false ? "masked" : "";
  const kind = text !== undefined && SPECIAL.test(text) ? "special" : "";
  return el("span", {class: `token ${look} ${kind}`.trim(), data: {at, place}}, seen(text, trace.ids?.[at]));
}

/**
 * A token's text with invisible characters made visible.
 * @param {string | undefined} text
 * @param {number | undefined} id
 */
function seen(text, id) {
  if (text === undefined) return `⟨${id ?? "?"}⟩`;
  if (text === "") return "·";
  return text
    .replaceAll("\r", "␍")
    .replaceAll("\n", "↵\n")
    .replaceAll("\t", "⇥\t")
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (sign) => `⟨U+${sign.charCodeAt(0).toString(16).padStart(4, "0")}⟩`);
}

/**
 * @param {RolloutFacts} rollout
 * @param {TraceFacts} trace
 * @param {number} at
 */
function numbersOf(rollout, trace, at) {
  const take = (/** @type {(number | string)[] | undefined} */ list) => list?.[at];
  const old = real(take(trace.logprobs));
  const ratio = Math.exp(real(take(trace.new_logprobs)) - old);
  const gap = old - real(take(trace.engine_logprobs));
  const text = trace.texts?.[at];
  /** @type {[string, string | undefined][]} */
  const facts = [
    ["token", text === undefined ? undefined : JSON.stringify(text)],
    ["id", trace.ids && String(trace.ids[at])],
    ["place", number(at + 1)],
    ["probability", known(Math.exp(Number.isNaN(old) ? real(take(trace.engine_logprobs)) : old))],
    ["log-prob", known(old)],
    ["engine's", known(take(trace.engine_logprobs))],
    ["trainer − engine", known(gap)],
    ["in the update", known(take(trace.new_logprobs))],
    ["ratio", known(ratio)],
    ["reference's", known(take(trace.reference_logprobs))],
    ["entropy", known(take(trace.entropies))],
    ["advantage", known(take(trace.advantages))],
    ["loss", trace.trained && (trace.trained[at] ? "trained" : "masked")],
    ["policy version", known(take(trace.versions) ?? rollout.policy_version)],
  ];
  return [
    el(
      "dl",
      {class: "row"},
      facts
        .filter(([, value]) => value !== undefined)
        .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {class: "num"}, value))),
    ),
  ];
}

/** @param {number | string | undefined} value @returns {string | undefined} undefined if it was not recorded */
function known(value) {
  return value === undefined || Number.isNaN(value) ? undefined : number(value);
}
