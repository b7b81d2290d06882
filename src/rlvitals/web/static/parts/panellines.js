/** The lines of one panel: of slices, of training and evaluation, or of several runs and groups of them. */

import {lineOf} from "../lines.js";

/** @typedef {{name: string, label: string, isHeldOut: boolean}} Part A logged name in a panel; without a label if it is alone. */
/** @typedef {import("../lines.js").Line} Line */
/** @typedef {import("../series.js").Series} Series */
/** @typedef {import("./overlaid.js").Overlaid} Overlaid */
/** @import {Refusal} from "../../contract.d.ts" */

const STREAMS = {train: "training", eval: "evaluation"};

/**
 * @param {Part[]} parts
 * @param {Series[]} series one for each of the parts
 * @param {Overlaid | null} overlaid
 * @param {Set<string>} hidden names of parts
 * @returns {{lines: Line[], nonfinite: number, refused: Refusal[]}}
 */
export function linesOf(parts, series, overlaid, hidden) {
  const shown = parts.map((part, place) => ({part, place, series: series[place]})).filter(({part}) => !hidden.has(part.name));
  const lines = shown.flatMap((one) => (overlaid ? ofRuns(one.part, one.series, overlaid) : ofParts(one.part, one.place, one.series)));
  const front = overlaid?.front;
  const ordered = front ? [...lines.filter(({rank}) => rank === "back"), ...lines.filter(({rank}) => rank !== "back")] : lines;
  return {
    lines: ordered,
    nonfinite: shown.flatMap((one) => one.series.lines).reduce((sum, line) => sum + line.nonfinite, 0),
    refused: series[0]?.refused ?? [],
  };
}

/**
 * @param {Part} part
 * @param {number} place
 * @param {Series} series
 * @returns {Line[]}
 */
function ofParts({label}, place, {lines}) {
  return lines.map((line, at) => (label ? lineOf(line, label, place) : lineOf(line, STREAMS[line.stream], at)));
}

/**
 * @param {Part} part
 * @param {Series} series
 * @param {Overlaid} overlaid
 * @returns {Line[]}
 */
function ofRuns({isHeldOut, label}, {lines, bands}, {members, hidden, front}) {
  const memberOf = (/** @type {string} */ run) => members.find(({runs}) => runs.includes(run));
  const drawn = lines.flatMap((line) => {
    const member = memberOf(line.run);
    if (!member || hidden.has(member.key)) return [];
    const isDotted = isHeldOut || line.stream === "eval";
    const named = isDotted && (label || lines.length > members.length) ? `${member.label}, evaluation` : member.label;
    return {...lineOf(line, named, member.style), ghosts: [], isDotted, rank: rankOf(member.key, front)};
  });
  const means = bands.flatMap(({label: key, runs, x, mean, low, high}) => {
    const member = members.find((one) => one.key === key);
    if (!member || hidden.has(key) || !x.length) return [];
    const named = `${key}: mean of ${runs.length} runs`;
    return {label: named, style: member.style, x, y: mean, low, high, isMean: true, isDotted: isHeldOut, rank: rankOf(key, front)};
  });
  return [...means, ...drawn];
}

/** @param {string} key @param {string} front @returns {"front" | "back" | undefined} */
function rankOf(key, front) {
  if (!front) return undefined;
  return key === front ? "front" : "back";
}
