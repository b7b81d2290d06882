/** Health: findings along the steps, each with its evidence, likely causes, advice and what was done about it. */

import {ask} from "../api.js";
import {atMostEvery, el, fill} from "../dom.js";
import {counted, number} from "../numbers.js";
import {card, drawTraces} from "../parts/finding.js";
import {badge, link, notice, styleOf, symbolOf} from "../pieces.js";
import * as state from "../state.js";

/** @import {TakenFacts, WholeFinding} from "../../contract.d.ts" */
/** @typedef {{finding: WholeFinding, place: number}} Shown A finding, and its place among all. */

const SEVERITIES = ["critical", "warning", "info"];
const SURE = ["known", "given"];

const WHAT_WAS_LOOKED_FOR = "'rlvitals check' on this run lists what could not be judged, and which metric it would take.";

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal}) {
  let answer = await ask("findings", {run}, signal);
  /** @type {import("../charts.js").Chart[]} */
  let charts = [];
  const newer = atMostEvery(500, () => {
    ask("findings", {run}, signal)
      .then((told) => {
        answer = told;
        draw();
        if (answer.judging) newer.ask();
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
    const shown = answer.findings
      .map((finding, place) => ({finding, place}))
      .filter(({finding}) => (!severity || finding.severity === severity) && (!rule || finding.rule === rule));
    const cards = worstFirst(shown).map(({finding, place}) => card(finding, place, answer.has_rollouts));
    fill(
      root,
      el("div", {class: "head"}, el("h1", {}, badge(answer.verdict)), el("p", {class: "reason"}, answer.reason)),
      answer.findings.length > 0 && el("div", {class: "controls"}, filters(answer.findings, severity, rule)),
      answer.findings.length > 0 && timeline(answer.findings, shown),
      answer.left_out > 0 && el("p", {class: "faint"}, `${counted(answer.left_out, "older finding")} not shown`),
      shown.length
        ? el("div", {class: "cards"}, cards)
        : notice(
            answer.findings.length ? "No finding of this kind." : answer.judging ? "Nothing yet." : "Nothing was found.",
            answer.was_watched ? WHAT_WAS_LOOKED_FOR : `Nobody watched the training: the log is judged. ${WHAT_WAS_LOOKED_FOR}`,
          ),
      answer.names.length > 0 && takenFor(answer.names),
    );
    for (const traces of root.querySelectorAll(".finding .traces")) watcher.observe(traces);
    show();
  };
  const show = () => {
    const at = state.getNumber("finding");
    const wanted = at === null ? null : document.getElementById(`finding-${at}`);
    for (const made of root.querySelectorAll(".finding")) made.classList.toggle("chosen", made === wanted);
    wanted?.scrollIntoView({block: "start"});
    wanted?.focus({preventScroll: true});
  };
  const walk = (/** @type {number} */ by) => {
    const all = [...root.querySelectorAll(".finding")];
    const at = all.findIndex((made) => made.classList.contains("chosen"));
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    if (next) state.go({finding: next.id.slice("finding-".length)}, {replace: true});
  };
  draw();
  if (answer.judging) newer.ask();
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
      {key: "j", says: "next finding", does: () => walk(1)},
      {key: "k", says: "finding before", does: () => walk(-1)},
    ],
  };
}

/**
 * What the doctor reads each name as; those it knows by their words alone are said aloud.
 * @param {TakenFacts[]} names
 */
function takenFor(names) {
  const guessed = names.filter(({sureness}) => !SURE.includes(sureness));
  const told = guessed.length ? `, ${guessed.length} by ${guessed.length === 1 ? "its" : "their"} words` : "";
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
    el("summary", {}, `What the doctor reads: ${counted(names.length, "name")}${told}`),
    el("div", {class: "wide"}, el("table", {}, el("tbody", {}, rows))),
    guessed.length > 0 &&
      el("p", {class: "faint"}, "Settle one with mapping={\"NAME\": \"CONCEPT\"} in rlvitals.start, or 'rlvitals check --map NAME=CONCEPT'."),
  );
}

/**
 * What matters most on top, and of equals what came first.
 * @param {Shown[]} shown
 */
function worstFirst(shown) {
  const rank = (/** @type {Shown} */ {finding}) => SEVERITIES.indexOf(finding.severity);
  return [...shown].sort((one, other) => rank(one) - rank(other));
}

/**
 * @param {WholeFinding[]} findings
 * @param {string} severity
 * @param {string} rule
 */
function filters(findings, severity, rule) {
  const rules = [...new Set(findings.map((finding) => finding.rule))].sort();
  const chips = ["", ...SEVERITIES].map((name) => {
    const count = name ? findings.filter((finding) => finding.severity === name).length : findings.length;
    return el(
      "button",
      {
        class: "chip",
        "aria-pressed": String(severity === name),
        disabled: !count,
        on: {click: () => state.go({severity: name || null, finding: null})},
      },
      name ? `${symbolOf(name)} ${name}` : "all",
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
 * @param {WholeFinding[]} all
 * @param {Shown[]} shown
 */
function timeline(all, shown) {
  const last = Math.max(...all.map((finding) => finding.recovered_step ?? finding.step), 1);
  const first = Math.min(...all.map((finding) => finding.onset_step), 0);
  const at = (/** @type {number} */ step) => `${((step - first) / Math.max(last - first, 1)) * 100}%`;
  const lanes = new Map(shown.map(({finding}) => [finding.rule, ""]));
  const rows = [...lanes.keys()].map((rule) => {
    const marks = shown
      .filter(({finding}) => finding.rule === rule)
      .flatMap(({finding, place}) => {
        const bar = el("span", {class: `span ${styleOf(finding.severity)}`});
        bar.style.left = at(finding.onset_step);
        // Until it recovered; what still stands goes on to the end.
        bar.style.width = `calc(${at(finding.recovered_step ?? last)} - ${at(finding.onset_step)})`;
        const mark = link(
          {
            class: `mark ${styleOf(finding.severity)}`,
            title: `step ${finding.step}: ${finding.title}`,
            "aria-label": `${finding.severity} at step ${finding.step}: ${finding.title}`,
          },
          {finding: place},
          undefined,
          symbolOf(finding.severity),
        );
        mark.style.left = at(finding.step);
        return [bar, mark];
      });
    return el("div", {class: "lane"}, el("span", {class: "mono small"}, rule), el("div", {class: "track"}, marks));
  });
  return el(
    "section",
    {class: "timeline", "aria-label": "Findings along the steps"},
    rows,
    el(
      "div",
      {class: "lane"},
      el("span"),
      el("div", {class: "ends faint small"}, el("span", {}, `step ${number(first)}`), el("span", {}, number(last))),
    ),
  );
}
