/** The tree of metrics at the side: groups, which open to show their metrics. */

import {el, fill} from "../dom.js";
import * as state from "../state.js";

/** @typedef {import("./panel.js").Metric} Metric */

const MOST = 500;
const MOST_SLICES = 50;

/**
 * @param {Metric[]} metrics
 * @returns {HTMLElement}
 */
export function tree(metrics) {
  /** @type {Map<string, Metric[]>} */
  const groups = new Map();
  for (const metric of metrics) groups.set(metric.group, [...(groups.get(metric.group) ?? []), metric]);
  const isWide = matchMedia("(min-width: 900px)").matches;
  return el(
    "details",
    {class: "tree", open: isWide},
    el("summary", {}, "Groups"),
    el(
      "nav",
      {"aria-label": "Groups of metrics"},
      el(
        "button",
        {class: "whole", on: {click: () => state.go({group: null, one: null})}},
        "All",
        el("span", {class: "faint"}, metrics.length),
      ),
      [...groups].map(([name, items]) => branch(name, items)),
    ),
  );
}

/**
 * @param {string} name
 * @param {Metric[]} items
 */
function branch(name, items) {
  const leaves = el("ul", {hidden: true});
  const toggle = el(
    "button",
    {class: "toggle", "aria-expanded": "false", "aria-label": `Metrics of ${name}`, on: {click: () => open()}},
    "▸",
  );
  const open = () => {
    const isOpen = leaves.hidden;
    leaves.hidden = !isOpen;
    toggle.textContent = isOpen ? "▾" : "▸";
    toggle.setAttribute("aria-expanded", String(isOpen));
    if (isOpen && !leaves.childElementCount) fill(leaves, ...names(items));
  };
  const whole = el(
    "button",
    {class: "whole", on: {click: () => state.go({group: name, one: null})}},
    name,
    el("span", {class: "faint"}, items.length),
  );
  return el("div", {class: "branch"}, el("div", {class: "line"}, toggle, whole), leaves);
}

/**
 * @param {Metric[]} items
 * @returns {HTMLElement[]}
 */
function names(items) {
  const leaf = (/** @type {Metric} */ metric) =>
    el(
      "button",
      {class: "leaf mono", title: metric.title, on: {click: () => state.go({one: metric.name})}},
      metric.name,
    );
  const slice = (/** @type {import("./panellines.js").Part} */ {name, label}) =>
    el("li", {}, el("button", {class: "leaf mono", title: name, on: {click: () => state.go({one: name})}}, label));
  const listed = items
    .slice(0, MOST)
    .map((metric) =>
      el(
        "li",
        {},
        leaf(metric),
        metric.lines.length > 1 && el("ul", {}, metric.lines.slice(0, MOST_SLICES).map(slice), more(metric)),
      ),
    );
  if (items.length > MOST) listed.push(el("li", {class: "faint"}, `and ${items.length - MOST} more: use the filter`));
  return listed;
}

/** @param {Metric} metric */
function more({lines}) {
  return lines.length > MOST_SLICES && el("li", {class: "faint"}, `and ${lines.length - MOST_SLICES} more`);
}
