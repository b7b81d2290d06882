/** Vitals: the verdict and its reason, the vital signs as tiles, findings along the steps, and the run's progress. */

import {ask} from "../api.js";
import {announce, atMostEvery, el, fill} from "../dom.js";
import {ago, counted, duration, number} from "../numbers.js";
import {about} from "../parts/about.js";
import {ends} from "../parts/ends.js";
import {tile} from "../parts/tile.js";
import {badge, styleOf, symbolOf} from "../pieces.js";
import {severityWord} from "../parts/severity.js";
import * as state from "../state.js";

/** @import {Now, StepCell, Vitals} from "../../contract.d.ts" */

const AGAIN = 2000;

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal}) {
  let facts = await ask("run", {run}, signal);
  const top = el("div");
  const draw = () => {
    const focus = document.activeElement?.closest("[data-tile]")?.getAttribute("data-tile");
    const kind = document.activeElement?.tagName ?? "";
    fill(top, verdict(facts), el("div", {class: "tiles"}, facts.tiles.map(tile)), steps(facts));
    if (focus)
      /** @type {HTMLElement | null} */ (top.querySelector(`[data-tile="${CSS.escape(focus)}"] ${kind}`))?.focus();
  };
  const newer = atMostEvery(AGAIN, () => {
    ask("run", {run}, signal)
      .then((answer) => {
        if (answer.verdict !== facts.verdict) announce(`The verdict is now ${answer.verdict}: ${answer.reason}`);
        facts = answer;
        draw();
        if (facts.judging) newer.ask();
      })
      .catch(() => {});
  });
  draw();
  if (facts.judging) newer.ask();
  fill(root, top, about(facts));
  const clock = setInterval(() => tick(root, facts), 1000);
  return {
    live: ({kind, facts: news}) => {
      if (kind === "rows") {
        facts.now.step = news.step ?? facts.now.step;
        facts.now.updated = news.updated ?? facts.now.updated;
        for (const item of facts.tiles)
          if (news.values[item.name] !== undefined) item.value = news.values[item.name];
        refresh(root, facts);
      }
      if (kind === "rows" || kind === "findings" || (kind === "status" && news.status !== facts.status)) newer.ask();
    },
    stop: () => {
      newer.stop();
      clearInterval(clock);
    },
    keys: [
      {key: "m", label: "all metrics", does: () => state.go({}, {screen: "metrics"})},
      {key: "h", label: "all findings", does: () => state.go({}, {screen: "health"})},
    ],
  };
}

/** @param {Vitals} facts */
function verdict(facts) {
  const {now} = facts;
  const share = now.total_steps && now.step !== null ? Math.min(now.step / now.total_steps, 1) : null;
  const progress = el("progress", {max: 1, "aria-label": "Steps done"});
  progress.value = share ?? 0;
  const cell = (/** @type {string} */ title, /** @type {string} */ value, id = "") =>
    el("div", {}, el("dt", {}, title), el("dd", {data: id ? {now: id} : {}}, value));
  return el(
    "section",
    {class: `verdict ${styleOf(facts.verdict)}`},
    el(
      "div",
      {class: "conclusion"},
      el("h1", {}, badge(facts.verdict)),
      el("p", {class: "reason"}, facts.reason),
      el(
        "p",
        {class: "faint"},
        [facts.name, facts.algorithm, facts.algorithm ? facts.framework : "", facts.status_note || facts.status].filter(Boolean).join(" · "),
      ),
    ),
    el(
      "div",
      {class: "now"},
      el(
        "dl",
        {},
        cell("Step", stepText(now), "step"),
        now.eta_s !== null && cell("Left", duration(now.eta_s)),
        now.tokens_per_s && cell("Tokens/s", number(now.tokens_per_s)),
        now.phase && cell("Phase", now.phase),
        cell("Updated", ago(now.updated), "updated"),
      ),
      share !== null && progress,
    ),
  );
}

/** @param {Now} now @returns {string} */
function stepText(now) {
  return now.total_steps ? `${number(now.step)} of ${number(now.total_steps)}` : number(now.step);
}

/** @param {Vitals} facts */
function steps(facts) {
  if (!facts.step_bar.length) return null;
  const cells = merged(facts.step_bar).map((cell) => {
    const made = cell.severity
      ? el(
          "button",
          {
            class: `cell ${cell.severity === "info" ? "clear remark" : styleOf(cell.severity)}`,
            title: `steps ${cell.from} to ${cell.to}: ${counted(cell.findings.length, "finding")}, worst ${severityWord(cell.severity)}`,
            on: {click: () => state.go({finding: cell.findings[0]}, {screen: "health"})},
          },
          symbolOf(cell.severity),
          el("span", {class: "unseen"}, ` ${severityWord(cell.severity)}, steps ${cell.from} to ${cell.to}`),
        )
      : el("span", {
          class: "cell clear",
          title: `steps ${cell.from} to ${cell.to}: nothing found`,
        });
    made.style.flexGrow = String(cell.to - cell.from + 1);
    return made;
  });
  const first = facts.step_bar[0].from;
  const last = facts.step_bar[facts.step_bar.length - 1].to;
  return el(
    "section",
    {},
    el("h2", {}, "Findings by step"),
    el("div", {class: "stepbar"}, cells),
    ends(`step ${number(first)}`, number(last)),
  );
}

/**
 * Joins neighbouring cells of the same severity.
 * @param {StepCell[]} cells
 * @returns {StepCell[]}
 */
function merged(cells) {
  /** @type {StepCell[]} */
  const out = [];
  for (const cell of cells) {
    const before = out[out.length - 1];
    if (before && before.severity === cell.severity) {
      before.to = cell.to;
      before.findings = [...new Set([...before.findings, ...cell.findings])];
    } else out.push({...cell});
  }
  return out;
}

/**
 * Updates the numbers of a new row in place. Elements are not replaced, so the focus is kept.
 * @param {HTMLElement} root
 * @param {Vitals} facts
 */
function refresh(root, facts) {
  for (const item of facts.tiles) {
    const place = root.querySelector(`[data-tile="${CSS.escape(item.name)}"] [data-value]`);
    if (place) place.textContent = number(item.value);
  }
  const step = root.querySelector("[data-now=step]");
  if (step) step.textContent = stepText(facts.now);
  tick(root, facts);
}

/** @param {HTMLElement} root @param {Vitals} facts */
function tick(root, facts) {
  const updated = root.querySelector("[data-now=updated]");
  if (updated) updated.textContent = ago(facts.now.updated);
}
