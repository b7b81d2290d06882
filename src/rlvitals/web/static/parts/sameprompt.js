/** Rollouts of the same prompt in two runs, side by side, at a chosen step. */

import {ask} from "../api.js";
import {el, fill} from "../dom.js";
import {number} from "../numbers.js";
import {notice} from "../pieces.js";
import * as state from "../state.js";
import {runSwatch} from "./comparison.js";
import {transcriptIn} from "./transcript.js";

/** @import {GroupFacts, GroupPage, Hits, ListedGroup, RolloutSteps, WholeGroup} from "../../contract.d.ts" */
/** @typedef {{step: number, number: number}} Where */

const SEARCHED = 200; // number of characters of a prompt used for the search

/**
 * @param {string[]} names the first two are compared; both have rollouts
 * @param {AbortSignal} signal
 * @returns {Promise<HTMLElement>}
 */
export async function samePrompt([base, other], signal) {
  const stepsOf = async (/** @type {string} */ run) => {
    const answer = /** @type {RolloutSteps} */ (await ask("rollouts", {run}, signal));
    return answer.steps.map((row) => row.step);
  };
  const [own, others] = await Promise.all([stepsOf(base), stepsOf(other)]);
  const bar = el("div", {class: "controls"});
  const note = el("p", {class: "faint"});
  const prompt = el("p", {class: "prompt"});
  const sides = [base, other].map((run, at, names) => side(run, runSwatch(names, at), signal));
  let turn = 0;

  const wanted = () => {
    const wantedStep = state.getNumber("rstep");
    const shared = own.filter((step) => others.includes(step));
    const usual = (shared.length ? shared : own).at(-1) ?? own[0];
    return wantedStep !== null && own.includes(wantedStep) ? wantedStep : usual;
  };
  async function look() {
    const mine = ++turn;
    const step = wanted();
    const page = /** @type {GroupPage} */ (await ask("rollouts", {run: base, step}, signal));
    const chosen = page.groups.find((group) => group.number === state.getNumber("rgroup")) ?? page.groups[0];
    const there = await findIn(other, others.includes(step), step, chosen, signal);
    if (mine !== turn || signal.aborted) return;
    drawBar(step, page.groups, chosen);
    prompt.textContent = chosen.prompt;
    note.textContent = !there
      ? `${other} has no rollouts of this prompt.`
      : there.step === step
        ? ""
        : `${other} has this prompt at step ${there.step}, not at step ${step}.`;
    await Promise.all([sides[0].show({step, number: chosen.number}), sides[1].show(there)]);
  }
  /** @param {number} step @param {ListedGroup[]} groups @param {ListedGroup} chosen */
  function drawBar(step, groups, chosen) {
    const go = (/** @type {Record<string, string | null>} */ to) => {
      state.go(to, {replace: true});
      look().catch(() => {});
    };
    const steps = el(
      "select",
      {"aria-label": "Step of the rollouts", on: {change: () => go({rstep: steps.value, rgroup: null})}},
      own.map((known) =>
        el(
          "option",
          {value: known, selected: known === step},
          `step ${known}${others.includes(known) ? "" : " (first run only)"}`,
        ),
      ),
    );
    const prompts = el(
      "select",
      {"aria-label": "Prompt", class: "prompts", on: {change: () => go({rstep: String(step), rgroup: prompts.value})}},
      groups.map((group) =>
        el(
          "option",
          {value: group.number, selected: group === chosen},
          `${group.number}: ${group.prompt.slice(0, 80)}`,
        ),
      ),
    );
    fill(bar, steps, prompts);
  }
  await look();
  return el(
    "div",
    {},
    bar,
    prompt,
    note,
    el(
      "div",
      {class: "sidebyside"},
      sides.map((one) => one.node),
    ),
  );
}

/**
 * The step and group at which the other run has the same prompt: at the same step if possible, otherwise the nearest.
 * @param {string} run
 * @param {boolean} isThere whether it has rollouts at that step
 * @param {number} step
 * @param {ListedGroup} wanted
 * @param {AbortSignal} signal
 * @returns {Promise<Where | null>}
 */
async function findIn(run, isThere, step, wanted, signal) {
  if (isThere) {
    const page = /** @type {GroupPage} */ (await ask("rollouts", {run, step}, signal));
    const here = page.groups.find((group) => group.prompt === wanted.prompt);
    if (here) return {step, number: here.number};
  }
  const search = wanted.prompt.trim().slice(0, SEARCHED);
  if (!search) return null;
  const found = /** @type {Hits} */ (await ask("rollouts", {run, search}, signal));
  const hits = found.hits.filter((hit) => hit.prompt.trim().startsWith(search));
  const [nearest] = hits.sort((one, next) => Math.abs(one.step - step) - Math.abs(next.step - step));
  return nearest ? {step: nearest.step, number: nearest.group} : null;
}

/** @param {string} run @param {Node} sign the run's swatch @param {AbortSignal} signal */
function side(run, sign, signal) {
  const title = el("h3", {}, sign, " ", run === "." ? "this folder" : run);
  const bar = el("div", {class: "controls"});
  const text = el("div", {class: "transcript", tabindex: 0, role: "region", "aria-label": `Rollout of ${run}`});
  const read = transcriptIn(text, run, signal);
  /** @param {number} step @param {GroupFacts} group @param {number} chosen */
  const draw = (step, group, chosen) => {
    const count = group.rollouts?.length ?? 0;
    const go = (/** @type {string} */ word, /** @type {number} */ to, /** @type {string} */ sign) =>
      el(
        "button",
        {
          disabled: to < 1 || to > count,
          "aria-label": `${word} rollout of ${run}`,
          on: {click: () => draw(step, group, to)},
        },
        sign,
      );
    fill(
      bar,
      go("Previous", chosen - 1, "‹"),
      el("span", {}, `${chosen} of ${count}`),
      go("Next", chosen + 1, "›"),
      el("span", {class: "faint small"}, `step ${step}, mean reward ${number(group.mean)}`),
    );
    read(step, group, chosen);
  };
  return {
    node: el("section", {}, title, bar, text),
    /** @param {Where | null} where */
    show: async (where) => {
      fill(bar);
      if (!where) {
        fill(text, notice("No rollouts of this prompt."));
        return;
      }
      const whole = /** @type {WholeGroup} */ (
        await ask("rollouts", {run, step: where.step, group: where.number}, signal)
      );
      draw(where.step, whole.groups[0], 1);
    },
  };
}
