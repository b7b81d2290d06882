/** One finding as a card: advice, causes, evidence, requests to the trainer, and curves. */

import {Chart} from "../charts.js";
import {el} from "../dom.js";
import {explainable} from "../drawer.js";
import {lineOf} from "../lines.js";
import {number, range} from "../numbers.js";
import {badge, link, styleOf} from "../pieces.js";
import {severityWord} from "./severity.js";
import {spotOf} from "./spots.js";

/** @import {AskedFacts, WholeFinding} from "../../contract.d.ts" */
/** @import {Child, Children} from "../dom.js" */

const ANSWERS = /** @type {Record<string, string>} */ ({
  done: "done",
  declined: "declined",
  replaced: "replaced by a more severe one",
  withdrawn: "withdrawn on recovery",
});

/** @type {WeakMap<Element, WholeFinding>} the finding whose curves are drawn in an element */
const traced = new WeakMap();

/** The key under which findings are raised and recover: a rule, or a rule and a slice. @param {WholeFinding} finding */
export function alarmOf({rule, slice}) {
  return slice ? `${rule}[${slice}]` : rule;
}

/**
 * @param {WholeFinding} finding
 * @param {number} place
 * @param {boolean} hasRollouts whether the run has rollouts
 * @param {{finding: WholeFinding, place: number}[]} others other findings of the same rule
 */
export function card(finding, place, hasRollouts, others) {
  const row = (/** @type {string} */ title, /** @type {Children} */ content, style = "") =>
    content && [el("dt", {}, title), el("dd", {class: style}, content)];
  const list = (/** @type {string[]} */ items) =>
    items.length > 0 &&
    el(
      "ul",
      {},
      items.map((item) => el("li", {}, item)),
    );
  const around = Math.max(20, 2 * (finding.step - finding.onset_step));
  const window = {from: Math.max(finding.onset_step - around, 0), to: finding.step + around, x: null};
  const filter = finding.metrics.map((name) => `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`).join("|");
  const made = el(
    "article",
    {class: `finding ${styleOf(finding.severity)}`, id: `finding-${place}`, tabindex: -1},
    el("header", {}, el("h2", {}, badge(finding.severity), " ", finding.title)),
    el(
      "p",
      {class: "faint"},
      `started at step ${number(finding.onset_step)}, ${severityWord(finding.severity)} at step ${number(finding.step)}`,
      ` · ${finding.kind.replaceAll("_", " ")}`,
      finding.slice && ` of ${finding.slice}`,
      " · rule ",
      finding.page
        ? el("a", {href: finding.page, target: "_blank", rel: "noreferrer"}, el("code", {}, finding.rule))
        : el("code", {}, finding.rule),
      finding.cause && ` · cause: ${finding.cause.replaceAll("_", " ")}`,
      ` · right in about ${Math.round(finding.confidence * 100)} % of such cases`,
      finding.recovered_step === null ? " · not recovered" : ` · recovered at step ${number(finding.recovered_step)}`,
    ),
    el(
      "dl",
      {class: "diagnosis"},
      row("Do", list(finding.advice), "do"),
      row("Likely causes", list(finding.causes)),
      row("Evidence", finding.evidence_told),
      row(
        "Metrics",
        finding.metrics.length > 0 && finding.metrics.flatMap((name) => /** @type {Child[]} */ ([explainable(name), " "])),
      ),
      row("Requested actions", asked(finding, others)),
      row("Example rollouts", finding.cited.length > 0 && hasRollouts && places(finding)),
      row("Also reported", others.length > 0 && besides(others)),
    ),
    finding.trace.length > 0 && el("div", {class: "traces"}),
    el(
      "footer",
      {},
      finding.metrics.length > 0 && link({class: "jump"}, {...window, filter}, "metrics", "These steps in Metrics"),
      hasRollouts && link({class: "jump"}, {step: finding.step}, "rollouts", `Rollouts at step ${finding.step}`),
    ),
  );
  const traces = made.querySelector(".traces");
  if (traces) traced.set(traces, finding);
  return made;
}

/** The cited texts, each with a link to its rollout, where the text is marked. @param {WholeFinding} finding */
function places(finding) {
  return el(
    "ul",
    {class: "cited"},
    finding.cited.map((place) =>
      el(
        "li",
        {},
        link({}, spotOf(place, finding.rule), "rollouts", `step ${number(place.step)}, group ${place.group}, rollout ${place.rollout}`),
        place.reward === null ? " " : ` (reward ${number(place.reward)}) `,
        el("mark", {class: "mono small"}, place.quote),
      ),
    ),
  );
}

/** @param {{finding: WholeFinding, place: number}[]} others */
function besides(others) {
  const items = others.map(({finding, place}) => {
    const over = finding.recovered_step === null ? "" : `, recovered at step ${number(finding.recovered_step)}`;
    return el("li", {id: `finding-${place}`}, `${severityWord(finding.severity)} at step ${number(finding.step)}: ${finding.title}${over}`);
  });
  return el("ul", {}, items);
}

/**
 * The requests because of a finding and of the other findings of its rule.
 * @param {WholeFinding} finding
 * @param {{finding: WholeFinding}[]} others
 */
function asked(finding, others) {
  const requests = [finding, ...others.map((other) => other.finding)].flatMap((one) => one.requests);
  if (!requests.length) return finding.action !== "none" ? `none; the rule asks for: ${finding.action.replaceAll("_", " ")}` : "";
  return el("ul", {}, requests.sort((one, other) => one.request - other.request).map(requestItem));
}

/** A request to the trainer, and its answer. @param {AskedFacts} request */
export function requestItem(request) {
  const by = request.asked_by ? `, ${request.reason}` : "";
  return el(
    "li",
    {},
    `${(request.action ?? "").replaceAll("_", " ")} requested at step ${number(request.step)}${by}: `,
    el(
      "strong",
      {},
      request.answer ? (ANSWERS[request.answer] ?? request.answer) : request.action === "warn" ? "warned" : "no answer",
    ),
    request.answer_text ? `, ${request.answer_text}` : "",
  );
}

/**
 * @param {HTMLElement} holder
 * @param {Chart[]} charts
 */
export function drawTraces(holder, charts) {
  const finding = traced.get(holder);
  if (!finding) return;
  const columns = finding.trace.length > 1 && holder.clientWidth > 640 ? 2 : 1;
  const width = Math.floor(holder.clientWidth / columns) - 10;
  for (const line of finding.trace) {
    const body = el("div");
    const readout = el("span", {class: "readout small"});
    holder.append(
      el(
        "figure",
        {},
        el(
          "figcaption",
          {class: "faint small"},
          el("span", {class: "mono"}, line.name),
          range(line.band) ? ` · typical ${range(line.band)} ` : " ",
          readout,
        ),
        body,
      ),
    );
    charts.push(
      new Chart(
        body,
        {
          lines: [lineOf(line, line.name)],
          band: line.band,
          marks: [{x: finding.onset_step, severity: finding.severity, title: finding.title}],
          onHover: (text) => {
            readout.textContent = text;
          },
        },
        {width, height: 150},
      ),
    );
  }
}
