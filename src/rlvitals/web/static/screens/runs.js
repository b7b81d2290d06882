/** All runs of the folder: verdict, status, how far. */

import {ask} from "../api.js";
import {calm, el, fill} from "../dom.js";
import {ago, counted, number} from "../numbers.js";
import {badge, head, link, notice, wideTable} from "../pieces.js";
import * as state from "../state.js";

/** @import {ListedRun} from "../../contract.d.ts" */

const STEP = 200;
const COLUMNS = ["Verdict", "Run", "Algorithm", "Status", "Step", "Metrics", "Updated"];
const ORDER = /** @type {Record<string, number>} */ ({act: 0, watch: 1, healthy: 2});

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({root, signal}) {
  const answer = await ask("runs", {}, signal);
  let most = STEP;
  const field = el("input", {
    type: "search",
    placeholder: "filter by name, status, algorithm, verdict",
    "aria-label": "Filter runs",
    value: state.get("filter"),
    on: {input: calm(() => state.go({filter: field.value}, {replace: true}), 150)},
  });
  const order = el(
    "select",
    {"aria-label": "Order", on: {change: () => state.go({order: order.value}, {replace: true})}},
    [
      ["updated", "newest first"],
      ["verdict", "gravest first"],
      ["name", "by name"],
    ].map(([value, text]) => el("option", {value, selected: state.get("order") === value}, text)),
  );
  const body = el("tbody");
  const more = el(
    "button",
    {
      on: {
        click: () => {
          most += STEP;
          draw();
        },
      },
    },
    "Show more",
  );
  const count = el("p", {class: "faint"});
  const compare = el("button", {class: "primary", on: {click: () => compareMarked()}}, "Compare");
  /** @type {Set<string>} */
  const marked = new Set();

  const compareMarked = () => {
    const [base, ...others] = [...marked];
    state.go({run: base, with: others}, {screen: "compare"});
  };
  const mark = (/** @type {string} */ run, /** @type {boolean} */ isOn) => {
    isOn ? marked.add(run) : marked.delete(run);
    compare.hidden = marked.size < 2;
    compare.textContent = `Compare ${marked.size} runs`;
  };
  const draw = () => {
    const words = state.get("filter").toLowerCase().split(/\s+/).filter(Boolean);
    const found = answer.runs.filter((run) => {
      const said = [run.run, run.name, run.status, run.algorithm, run.framework, run.verdict].join(" ").toLowerCase();
      return words.every((word) => said.includes(word));
    });
    found.sort(sorting(state.get("order")));
    fill(body, ...found.slice(0, most).map((run) => row(run, marked.has(run.run), mark)));
    more.hidden = found.length <= most;
    count.textContent =
      found.length === answer.runs.length
        ? counted(found.length, "run")
        : `${found.length} of ${counted(answer.runs.length, "run")}`;
  };

  mark("", false);
  fill(
    root,
    el("div", {class: "head"}, el("h1", {}, `Runs in ${answer.folder}`), count),
    answer.runs.length
      ? [
          el("div", {class: "controls"}, field, order, compare),
          wideTable("Runs", "runs", head(el("span", {class: "unseen"}, "Compare"), ...COLUMNS), body),
          more,
        ]
      : notice(
          "There is no run here.",
          'A run is made by rlvitals.start("out/my-run"), or from a log by: rlvitals import LOG --to out/my-run',
        ),
  );
  draw();
  return {
    update: draw,
    keys: [{key: "/", says: "filter", does: () => field.focus()}],
  };
}

/** @param {string} order @returns {(one: ListedRun, other: ListedRun) => number} */
function sorting(order) {
  if (order === "name") return (one, other) => one.run.localeCompare(other.run);
  const newest = (/** @type {ListedRun} */ one, /** @type {ListedRun} */ other) => (other.updated ?? 0) - (one.updated ?? 0);
  if (order === "verdict")
    return (one, other) => (ORDER[one.verdict] ?? 3) - (ORDER[other.verdict] ?? 3) || newest(one, other);
  return newest;
}

/**
 * @param {ListedRun} run
 * @param {boolean} isMarked
 * @param {(run: string, isOn: boolean) => void} mark
 */
function row(run, isMarked, mark) {
  const step = run.total_steps ? `${number(run.last_step)} of ${number(run.total_steps)}` : number(run.last_step);
  return el(
    "tr",
    {},
    el(
      "td",
      {},
      el("input", {
        type: "checkbox",
        checked: isMarked,
        "aria-label": `Compare ${run.run}`,
        on: {change: (event) => mark(run.run, event.target.checked)},
      }),
    ),
    el("td", {}, badge(run.verdict)),
    el(
      "td",
      {},
      link({}, {run: run.run, filter: null}, "vitals", run.run === "." ? run.name : run.run),
      el("div", {class: "faint small"}, run.reason),
    ),
    el("td", {}, [run.algorithm, run.framework].filter(Boolean).join(" · ") || "–"),
    el("td", {}, run.status, run.status_note && el("div", {class: "faint small"}, run.status_note)),
    el("td", {class: "num"}, step),
    el("td", {class: "num"}, number(run.metrics)),
    el("td", {title: run.updated ? new Date(run.updated * 1000).toLocaleString() : ""}, ago(run.updated)),
  );
}
