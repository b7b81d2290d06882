/**
 * The overlaid runs of the Metrics screen: which runs (`run`, `also`), their grouping (`by`), and the bar with their
 * legend, where runs can be hidden, brought to the front, removed and added.
 */

import {ask} from "../api.js";
import {calm, el, fill} from "../dom.js";
import {dialog} from "../keys.js";
import {nameOf, onMarks} from "../marks.js";
import {counted, number} from "../numbers.js";
import {badge} from "../pieces.js";
import * as state from "../state.js";
import {stylesOf} from "../runstyles.js";
import {swatch} from "./comparison.js";

/** @typedef {import("../series.js").Grouping} Grouping */
/**
 * @typedef {Object} Member A run or a group of runs, drawn as one line.
 * @property {string} key Its name in the address.
 * @property {string} label
 * @property {string[]} runs
 * @property {number} style
 */
/** @typedef {{members: Member[], hidden: Set<string>, front: string}} Overlaid */

export const MOST_RUNS = 32;
const MOST_LISTED = 300;

/** @returns {string[]} the current run, and the runs overlaid on it */
export function runsShown() {
  const run = state.get("run");
  return [...new Set([run, ...state.getAll("also")])].slice(0, MOST_RUNS);
}

/**
 * The metrics that only the overlaid runs log, each with the names of those runs.
 * @param {string[]} runs
 * @param {AbortSignal} signal
 */
export async function othersOf(runs, signal) {
  const {metrics} = await ask("others", {run: runs}, signal);
  return metrics.flatMap((metric) => {
    const own = metric.logged_by.filter((run) => runs.includes(run));
    return own.length ? {...metric, onlyIn: own.map(nameOf)} : [];
  });
}

/** @param {Grouping} grouping @returns {Overlaid | null} null if only one run is shown */
export function overlaidNow(grouping) {
  const runs = runsShown();
  if (runs.length < 2) return null;
  const found = state.get("by") ? grouping.groups : runs.map((run) => ({label: run, runs: [run]}));
  const styles = stylesOf(found.map(({label}) => label));
  const members = found.map(({label, runs: own}) => ({
    key: label,
    label: label === "." ? "this folder" : nameOf(label),
    runs: own,
    style: styles.get(label) ?? 0,
  }));
  return {members, hidden: new Set(state.getAll("hide")), front: state.get("front")};
}

/**
 * The bar above the panels.
 * @returns {{node: HTMLElement, update(grouping: Grouping): void, stop(): void}}
 */
export function overlayBar() {
  const node = el("div", {class: "controls over", role: "group", "aria-label": "Overlaid runs"});
  /** @type {Grouping} */
  let shown = {groups: [], settings: []};
  const update = (/** @type {Grouping} */ grouping) => {
    shown = grouping;
    const overlaid = overlaidNow(grouping);
    node.classList.toggle("is-laid", overlaid !== null);
    const add = el("button", {on: {click: () => pick().catch(() => {})}}, overlaid ? "Runs…" : "Overlay other runs…");
    fill(node, overlaid?.members.map((member) => chip(member, overlaid)) ?? [], overlaid && grouped(grouping), add);
  };
  update(shown);
  const stop = onMarks(() => update(shown)); // the names of runs may change
  return {node, update, stop};
}

/** @param {Member} member @param {Overlaid} overlaid */
function chip({key, label, runs, style}, {hidden, front}) {
  const isHidden = hidden.has(key);
  const others = [...hidden].filter((other) => other !== key);
  const isFirst = runs.includes(state.get("run"));
  const count = runs.length > 1 ? ` · ${runs.length} runs` : "";
  return el(
    "span",
    {class: `run${isHidden ? " is-hidden" : ""}`, data: {run: key}},
    el(
      "button",
      {
        class: "plain",
        "aria-pressed": String(!isHidden),
        title: `${label}: show or hide`,
        on: {click: () => state.go({hide: isHidden ? others : [...others, key]}, {replace: true})},
      },
      swatch(style),
      " ",
      label,
      count,
    ),
    el(
      "button",
      {
        class: "plain front",
        "aria-pressed": String(front === key),
        "aria-label": `${label} in front`,
        title: "In front of the others",
        on: {click: () => state.go({front: front === key ? null : key}, {replace: true})},
      },
      "◎",
    ),
    !isFirst &&
      el("button", {class: "plain", "aria-label": `Remove ${label}`, on: {click: () => remove(runs, key)}}, "✕"),
  );
}

/** @param {string[]} runs @param {string} key */
function remove(runs, key) {
  const also = state.getAll("also").filter((run) => !runs.includes(run));
  const hide = state.getAll("hide").filter((other) => other !== key);
  state.go({also, hide, ...(state.get("front") === key && {front: null}), ...(also.length ? {} : {by: null})});
}

/** @param {Grouping} grouping */
function grouped({settings}) {
  const by = state.get("by");
  const known = by && !settings.includes(by) ? [by, ...settings] : settings;
  if (!known.length) return null;
  const choice = el(
    "select",
    {
      "aria-label": "Group runs by",
      on: {change: () => state.go({by: choice.value || null, hide: null, front: null})},
    },
    el("option", {value: ""}, "each run"),
    known.map((setting) => el("option", {value: setting}, setting)),
  );
  choice.value = by;
  return el("label", {}, "group by ", choice);
}

/** Opens a dialog in which runs are chosen. */
async function pick() {
  const {runs} = await ask("runs");
  const run = state.get("run");
  const list = el("div", {class: "choices"});
  const status = el("p", {class: "faint small", role: "status"});
  const mark = (/** @type {string} */ name, /** @type {boolean} */ isOn) => {
    const now = state.getAll("also").filter((other) => other !== name);
    state.go({also: isOn ? [...now, name] : now, ...(isOn || now.length ? {} : {by: null})}, {replace: true});
    draw();
  };
  const draw = () => {
    const also = state.getAll("also");
    const isFull = also.length >= MOST_RUNS - 1;
    const words = field.value.toLowerCase().split(/\s+/);
    const fitting = runs.filter((one) => {
      const text = [one.run, one.name, one.algorithm, one.verdict, one.status].join(" ").toLowerCase();
      return one.run !== run && words.every((word) => text.includes(word));
    });
    fill(
      list,
      fitting.slice(0, MOST_LISTED).map((one) => {
        const isOn = also.includes(one.run);
        const box = el("input", {
          type: "checkbox",
          checked: isOn,
          disabled: isFull && !isOn,
          on: {change: () => mark(one.run, box.checked)},
        });
        const facts = [one.algorithm, one.last_step === null ? "" : `step ${number(one.last_step)}`].filter(Boolean);
        return el("label", {}, box, " ", badge(one.verdict, true), " ", one.run, el("span", {class: "faint small"}, ` ${facts.join(" · ")}`));
      }),
    );
    status.textContent =
      `${counted(also.length, "run")} overlaid` +
      (isFull ? `; at most ${MOST_RUNS} runs together` : "") +
      (fitting.length > MOST_LISTED ? `; ${MOST_LISTED} of ${number(fitting.length)} are listed` : "");
  };
  const field = el("input", {
    type: "search",
    placeholder: "filter runs",
    "aria-label": "Filter runs",
    on: {input: calm(() => draw(), 100)},
  });
  draw();
  dialog("Overlay runs", field, status, list);
  field.focus();
}
