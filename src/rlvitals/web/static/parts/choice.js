/** Which metrics are shown: one entry a name or a series of slices, what a filter leaves of them, in sections. */

import {Expression} from "../expressions.js";

/** @typedef {import("./panel.js").Metric} Metric */

const ROW = 3; // panels of a row on a usual screen

/**
 * One entry a name: a metric logged in training and in evaluation is one panel with two lines.
 * @param {import("../../contract.d.ts").ListedMetric[]} listed
 * @returns {Metric[]}
 */
export function byName(listed) {
  /** @type {Map<string, Metric>} */
  const found = new Map();
  for (const metric of listed) {
    const known = found.get(metric.name);
    if (known) known.streams.push(metric.stream);
    else found.set(metric.name, {...metric, streams: [metric.stream], lines: [{name: metric.name, label: ""}]});
  }
  const all = [...found.values()];
  return [...all.filter((metric) => !isOfTheMachine(metric)), ...all.filter(isOfTheMachine)];
}

/**
 * The slices of one series as one entry, which is a panel with a line for each.
 * @param {Metric[]} metrics
 * @returns {Metric[]}
 */
export function folded(metrics) {
  /** @type {Map<string, Metric>} */
  const found = new Map();
  for (const metric of metrics) {
    if (!metric.slice) {
      found.set(metric.name, metric);
      continue;
    }
    const {series, label, title} = metric.slice;
    const known = found.get(series);
    if (known) known.lines.push({name: metric.name, label});
    else found.set(series, {...metric, name: series, title, last: null, lines: [{name: metric.name, label}]});
  }
  return [...found.values()];
}

/** @param {Metric} metric @returns {boolean} times, memory and speeds come last: there are many, and few look */
function isOfTheMachine(metric) {
  return /^(time|memory|system|perf|throughput)[./]/i.test(metric.concept ?? metric.name);
}

/**
 * @param {Metric[]} metrics
 * @param {string} filter a regular expression, or a plain text where it is none
 * @param {string} group
 * @param {string} one shown large above, so not below
 */
export function chosen(metrics, filter, group, one) {
  let complaint = "";
  /** @type {(text: string) => boolean} */
  let fits = () => true;
  try {
    const pattern = new Expression(filter);
    fits = (text) => pattern.isFoundIn(text);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    complaint = `${filter} is no regular expression (${reason}): taken as plain text`;
    fits = (text) => text.toLowerCase().includes(filter.toLowerCase());
  }
  /** @type {Map<string, Metric[]>} */
  const groups = new Map();
  let shown = 0;
  for (const metric of metrics) {
    const said = [metric.name, metric.title, ...metric.lines.map(({name}) => name)];
    if ((group && metric.group !== group) || !said.some(fits)) continue;
    shown += 1;
    if (metric.name === one) continue;
    const known = groups.get(metric.group);
    if (known) known.push(metric);
    else groups.set(metric.group, [metric]);
  }
  return {sections: filled([...groups]), shown, complaint};
}

/**
 * Groups too small for a row share one.
 * @param {[string, Metric[]][]} groups
 * @returns {import("../virtual.js").Section<Metric>[]}
 */
function filled(groups) {
  /** @type {{heading: string, items: Metric[]}[]} */
  const sections = [];
  for (const [heading, items] of groups) {
    const before = sections[sections.length - 1];
    if (before && before.items.length + items.length <= ROW) {
      before.heading += ` · ${heading}`;
      before.items = [...before.items, ...items];
    } else sections.push({heading, items});
  }
  return sections;
}
