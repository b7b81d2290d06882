/** Evaluations: a table over the steps, a curve for each score, and the epochs. */

import {ask} from "../api.js";
import {follow} from "../bar.js";
import {atMostEvery, el, fill} from "../dom.js";
import {explainable} from "../drawer.js";
import {Figures} from "../figures.js";
import {number} from "../numbers.js";
import * as state from "../state.js";
import {notice} from "../words.js";

const EXAMPLES = 5;
const LIVE_AGAIN = 5000;

/**
 * @param {import("../app.js").Place} place
 * @returns {Promise<import("../app.js").Screen>}
 */
export async function mount({run, root, signal, again}) {
  const facts = await ask("evaluations", {run}, signal);
  const figures = new Figures(root);
  const names = [
    ...new Set(
      facts.evaluations.flatMap((/** @type {any} */ one) =>
        Object.keys(one).filter((key) => key !== "step" && typeof one[key] === "number"),
      ),
    ),
  ];
  const epochs = facts.epochs?.epochs ?? [];
  const summary = ["first", "best", "last"]
    .filter((word) => facts[word])
    .map((word) => `${word} ${number(facts[word].accuracy)} at step ${number(facts[word].step)}`)
    .join(", ");
  fill(
    root,
    el(
      "div",
      {class: "head"},
      el("h1", {}, "Evaluations"),
      summary && el("p", {class: "faint"}, `accuracy: ${summary}`),
    ),
    facts.problems?.length > 0 &&
      el(
        "ul",
        {class: "problem"},
        facts.problems.map((/** @type {string} */ sentence) => el("li", {}, sentence)),
      ),
    !facts.evaluations.length &&
      !epochs.length &&
      notice("No evaluation was recorded.", "run.log_eval({...}, step=step) records one."),
    facts.evaluations.length > 0 && el("section", {class: "part"}, el("h2", {}, "Step by step"), table(facts, names)),
    names.length > 0 &&
      facts.evaluations.length > 1 &&
      el(
        "section",
        {class: "part"},
        el("h2", {}, "Curves"),
        el(
          "div",
          {class: "figures"},
          names.map((name) => figures.add(explainable(name), curve(facts.evaluations, name, "step"), {height: 140})),
        ),
      ),
    section("Examples of the last evaluation", examples(facts.evaluations)),
    epochs.length > 0 &&
      el(
        "section",
        {class: "part"},
        el("h2", {}, "Epochs: ", facts.epochs.verdict),
        el("p", {class: "faint"}, facts.epochs.why),
        epochTable(epochs),
        el(
          "div",
          {class: "figures"},
          epochNames(epochs).map((name) =>
            figures.add(
              explainable(name),
              curve(
                epochs.map((/** @type {any} */ epoch) => ({step: epoch.epoch, ...epoch.metrics})),
                name,
                "epoch",
              ),
              {height: 140},
            ),
          ),
        ),
      ),
  );
  const seen = JSON.stringify(facts.evaluations.map((/** @type {any} */ one) => one.step));
  const newer = atMostEvery(LIVE_AGAIN, () => {
    ask("evaluations", {run}, signal)
      .then((told) => {
        if (JSON.stringify(told.evaluations.map((/** @type {any} */ one) => one.step)) !== seen) again();
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

/** @param {string} title @param {any} content */
function section(title, content) {
  return content && el("section", {class: "part"}, el("h2", {}, title), content);
}

/**
 * @param {any[]} rows
 * @param {string} name
 * @param {string} xLabel
 * @returns {import("../charts.js").Picture}
 */
function curve(rows, name, xLabel) {
  const known = rows.filter((row) => typeof row[name] === "number" && typeof row.step === "number");
  return {
    lines: [{label: name, x: known.map((row) => row.step), y: known.map((row) => row[name])}],
    sync: `evaluations ${xLabel}`,
    xLabel,
  };
}

/** @param {any} facts @param {string[]} names */
function table(facts, names) {
  return el(
    "div",
    {class: "wide", tabindex: 0, role: "region", "aria-label": "Evaluations"},
    el(
      "table",
      {class: "evals"},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", {scope: "col"}, "Step"),
          names.map((name) => el("th", {scope: "col"}, explainable(name))),
        ),
      ),
      el(
        "tbody",
        {},
        facts.evaluations.map((/** @type {any} */ one) =>
          el(
            "tr",
            {class: facts.best?.step === one.step ? "best" : ""},
            el(
              "th",
              {scope: "row"},
              el(
                "a",
                {
                  href: state.address({step: one.step}, "rollouts"),
                  title: "Rollouts at this step",
                  on: {
                    click: (/** @type {MouseEvent} */ event) =>
                      follow(event, () => state.go({step: one.step}, {screen: "rollouts"})),
                  },
                },
                number(one.step),
              ),
              facts.best?.step === one.step ? " ★ best" : "",
            ),
            names.map((name) => el("td", {class: "num"}, number(one[name]))),
          ),
        ),
      ),
    ),
  );
}

/** @param {any[]} evaluations lists of samples that an evaluation kept */
function examples(evaluations) {
  const last = evaluations[evaluations.length - 1];
  const kept = Object.entries(last ?? {}).find(
    ([, value]) => Array.isArray(value) && value.length && typeof value[0] === "object",
  );
  if (!kept) return null;
  const rows = /** @type {any[]} */ (kept[1]).slice(0, EXAMPLES);
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return el(
    "div",
    {class: "wide", tabindex: 0, role: "region", "aria-label": "Examples"},
    el(
      "table",
      {class: "examples"},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          columns.map((name) => el("th", {scope: "col"}, name)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            columns.map((name) =>
              el(
                "td",
                {},
                el("pre", {}, typeof row[name] === "string" ? row[name] : JSON.stringify(row[name] ?? null)),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

/** @param {any[]} epochs @returns {string[]} */
function epochNames(epochs) {
  return [...new Set(epochs.flatMap((epoch) => Object.keys(epoch.metrics ?? {})))];
}

/** @param {any[]} epochs */
function epochTable(epochs) {
  const names = epochNames(epochs);
  return el(
    "div",
    {class: "wide", tabindex: 0, role: "region", "aria-label": "Epochs"},
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Epoch", "Steps", "Rows", ...names].map((name) => el("th", {scope: "col"}, name)),
        ),
      ),
      el(
        "tbody",
        {},
        epochs.map((epoch) =>
          el(
            "tr",
            {},
            el("th", {scope: "row"}, number(epoch.epoch)),
            el("td", {class: "num"}, `${number(epoch.first_step)} to ${number(epoch.last_step)}`),
            el("td", {class: "num"}, number(epoch.rows)),
            names.map((name) => el("td", {class: "num"}, number(epoch.metrics?.[name]))),
          ),
        ),
      ),
    ),
  );
}
