/** The tree of metrics at the side: groups, and their names when a group is opened. */

import {el, fill} from "../dom.js";
import * as state from "../state.js";

/** @typedef {import("./panel.js").Metric} Metric */

const MOST = 500;

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
  const leaves = el("ul");
  const made = el(
    "details",
    {},
    el(
      "summary",
      {},
      el(
        "button",
        {
          class: "whole",
          on: {
            click: (/** @type {Event} */ event) => {
              event.preventDefault();
              state.go({group: name, one: null});
            },
          },
        },
        name,
        el("span", {class: "faint"}, items.length),
      ),
    ),
    leaves,
  );
  made.addEventListener("toggle", () => {
    if (!made.open || leaves.childElementCount) return;
    fill(
      leaves,
      ...items
        .slice(0, MOST)
        .map((metric) =>
          el(
            "li",
            {},
            el(
              "button",
              {class: "leaf mono", title: metric.title, on: {click: () => state.go({one: metric.name})}},
              metric.name,
            ),
          ),
        ),
      items.length > MOST && el("li", {class: "faint"}, `and ${items.length - MOST} more: use the filter`),
    );
  });
  return made;
}
