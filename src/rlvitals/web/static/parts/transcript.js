/** One rollout to read: what the model said, the calls it made and what came back, rewards part by part. */

import {el} from "../dom.js";
import {duration, number} from "../numbers.js";
import {notice} from "../pieces.js";

/** @import {RolloutFacts, TurnFacts} from "../../contract.d.ts" */

const LONG = 900;

/**
 * @param {RolloutFacts | undefined} rollout
 * @param {number} place
 * @param {string} wanted text to mark
 * @returns {HTMLElement[]}
 */
export function transcript(rollout, place, wanted) {
  if (!rollout) return [notice("There is no such rollout.")];
  const facts = [
    ["reward", number(rollout.reward)],
    ["advantage", number(rollout.advantage)],
    ["outcome", rollout.outcome],
    ["stopped by", rollout.stop],
    ["tokens", rollout.tokens],
    ["trainable", rollout.trainable_tokens],
    ["took", rollout.seconds && duration(Number(rollout.seconds))],
    ["policy version", rollout.policy_version],
    ["seed", rollout.seed],
    ["error", rollout.error],
  ].filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== "–");
  return [
    el("h2", {}, `Rollout ${place}`),
    el(
      "dl",
      {class: "row"},
      facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    ),
    parts("Reward parts", rollout.reward_parts),
    parts("Rubric", rollout.rubric),
    ...(rollout.turns ?? []).map((turn, at) => say(turn, at + 1, wanted)),
  ].filter((part) => part !== null);
}

/**
 * @param {string} title
 * @param {Record<string, unknown> | undefined} given
 */
function parts(title, given) {
  const rows = Object.entries(given ?? {});
  if (!rows.length) return null;
  return el(
    "details",
    {open: title === "Reward parts"},
    el("summary", {}, title),
    el(
      "table",
      {class: "facts"},
      rows.map(([name, value]) =>
        el(
          "tr",
          {},
          el("th", {scope: "row"}, name),
          el("td", {class: "num"}, typeof value === "number" ? number(value) : JSON.stringify(value)),
        ),
      ),
    ),
  );
}

/**
 * @param {TurnFacts} turn
 * @param {number} place
 * @param {string} wanted
 */
function say(turn, place, wanted) {
  return el(
    "section",
    {class: "turn"},
    el(
      "header",
      {},
      el("h3", {}, `Turn ${place}`),
      el(
        "span",
        {class: "faint small"},
        [
          turn.outcome?.replaceAll("_", " "),
          turn.advantage !== undefined && `advantage ${number(turn.advantage)}`,
          turn.reward !== undefined && `reward ${number(turn.reward)}`,
          turn.tokens && `${turn.tokens} tokens`,
          turn.seconds && duration(Number(turn.seconds)),
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    ),
    turn.text && text(turn.text, wanted, "model"),
    ...(turn.calls ?? []).map((call) =>
      el(
        "div",
        {class: "call"},
        el(
          "div",
          {},
          el("span", {class: "kind"}, "call"),
          el("code", {}, call.name),
          call.error && el("span", {class: "act"}, ` ✖ ${call.error}`),
        ),
        call.arguments !== undefined && text(argumentsOf(call.arguments), wanted, "arguments"),
        call.result && text(call.result, wanted, "result"),
      ),
    ),
    turn.observation && text(turn.observation, wanted, "observation"),
  );
}

/** @param {unknown} given @returns {string} on one line where it fits */
function argumentsOf(given) {
  if (typeof given === "string") return given;
  const line = JSON.stringify(given);
  return line.length <= 90 ? line : JSON.stringify(given, null, 1);
}

/**
 * A text as it is, long ones folded.
 * @param {string} given
 * @param {string} wanted
 * @param {string} kind
 */
function text(given, wanted, kind) {
  const isLong = given.length > LONG;
  const body = el("pre", {class: `text ${kind}${isLong ? " folded" : ""}`}, ...marked(given, wanted));
  if (!isLong) return body;
  const button = el(
    "button",
    {
      class: "plain more",
      "aria-expanded": "false",
      on: {
        click: () => {
          const isOpen = !body.classList.toggle("folded");
          button.textContent = isOpen ? "less" : `all ${given.length.toLocaleString("en")} characters`;
          button.setAttribute("aria-expanded", String(isOpen));
        },
      },
    },
    `all ${given.length.toLocaleString("en")} characters`,
  );
  return el("div", {}, body, button);
}

/**
 * @param {string} given
 * @param {string} wanted
 * @returns {(Node | string)[]}
 */
function marked(given, wanted) {
  if (!wanted) return [given];
  const low = given.toLowerCase();
  const word = wanted.toLowerCase();
  /** @type {(Node | string)[]} */
  const out = [];
  let at = 0;
  for (let next = low.indexOf(word); next >= 0 && out.length < 400; next = low.indexOf(word, at)) {
    out.push(given.slice(at, next), el("mark", {}, given.slice(next, next + word.length)));
    at = next + word.length;
  }
  return [...out, given.slice(at)];
}
