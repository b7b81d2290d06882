/** The transcript of one rollout: the model's texts, its tool calls and their results, and the parts of the reward. */

import {ask} from "../api.js";
import {el, fill} from "../dom.js";
import {duration, number} from "../numbers.js";
import {notice} from "../pieces.js";
import * as state from "../state.js";
import {spotIn, spotted} from "./spots.js";
import {overlaySwitch, tokenView} from "./tokens.js";

/** @import {GroupFacts, RolloutFacts, TraceFacts, TurnFacts, WholeGroup} from "../../contract.d.ts" */

/** @typedef {{part: string, start: number, end: number} | null} Spot */

const LONG = 900;

/**
 * Shows one rollout at a time in an element. Its tokens are requested when a token overlay is chosen.
 * @param {HTMLElement} place
 * @param {string} run
 * @param {AbortSignal} signal
 * @returns {(step: number, group: GroupFacts, chosen: number) => void}
 */
export function transcriptIn(place, run, signal) {
  /** @type {{key: string, trace: TraceFacts | null}} */
  let traced = {key: "", trace: null};
  let last = "";
  let lastSpot = "";
  return function show(step, group, chosen) {
    const rollout = group.rollouts?.[chosen - 1];
    const key = `${step} ${group.number} ${chosen}`;
    const isKnown = traced.key === key;
    const top = last === key ? place.scrollTop : 0;
    last = key;
    const spotAt = (/** @type {number} */ turn) => spotIn(step, group.number, chosen, turn);
    fill(place, transcript(rollout, chosen, state.get("search"), isKnown ? traced.trace : null, spotAt));
    place.scrollTop = top;
    const spot = `${key} ${state.get("spot")}`;
    if (spot !== lastSpot) place.querySelector(".spot")?.scrollIntoView({block: "center"});
    lastSpot = spot;
    if (!rollout?.traced || !state.get("tokens") || isKnown) return;
    ask("rollouts", {run, step, group: group.number, tokens: chosen}, signal)
      .then((answer) => {
        const whole = /** @type {WholeGroup} */ (answer);
        traced = {key, trace: whole.groups[0].rollouts?.[chosen - 1]?.trace ?? null};
        if (last === key) show(step, group, chosen);
      })
      .catch(() => {});
  };
}

/**
 * @param {RolloutFacts | undefined} rollout
 * @param {number} place
 * @param {string} wanted text to mark
 * @param {TraceFacts | null} trace its tokens, if they were requested
 * @param {(turn: number) => Spot} spotAt the part of a turn that a finding cites
 * @returns {HTMLElement[]}
 */
function transcript(rollout, place, wanted, trace, spotAt) {
  if (!rollout) return [notice("This rollout does not exist.")];
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
    rollout.traced ? overlaySwitch(rollout, trace) : null,
    ...(trace && state.get("tokens")
      ? tokenView(rollout, trace)
      : (rollout.turns ?? []).map((turn, at) => turnSection(turn, at + 1, wanted, spotAt(at + 1)))),
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
 * @param {Spot} spot
 */
function turnSection(turn, place, wanted, spot) {
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
    turn.text && text(turn.text, wanted, "model", spot?.part === "text" ? spot : null),
    ...(turn.calls ?? []).map((call, at) =>
      el(
        "div",
        {class: spot?.part === `call ${at + 1}` ? "call spot" : "call"},
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

/** @param {unknown} given @returns {string} on one line if it fits */
function argumentsOf(given) {
  if (typeof given === "string") return given;
  const line = JSON.stringify(given);
  return line.length <= 90 ? line : JSON.stringify(given, null, 1);
}

/**
 * A text, collapsed if it is long.
 * @param {string} given
 * @param {string} wanted
 * @param {string} kind
 * @param {Spot} [spot]
 */
function text(given, wanted, kind, spot) {
  const isLong = given.length > LONG && !spot;
  const body = el("pre", {class: `text ${kind}${isLong ? " folded" : ""}`}, ...(spot ? spotted(given, spot) : marked(given, wanted)));
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
