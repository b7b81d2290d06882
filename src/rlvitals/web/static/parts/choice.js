/**
 * Chooses the metrics that are shown. An entry is a name, a series of slices, or a metric with its evaluation. The
 * entries that pass the filter are put into sections: pinned and essential ones first, constant ones collapsed.
 */

import {Expression} from "../expressions.js";
import {counted} from "../numbers.js";

/** @typedef {import("./panel.js").Metric} Metric */
/** @typedef {import("./panellines.js").Part} Part */
/** @typedef {import("../virtual.js").Section<Metric>} MetricSection */

const ROW = 3; // panels per row on a typical screen
export const ESSENTIALS = "Essentials";
export const PINNED = "Pinned";

/**
 * One entry per name. A metric that is logged in training and in evaluation is one panel with two lines.
 * @param {import("../../contract.d.ts").ListedMetric[]} listed
 * @returns {Metric[]}
 */
export function byName(listed) {
  /** @type {Map<string, Metric>} */
  const found = new Map();
  for (const metric of listed) {
    const known = found.get(metric.name);
    if (known) {
      known.streams.push(metric.stream);
      known.is_constant &&= metric.is_constant;
    } else found.set(metric.name, {...metric, streams: [metric.stream], lines: [part(metric, "")]});
  }
  const all = [...found.values()];
  return [...all.filter((metric) => !isOfTheMachine(metric)), ...all.filter(isOfTheMachine)];
}

/**
 * Joins a metric and its evaluation under another name into one entry: `loss` with `eval_loss`.
 * @param {Metric[]} metrics
 * @returns {Metric[]}
 */
export function paired(metrics) {
  const trained = new Map(metrics.filter(({slice}) => !slice).map((metric) => [metric.name, {...metric}]));
  /** @type {Set<string>} */
  const joined = new Set();
  for (const metric of metrics) {
    const home = metric.held_out_of === null || metric.slice ? undefined : trained.get(metric.held_out_of);
    if (!home) continue;
    home.lines = [...home.lines.map((line) => ({...line, label: line.name})), part(metric, metric.name)];
    home.is_constant &&= metric.is_constant;
    joined.add(metric.name);
  }
  return metrics.filter(({name}) => !joined.has(name)).map((metric) => (metric.slice ? metric : trained.get(metric.name) ?? metric));
}

/**
 * Joins the slices of a series into one entry: a panel with one line per slice.
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
    if (known) {
      known.lines.push(part(metric, label));
      known.is_constant &&= metric.is_constant;
    } else found.set(series, {...metric, name: series, title, last: null, lines: [part(metric, label)]});
  }
  return [...found.values()];
}

/** @param {import("../../contract.d.ts").ListedMetric} metric @param {string} label @returns {Part} */
function part({name, held_out_of}, label) {
  return {name, label, isHeldOut: held_out_of !== null};
}

/** @param {Metric} metric @returns {boolean} whether it is a time, memory or speed; these are many and come last */
function isOfTheMachine(metric) {
  return /^(time|memory|system|perf|throughput)[./]/i.test(metric.concept ?? metric.name);
}

/**
 * @typedef {Object} Wanted
 * @property {string} filter a regular expression, or a plain text if it is not a valid one
 * @property {string} group
 * @property {string} one the metric that is shown large above and not repeated below
 * @property {string[]} essentials
 * @property {string[]} pins
 * @property {boolean} pinsAlone
 * @property {boolean} folds whether constant metrics are collapsed
 */

/**
 * @param {Metric[]} metrics
 * @param {Wanted} wanted
 * @returns {{sections: MetricSection[], shown: number, complaint: string, constant: string}} `constant` is the heading of
 *   the constant metrics, empty if there are none
 */
export function chosen(metrics, {filter, group, one, essentials, pins, pinsAlone, folds}) {
  const {fits, complaint} = matching(filter);
  const logs = (/** @type {Metric} */ metric, /** @type {string} */ name) =>
    metric.name === name || metric.lines.some((line) => line.name === name);
  const fitting = metrics.filter((metric) => {
    const names = [metric.name, metric.title, ...metric.lines.map(({name}) => name)];
    return (!group || metric.group === group) && names.some(fits);
  });
  /** @type {Set<Metric>} */
  const placed = new Set(fitting.filter((metric) => metric.name === one));
  const taken = (/** @type {string[]} */ names) => {
    const found = names.flatMap((name) => fitting.find((metric) => !placed.has(metric) && logs(metric, name)) ?? []);
    return [...new Set(found)];
  };
  const pinned = taken(pins);
  pinned.forEach((metric) => placed.add(metric));
  // If few names are known, the vital signs include unknown ones. Constant ones of these are not essential.
  const isInformative = (/** @type {Metric} */ metric) => metric.concept !== null || !metric.is_constant;
  const vital = group || pinsAlone ? [] : taken(essentials).filter(isInformative);
  vital.forEach((metric) => placed.add(metric));
  const first = [
    {heading: PINNED, items: pinned},
    {heading: ESSENTIALS, items: vital},
  ].filter(({items}) => items.length);
  if (pinsAlone) return {sections: first, shown: first[0]?.items.length ?? 0, complaint, constant: ""};
  const rest = fitting.filter((metric) => !placed.has(metric));
  const isFolded = (/** @type {Metric} */ metric) => !filter && !group && metric.is_constant;
  const constant = rest.filter(isFolded);
  /** @type {Map<string, Metric[]>} */
  const groups = new Map();
  for (const metric of rest.filter((candidate) => !isFolded(candidate))) {
    const known = groups.get(metric.group);
    if (known) known.push(metric);
    else groups.set(metric.group, [metric]);
  }
  const heading = constant.length ? counted(constant.length, "constant metric") : "";
  const last = heading ? [{heading, items: folds ? [] : constant}] : [];
  return {sections: [...first, ...filled([...groups]), ...last], shown: fitting.length, complaint, constant: heading};
}

/** @param {string} filter @returns {{fits: (text: string) => boolean, complaint: string}} */
function matching(filter) {
  try {
    const pattern = new Expression(filter);
    return {fits: (text) => pattern.isFoundIn(text), complaint: ""};
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    return {
      fits: (text) => text.toLowerCase().includes(filter.toLowerCase()),
      complaint: `${filter} is not a regular expression (${reason}): searched as plain text`,
    };
  }
}

/**
 * Joins small groups that fit into one row.
 * @param {[string, Metric[]][]} groups
 * @returns {{heading: string, items: Metric[]}[]}
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
