/** Evaluations: a table over the steps, a curve for each score, examples, and the epochs. */

import {ask} from "../api.js";
import {atMostEvery, el, fill} from "../dom.js";
import {explainable} from "../drawer.js";
import {Figures} from "../figures.js";
import {number} from "../numbers.js";
import {swatch} from "../parts/comparison.js";
import {head, link, notice, section, wideTable} from "../pieces.js";

/** @import {EpochFacts, Evaluated} from "../../contract.d.ts" */
/** @typedef {{name: string, label: string}} Slice */
/** @typedef {Record<string, unknown>} Values Values by name; an evaluation also has `step`. */

const EXAMPLES = 5;
const LIVE_AGAIN = 5000;

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal, again}) {
  const facts = await ask("evaluations", {run}, signal);
  const {evaluations, problems} = facts;
  const figures = new Figures(root);
  const names = grouped(facts.names, facts.slices).flatMap(({members}) => members.map(({name}) => name));
  const epochs = facts.epochs?.epochs ?? [];
  const summary = /** @type {const} */ (["first", "best", "last"])
    .flatMap((word) => {
      const scored = facts[word];
      return scored ? [`${word} ${number(scored.accuracy)} at step ${number(scored.step)}`] : [];
    })
    .join(", ");
  const curves = (/** @type {string[]} */ wanted, /** @type {Values[]} */ rows, /** @type {string} */ x) =>
    el(
      "div",
      {class: "figures"},
      grouped(wanted, facts.slices).map(({title, members}) =>
        figures.add(explainable(members[0].name, title), curve(rows, members, x), {
          height: 140,
          legend: members.length > 1 ? legend(members) : null,
        }),
      ),
    );
  fill(
    root,
    el(
      "div",
      {class: "head"},
      el("h1", {}, "Evaluations"),
      summary && el("p", {class: "faint"}, `accuracy: ${summary}`),
    ),
    problems.length > 0 &&
      el(
        "ul",
        {class: "problem"},
        problems.map((sentence) => el("li", {}, sentence)),
      ),
    !evaluations.length &&
      !epochs.length &&
      notice("No evaluation was recorded.", "run.log_eval({...}, step=step) records one."),
    section("Step by step", evaluations.length && table(facts, names)),
    section("Curves", names.length && evaluations.length > 1 && curves(names, evaluations, "step")),
    section("Examples of the last evaluation", examples(evaluations)),
    facts.epochs &&
      epochs.length > 0 &&
      section(
        `Epochs: ${facts.epochs.verdict}`,
        el("p", {class: "faint"}, facts.epochs.why),
        epochTable(epochs),
        curves(
          numbersIn(epochs.map((epoch) => epoch.metrics)),
          epochs.map(({epoch, metrics}) => ({step: epoch, ...metrics})),
          "epoch",
        ),
      ),
  );
  const stepsOf = (/** @type {Evaluated} */ evaluated) => evaluated.evaluations.map((one) => one.step).join();
  const newer = atMostEvery(LIVE_AGAIN, () => {
    ask("evaluations", {run}, signal)
      .then((evaluated) => {
        if (stepsOf(evaluated) !== stepsOf(facts)) again();
      })
      .catch(() => {});
  });
  return {
    live: ({kind}) => {
      if (kind === "rows") newer.ask();
    },
    stop: () => {
      newer.stop();
      figures.stop();
    },
  };
}

/** @param {Values[]} rows @returns {string[]} the names of all numbers */
function numbersIn(rows) {
  return [...new Set(rows.flatMap((row) => Object.keys(row).filter((name) => typeof row[name] === "number")))];
}

/** @param {unknown} value @returns {string} a formatted number or a text; a dash for anything else */
function formatted(value) {
  return number(typeof value === "number" || typeof value === "string" ? value : null);
}

/**
 * Groups names: the slices of one score together, any other name alone.
 * @param {string[]} names
 * @param {Evaluated["slices"]} slices
 */
function grouped(names, slices) {
  /** @type {Map<string, {title: string, members: Slice[]}>} */
  const found = new Map();
  for (const name of names) {
    const {series, label, title} = slices[name] ?? {series: name, label: name, title: name};
    const known = found.get(series);
    if (known) known.members.push({name, label});
    else found.set(series, {title, members: [{name, label}]});
  }
  return [...found.values()];
}

/** @param {Slice[]} members */
function legend(members) {
  const items = members.map(({label}, place) => el("span", {}, swatch(place), " ", label));
  return el("div", {class: "legend small"}, items);
}

/**
 * @param {Values[]} rows
 * @param {Slice[]} members
 * @param {string} xLabel
 * @returns {import("../charts.js").Picture}
 */
function curve(rows, members, xLabel) {
  const lines = members.map(({name, label}, style) => {
    const known = rows.filter((row) => typeof row[name] === "number" && typeof row.step === "number");
    return {label, style, x: known.map((row) => Number(row.step)), y: known.map((row) => Number(row[name]))};
  });
  return {lines, sync: `evaluations ${xLabel}`, xLabel};
}

/** @param {Evaluated} facts @param {string[]} names */
function table({evaluations, best, slices, has_rollouts}, names) {
  const rows = evaluations.map((one) => {
    const step = Number(one.step);
    const isBest = best?.step === step;
    return el(
      "tr",
      {class: isBest ? "best" : ""},
      el(
        "th",
        {scope: "row"},
        has_rollouts ? link({title: "Rollouts at this step"}, {step}, "rollouts", number(step)) : number(step),
        isBest ? " ★ best" : "",
      ),
      names.map((name) => el("td", {class: "num"}, formatted(one[name]))),
    );
  });
  const titles = names.map((name) => explainable(name, slices[name]?.label ?? name));
  const top = grouped(names, slices).map(({title, members}) =>
    el("th", {colspan: members.length, scope: "colgroup"}, members.length > 1 ? title : ""),
  );
  const titled = head("Step", ...titles);
  if (names.some((name) => slices[name])) titled.prepend(el("tr", {}, el("td"), top));
  return wideTable("Evaluations", "evals", titled, el("tbody", {}, rows));
}

/** @param {Values[]} evaluations the examples of the last one are shown, if it has a list of them */
function examples(evaluations) {
  const kept = Object.values(evaluations[evaluations.length - 1] ?? {}).find(
    (value) => Array.isArray(value) && value.length && typeof value[0] === "object",
  );
  if (!kept) return null;
  const rows = /** @type {Values[]} */ (kept).slice(0, EXAMPLES);
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (/** @type {unknown} */ value) =>
    el("td", {}, el("pre", {}, typeof value === "string" ? value : JSON.stringify(value ?? null)));
  return wideTable(
    "Examples",
    "examples",
    head(...columns),
    el(
      "tbody",
      {},
      rows.map((row) =>
        el(
          "tr",
          {},
          columns.map((name) => cell(row[name])),
        ),
      ),
    ),
  );
}

/** @param {EpochFacts[]} epochs */
function epochTable(epochs) {
  const names = [...new Set(epochs.flatMap((epoch) => Object.keys(epoch.metrics)))];
  const rows = epochs.map((epoch) =>
    el(
      "tr",
      {},
      el("th", {scope: "row"}, number(epoch.epoch)),
      el("td", {class: "num"}, `${number(epoch.first_step)} to ${number(epoch.last_step)}`),
      el("td", {class: "num"}, number(epoch.rows)),
      names.map((name) => el("td", {class: "num"}, number(epoch.metrics[name]))),
    ),
  );
  return wideTable("Epochs", "evals", head("Epoch", "Steps", "Rows", ...names), el("tbody", {}, rows));
}
