/** The overlays that colour tokens: each maps a token to a step of its colour scale, and describes the steps. */

import {number} from "../numbers.js";

/** @import {RolloutFacts, TraceFacts} from "../../contract.d.ts" */

/**
 * @typedef {Object} Step A step of a colour scale: its CSS class and its meaning.
 * @property {string} look
 * @property {string} label
 */
/**
 * @typedef {Object} Overlay
 * @property {string} name Its name in the address.
 * @property {string} title
 * @property {string} about What the colours mean, in a sentence.
 * @property {Step[]} steps
 * @property {(place: number) => number | null} at The step of a token; null if it has no number.
 */

/** Limits of probability, from most to least likely. */
const LIKELY = [0.9, 0.5, 0.1, 0.01];
const NATS = [0.1, 0.5, 1, 2];
const GAPS = [0.02, 0.1, 0.5];
const ADVANTAGES = [0.005, 0.5, 1.5];
const MOST_VERSIONS = 5;

/**
 * The overlays for which a trace has numbers.
 * @param {TraceFacts} trace
 * @param {RolloutFacts} rollout
 * @returns {Overlay[]}
 */
export function overlaysOf(trace, rollout) {
  const own = trace.logprobs ?? trace.new_logprobs;
  const known = own ?? trace.engine_logprobs;
  /** @type {(Overlay | null)[]} */
  const all = [
    known
      ? {
          name: "probability",
          title: "probability",
          about: `Probability of the token under the ${own ? "trainer" : "engine"}; strong colours are unlikely tokens.`,
          steps: rising(["90 % or more", "50 to 90 %", "10 to 50 %", "1 to 10 %", "below 1 %"]),
          at: (place) => (isGenerated(place) ? bin(-Math.exp(real(known[place])), LIKELY.map((share) => -share)) : null),
        }
      : null,
    trace.entropies
      ? {
          name: "entropy",
          title: "entropy",
          about: "Entropy of the distribution the token was drawn from, in nats; strong colours mark uncertain tokens.",
          steps: rising(["below 0.1", "0.1 to 0.5", "0.5 to 1", "1 to 2", "2 nats or more"]),
          at: (place) => (isGenerated(place) ? bin(real(trace.entropies?.[place]), NATS) : null),
        }
      : null,
    own && trace.engine_logprobs
      ? {
          name: "gap",
          title: "trainer against engine",
          about: "Log-prob of the trainer minus that of the engine that sampled the token, in nats.",
          steps: turning(GAPS, "trainer lower", "trainer higher"),
          at: (place) => (isGenerated(place) ? around(real(own[place]) - real(trace.engine_logprobs?.[place]), GAPS) : null),
        }
      : null,
    trace.trained
      ? {
          name: "mask",
          title: "trained or masked",
          about: "Tokens in the loss, and tokens that are masked: tool results, padding and others.",
          steps: [
            {look: "s2", label: "trained"},
            {look: "masked", label: "masked"},
          ],
          at: (place) => (trace.trained?.[place] ? 0 : 1),
        }
      : null,
    trace.advantages
      ? {
          name: "advantage",
          title: "advantage",
          about: "Advantage that the token is trained with.",
          steps: turning(ADVANTAGES, "made less likely", "made more likely"),
          at: (place) => (isGenerated(place) ? around(real(trace.advantages?.[place]), ADVANTAGES) : null),
        }
      : null,
    versioned(trace, rollout),
  ];
  /** The log-prob of a token that the model did not write has no meaning. @param {number} place */
  function isGenerated(place) {
    return trace.trained?.[place] !== false;
  }
  return all.filter((overlay) => overlay !== null);
}

/**
 * @param {TraceFacts} trace
 * @param {RolloutFacts} rollout
 * @returns {Overlay | null}
 */
function versioned(trace, rollout) {
  const only = rollout.policy_version;
  if (!trace.versions && only === undefined) return null;
  const version = (/** @type {number} */ place) => trace.versions?.[place] ?? Number(only);
  const known = trace.versions ? [...new Set(trace.versions)].sort((one, other) => other - one) : [Number(only)];
  const shown = known.slice(0, MOST_VERSIONS);
  return {
    name: "version",
    title: "policy version",
    about: "Step of the weights that generated the token; strong colours are old weights.",
    steps: rising(shown.map((one, at) => `${number(one)}${at === MOST_VERSIONS - 1 && known.length > at + 1 ? " or older" : ""}`)),
    at: (place) => Math.min(known.indexOf(version(place)), MOST_VERSIONS - 1),
  };
}

/** @param {unknown} value @returns {number} NaN if it is not a number */
export function real(value) {
  return typeof value === "number" ? value : Number.NaN;
}

/** @param {string[]} words @returns {Step[]} steps of one colour, each stronger than the previous one */
function rising(words) {
  return words.map((label, at) => ({look: `s${at}`, label}));
}

/**
 * @param {number[]} bounds
 * @param {string} low
 * @param {string} high
 * @returns {Step[]} steps from one strong colour over a pale one to another strong one
 */
function turning(bounds, low, high) {
  const [least, middle, most] = bounds;
  const part = (/** @type {string} */ side, /** @type {string} */ sign) => [
    {look: `${side}3`, label: `beyond ${sign}${most}`},
    {look: `${side}2`, label: `${sign}${middle} to ${sign}${most}`},
    {look: `${side}1`, label: `${sign}${least} to ${sign}${middle}`},
  ];
  const below = part("n", "−");
  const above = part("p", "+").reverse();
  below[0].label += ` (${low})`;
  above[2].label += ` (${high})`;
  return [...below, {look: "s0", label: `within ${least}`}, ...above];
}

/** @param {number} value @param {number[]} bounds @returns {number | null} how many of the rising bounds it exceeds */
function bin(value, bounds) {
  return Number.isNaN(value) ? null : bounds.filter((bound) => value > bound).length;
}

/** @param {number} value @param {number[]} bounds @returns {number | null} its index in the steps of `turning` */
function around(value, bounds) {
  if (Number.isNaN(value)) return null;
  const reached = bounds.filter((bound) => Math.abs(value) > bound).length;
  return bounds.length + (value < 0 ? -reached : reached);
}
