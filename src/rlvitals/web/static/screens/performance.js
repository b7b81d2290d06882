/** Performance: the phases of each step, their shares of the time, speeds with percentiles, memory, the machine. */

import {ask} from "../api.js";
import {atMostEvery, el, fill} from "../dom.js";
import {explainable} from "../drawer.js";
import {Figures} from "../figures.js";
import {lineOf} from "../lines.js";
import {duration, number} from "../numbers.js";
import {ends} from "../parts/ends.js";
import {head, notice, section, wideTable} from "../pieces.js";
import * as state from "../state.js";
import {lineStyle, LINES} from "../theme.js";

/** @import {MemoryUse, Performance, PhaseFacts, PhaseMemory, Speed} from "../../contract.d.ts" */

const STEPS = 12;
const LIVE_AGAIN = 5000;
const STAGES = /** @type {Record<string, string>} */ ({
  "start/offload": "before",
  "start/onload": "loaded",
  "end/onload": "executed",
  "end/offload": "unloaded",
});

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal}) {
  const figures = new Figures(root);
  let requestedRange = "";
  const look = async () => {
    requestedRange = range();
    const facts = await ask("performance", {run, from: state.get("first"), to: state.get("last")}, signal);
    figures.clear();
    draw(facts);
  };
  const draw = (/** @type {Performance} */ facts) => {
    const names = Object.keys(facts.share);
    const lines = Object.entries(facts.system.lines);
    const isEmpty =
      !facts.phases.length && !Object.keys(facts.throughput).length && !lines.length && !facts.memory.length;
    fill(
      root,
      el("div", {class: "head"}, el("h1", {}, "Performance"), stretch(facts)),
      isEmpty &&
        notice(
          "No phases, speeds or samples of the machine were recorded.",
          'with run.phase("generate"): … records a phase; samples are taken every five seconds.',
        ),
      section("Phases of each step", facts.phases.length && waterfall(facts, names)),
      section("Share of the time", names.length && shares(facts.share, names)),
      section("Speeds", Object.keys(facts.throughput).length && speeds(facts.throughput)),
      section("Memory during a phase", facts.memory.length && el("div", {class: "figures"}, facts.memory.map(memory))),
      section(
        "The machine",
        lines.length &&
          el(
            "div",
            {class: "figures"},
            lines
              .sort(([one], [other]) => Number(other.includes("GPU")) - Number(one.includes("GPU")))
              .map(([name, line]) =>
                figures.add(
                  explainable(name),
                  {lines: [lineOf(line, name)], isTime: true, sync: "machine"},
                  {height: 120},
                ),
              ),
          ),
      ),
    );
  };
  const range = () => `${state.get("first")}\n${state.get("last")}`;
  const newer = atMostEvery(LIVE_AGAIN, () => {
    look().catch(() => {});
  });
  await look();
  return {
    update: () => {
      if (range() !== requestedRange) look().catch(() => {});
    },
    live: ({kind}) => {
      if (kind === "rows" && root.scrollTop < 50) newer.ask();
    },
    stop: () => {
      newer.stop();
      figures.stop();
    },
    keys: [{key: "0", label: "all steps", does: () => state.go({first: null, last: null})}],
  };
}

/** @param {Performance} facts */
function stretch(facts) {
  const field = (/** @type {string} */ key, /** @type {string} */ text) => {
    const made = el("input", {
      type: "number",
      min: 0,
      "aria-label": text,
      placeholder: text,
      value: state.get(key),
      on: {change: () => state.go({[key]: made.value || null})},
    });
    return made;
  };
  return el(
    "span",
    {class: "controls inline"},
    field("first", "from step"),
    field("last", "to step"),
    facts.left_out > 0 &&
      el(
        "span",
        {class: "faint"},
        `the newest ${number(facts.phases.length)} phases of ${number(facts.phases.length + facts.left_out)}`,
      ),
  );
}

/** @param {HTMLElement} element @param {number} place @returns {HTMLElement} with the colour and pattern of a phase */
function painted(element, place) {
  element.style.backgroundColor = lineStyle(place).stroke;
  element.classList.add(`pattern-${Math.floor(place / LINES) % 3}`);
  return element;
}

/** @param {Performance} facts @param {string[]} names */
function waterfall(facts, names) {
  /** @type {Map<number, PhaseFacts[]>} */
  const steps = new Map();
  for (const span of facts.phases) steps.set(span.step, [...(steps.get(span.step) ?? []), span]);
  const shown = [...steps].slice(-STEPS);
  const starts = shown.map(([, spans]) => Math.min(...spans.map((span) => span.start)));
  const longest = Math.max(
    ...shown.map(([, spans], at) => Math.max(...spans.map((span) => span.end)) - starts[at]),
    1e-9,
  );
  const rows = shown.map(([step, spans], at) =>
    el(
      "div",
      {class: "lane"},
      el("span", {class: "num small"}, step < 0 ? "first" : `after ${number(step)}`),
      el(
        "div",
        {class: "bars"},
        spans.map((span) => {
          const took = span.end - span.start;
          const where = span.parent ? ` in ${span.parent}` : "";
          const label = `${span.name}: ${duration(took)}${where}${span.error ? `, ended by ${span.error}` : ""}`;
          const bar = painted(
            el("span", {
              class: `bar ${span.parent ? "inner" : ""} ${span.error ? "broken" : ""}`,
              title: label,
              role: "img",
              "aria-label": label,
            }),
            names.indexOf(span.name),
          );
          bar.style.left = `${((span.start - starts[at]) / longest) * 100}%`;
          bar.style.width = `max(2px, ${(took / longest) * 100}%)`;
          return bar;
        }),
      ),
    ),
  );
  return el(
    "div",
    {class: "waterfall"},
    el(
      "div",
      {class: "legend"},
      names.map((name, at) => el("span", {}, painted(el("span", {class: "box"}), at), " ", name)),
    ),
    rows,
    el(
      "div",
      {class: "lane"},
      el("span"),
      ends("0", duration(longest)),
    ),
  );
}

/** @param {Record<string, number>} share @param {string[]} names */
function shares(share, names) {
  return el(
    "table",
    {class: "shares"},
    names.map((name, at) => {
      const bar = painted(el("span", {class: "box long"}), at);
      bar.style.width = `${share[name] * 100}%`;
      return el(
        "tr",
        {},
        el("th", {scope: "row"}, name),
        el("td", {class: "num"}, `${(share[name] * 100).toFixed(1)} %`),
        el("td", {class: "grow"}, bar),
      );
    }),
  );
}

/** @param {Record<string, Speed>} given */
function speeds(given) {
  const rows = Object.entries(given).map(([name, speed]) =>
    el(
      "tr",
      {},
      el("th", {scope: "row"}, explainable(name, speed.title), el("div", {class: "mono faint small"}, name)),
      [speed.last, speed.p1, speed.p50, speed.p99].map((value) =>
        el("td", {class: "num"}, number(value), " ", el("span", {class: "faint small"}, speed.unit)),
      ),
      el("td", {class: "num"}, number(speed.points)),
    ),
  );
  const titles = head("Speed", "Last", "Slow tail (p1)", "Median", "Best (p99)", "Rows");
  return wideTable("Speeds", "", titles, el("tbody", {}, rows));
}

/** @param {PhaseMemory} phase */
function memory(phase) {
  const most = Math.max(
    phase.peak.reserved ?? 0,
    phase.peak.allocated ?? 0,
    ...phase.stages.map((stage) => stage.reserved ?? stage.allocated ?? 0),
    1e-9,
  );
  const row = (/** @type {string} */ title, /** @type {MemoryUse} */ stage) => {
    const outer = el("span", {class: "memory"});
    const inner = el("span", {class: "memory used"});
    outer.style.width = `${((stage.reserved ?? stage.allocated ?? 0) / most) * 100}%`;
    inner.style.width = `${((stage.allocated ?? 0) / most) * 100}%`;
    return el(
      "tr",
      {},
      el("th", {scope: "row"}, title),
      el("td", {class: "num"}, `${number(stage.allocated)} of ${number(stage.reserved)} GiB`),
      el("td", {class: "grow"}, el("span", {class: "stack"}, outer, inner)),
    );
  };
  return el(
    "figure",
    {class: "figure"},
    el(
      "figcaption",
      {},
      el("strong", {}, phase.phase),
      el("span", {class: "faint small"}, `device ${phase.device} · in use of reserved`),
    ),
    el(
      "table",
      {class: "shares"},
      phase.stages.map((stage) => row(STAGES[stage.stage] ?? stage.stage, stage)),
      Object.keys(phase.peak).length > 0 && row("peak", phase.peak),
    ),
  );
}
