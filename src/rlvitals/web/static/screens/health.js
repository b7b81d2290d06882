/** Health: findings along the steps with evidence, causes, advice and requests; the cost of a run that went wrong. */

import {ask} from "../api.js";
import {atMostEvery, el, fill} from "../dom.js";
import {counted, number} from "../numbers.js";
import {ends} from "../parts/ends.js";
import {alarmOf, card, drawTraces, requestItem} from "../parts/finding.js";
import {hindsight} from "../parts/hindsight.js";
import {badge, link, notice, styleOf, symbolOf} from "../pieces.js";
import {severityWord} from "../parts/severity.js";
import * as state from "../state.js";

/** @import {Findings, TakenFacts, WholeFinding} from "../../contract.d.ts" */
/** @typedef {{finding: WholeFinding, place: number}} Shown A finding, and its index among all. */
/** @typedef {{worst: Shown, others: Shown[]}} Case The findings of one alarm: the most severe, and the rest. */

const SEVERITIES = ["critical", "warning", "info"];
const SURE = ["known", "given"];

const WHAT_WAS_LOOKED_FOR = "Run 'rlvitals check' to see what could not be judged and which metrics are missing.";

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal}) {
  let answer = await ask("findings", {run}, signal);
  /** @type {import("../charts.js").Chart[]} */
  let charts = [];
  const cost = el("div"); // filled later, because it needs the other runs of the folder
  const askCost = () => {
    ask("hindsight", {run}, signal)
      .then((received) => fill(cost, received.hindsight !== null && hindsight(received.hindsight)))
      .catch(() => {});
  };
  const newer = atMostEvery(500, () => {
    ask("findings", {run}, signal)
      .then((received) => {
        answer = received;
        draw();
        if (answer.judging) newer.ask();
        else askCost();
      })
      .catch(() => {});
  });
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watcher.unobserve(entry.target);
        drawTraces(/** @type {HTMLElement} */ (entry.target), charts);
      }
    },
    {root, rootMargin: "300px"},
  );

  const draw = () => {
    charts.forEach((chart) => chart.destroy());
    charts = [];
    const severity = state.get("severity");
    const rule = state.get("rule");
    const all = casesOf(answer.findings);
    const shown = all.filter(
      ({worst}) => (!severity || worst.finding.severity === severity) && (!rule || worst.finding.rule === rule),
    );
    const serious = shown.filter(({worst}) => worst.finding.severity !== "info");
    const remarks = shown.filter(({worst}) => worst.finding.severity === "info");
    const cards = (/** @type {Case[]} */ some) =>
      some.map(({worst, others}) => card(worst.finding, worst.place, answer.has_rollouts, others));
    fill(
      root,
      el("div", {class: "head"}, el("h1", {}, badge(answer.verdict)), el("p", {class: "reason"}, answer.reason)),
      answer.findings.length > 0 && el("div", {class: "controls"}, filters(all, severity, rule)),
      answer.findings.length > 0 && timeline(answer, (severity === "info" ? remarks : serious).flatMap(({worst, others}) => [worst, ...others])),
      cost,
      answer.left_out > 0 && el("p", {class: "faint"}, `${counted(answer.left_out, "older finding")} not shown`),
      shown.length
        ? el("div", {class: "cards"}, cards(serious), remarks.length > 0 && folded(remarks.length, severity === "info", cards(remarks)))
        : notice(
            answer.findings.length ? "No findings of this kind." : answer.judging ? "No findings yet." : "No findings.",
            answer.was_watched ? WHAT_WAS_LOOKED_FOR : `Not monitored during training: the log is judged when this page is opened. ${WHAT_WAS_LOOKED_FOR}`,
          ),
      answer.asked.length > 0 &&
        el("section", {class: "asked"}, el("h2", {}, "Requests from people"), el("ul", {}, answer.asked.map(requestItem))),
      answer.names.length > 0 && interpretations(answer.names),
    );
    for (const traces of root.querySelectorAll(".finding .traces")) watcher.observe(traces);
    show();
  };
  const show = () => {
    const at = state.getNumber("finding");
    const wanted = at === null ? null : (document.getElementById(`finding-${at}`)?.closest(".finding") ?? null);
    for (const made of root.querySelectorAll(".finding")) made.classList.toggle("chosen", made === wanted);
    wanted?.closest("details")?.setAttribute("open", "");
    wanted?.scrollIntoView({block: "start"});
    if (wanted instanceof HTMLElement) wanted.focus({preventScroll: true});
  };
  const walk = (/** @type {number} */ by) => {
    const all = [...root.querySelectorAll(".finding")];
    const at = all.findIndex((made) => made.classList.contains("chosen"));
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    if (next) state.go({finding: next.id.slice("finding-".length)}, {replace: true});
  };
  draw();
  if (answer.judging) newer.ask();
  else askCost();
  let filtered = state.get("severity") + state.get("rule");
  return {
    update: () => {
      const now = state.get("severity") + state.get("rule");
      if (now !== filtered) draw();
      else show();
      filtered = now;
    },
    live: ({kind}) => {
      if (kind === "findings") newer.ask();
    },
    stop: () => {
      newer.stop();
      watcher.disconnect();
      charts.forEach((chart) => chart.destroy());
    },
    keys: [
      {key: "j", label: "next finding", does: () => walk(1)},
      {key: "k", label: "previous finding", does: () => walk(-1)},
    ],
  };
}

let isUnfolded = false;

/**
 * The findings of severity info, collapsed into one line.
 * @param {number} count
 * @param {boolean} isWanted
 * @param {HTMLElement[]} cards
 */
function folded(count, isWanted, cards) {
  const fold = el(
    "details",
    {class: "remarks", open: isWanted || isUnfolded, on: {toggle: () => (isUnfolded = fold.open)}},
    el("summary", {}, `${counted(count, "remark")}, no reason to worry`),
    cards,
  );
  return fold;
}

/**
 * How each name was interpreted, with the number of those that were recognised only by their words.
 * @param {TakenFacts[]} names
 */
function interpretations(names) {
  const guessed = names.filter(({sureness}) => !SURE.includes(sureness));
  const note = guessed.length ? `, ${guessed.length} recognised by ${guessed.length === 1 ? "its" : "their"} words` : "";
  const rows = names.map(({name, signal, concept, sureness, why}) =>
    el(
      "tr",
      {},
      el("th", {scope: "row"}, el("code", {}, name)),
      el("td", {}, concept || signal),
      el("td", {class: SURE.includes(sureness) ? "faint" : ""}, sureness),
      el("td", {class: "faint"}, why),
    ),
  );
  return el(
    "details",
    {class: "taken"},
    el("summary", {}, `How each name was interpreted: ${counted(names.length, "name")}${note}`),
    el("div", {class: "wide"}, el("table", {}, el("tbody", {}, rows))),
    guessed.length > 0 &&
      el("p", {class: "faint"}, "Set one with mapping={\"NAME\": \"CONCEPT\"} in rlvitals.start, or 'rlvitals check --map NAME=CONCEPT'."),
  );
}

/**
 * One case per alarm (a rule, or a rule and a slice), with its most severe finding. An alarm that is raised repeatedly
 * or becomes more severe counts once. The most severe cases come first; equal ones keep the order of the findings.
 * @param {WholeFinding[]} findings
 * @returns {Case[]}
 */
function casesOf(findings) {
  const rank = (/** @type {Shown} */ {finding}) => SEVERITIES.indexOf(finding.severity);
  const sorted = findings.map((finding, place) => ({finding, place})).sort((one, other) => rank(one) - rank(other));
  /** @type {Map<string, Case>} */
  const found = new Map();
  for (const shown of sorted) {
    const known = found.get(alarmOf(shown.finding));
    if (known) known.others.push(shown);
    else found.set(alarmOf(shown.finding), {worst: shown, others: []});
  }
  return [...found.values()];
}

/**
 * @param {Case[]} cases
 * @param {string} severity
 * @param {string} rule
 */
function filters(cases, severity, rule) {
  const rules = [...new Set(cases.map(({worst}) => worst.finding.rule))].sort();
  const chips = ["", ...SEVERITIES].map((name) => {
    const count = name ? cases.filter(({worst}) => worst.finding.severity === name).length : cases.length;
    return el(
      "button",
      {
        class: "chip",
        "aria-pressed": String(severity === name),
        disabled: !count,
        on: {click: () => state.go({severity: name || null, finding: null})},
      },
      name ? `${symbolOf(name)} ${severityWord(name)}` : "all",
      " ",
      el("span", {class: "faint"}, count),
    );
  });
  const select = el(
    "select",
    {"aria-label": "Rule", on: {change: () => state.go({rule: select.value || null, finding: null})}},
    el("option", {value: ""}, "every rule"),
    rules.map((name) => el("option", {value: name, selected: name === rule}, name)),
  );
  return [...chips, select];
}

/**
 * The whole run from left to right, with one lane per alarm.
 * @param {Findings} answer
 * @param {Shown[]} shown
 */
function timeline({findings, first_step, last_step}, shown) {
  if (!shown.length) return null;
  const last = Math.max(...findings.map((finding) => finding.recovered_step ?? finding.step), last_step ?? 1);
  const first = Math.min(...findings.map((finding) => finding.onset_step), first_step ?? 0);
  const at = (/** @type {number} */ step) => `${((step - first) / Math.max(last - first, 1)) * 100}%`;
  const lanes = new Map(shown.map(({finding}) => [alarmOf(finding), ""]));
  const rows = [...lanes.keys()].map((alarm) => {
    const marks = shown
      .filter(({finding}) => alarmOf(finding) === alarm)
      .flatMap(({finding, place}) => {
        const bar = el("span", {class: `span ${styleOf(finding.severity)}`});
        bar.style.left = at(finding.onset_step);
        // The bar ends at the recovery, or at the end of the run.
        bar.style.width = `calc(${at(finding.recovered_step ?? last)} - ${at(finding.onset_step)})`;
        const mark = link(
          {
            class: `mark ${styleOf(finding.severity)}`,
            title: `step ${finding.step}: ${finding.title}`,
            "aria-label": `${severityWord(finding.severity)} at step ${finding.step}: ${finding.title}`,
          },
          {finding: place},
          undefined,
          symbolOf(finding.severity),
        );
        mark.style.left = at(finding.step);
        return [bar, mark];
      });
    const name = alarm.split("_").flatMap((word, place) => (place ? ["_", el("wbr"), word] : [word]));
    return el("div", {class: "lane"}, el("span", {class: "mono small", title: alarm}, name), el("div", {class: "track"}, marks));
  });
  return el(
    "section",
    {class: "timeline", "aria-label": "Findings by step"},
    el("div", {class: "lanes"}, rows),
    el(
      "div",
      {class: "lane"},
      el("span"),
      ends(`step ${number(first)}`, number(last)),
    ),
    legend(shown),
  );
}

/** @param {Shown[]} shown the findings whose signs are explained */
function legend(shown) {
  const used = SEVERITIES.filter((name) => shown.some(({finding}) => finding.severity === name));
  const signs = used.map((name) =>
    el("span", {}, el("span", {class: `sign ${styleOf(name)}`, "aria-hidden": "true"}, symbolOf(name)), ` ${severityWord(name)}, at the step it was reported`),
  );
  const bar = el("span", {}, el("span", {class: "stretch", "aria-hidden": "true"}), " from its start until it recovered, or to the end of the run");
  return el("p", {class: "legend faint small"}, signs, bar);
}
