/**
 * Answers from the files of a shared site, which has no server. `site.json` lists the file of each address and run.
 * `rlvitals/web/site.py` writes these files. Lists that several answers share are in separate files.
 */

import {Refused} from "./api.js";
import {el} from "./dom.js";
import {dialog} from "./keys.js";
import {filled, isFacts, joined, narrowed, splits, wanted, within, words} from "./sharedfacts.js";

/** @import {Answers, HitFacts, WholeGroup} from "../contract.d.ts" */
/** @import {Facts, Json, News} from "../page.d.ts" */

/**
 * @typedef {Object} Address How questions of one address are answered.
 * @property {string[]} ignored Parameters that the files do not depend on.
 * @property {string} each A parameter that may be repeated; each value is a separate question.
 * @property {string[]} appended Lists of such answers that are concatenated.
 * @property {boolean} narrowed Whether the answer covers all runs.
 * @property {string} missing The message if there is no answer.
 * @property {Record<string, string>} files By run.
 */
/**
 * @typedef {Object} Site
 * @property {string} title
 * @property {number} made
 * @property {string[]} runs
 * @property {Record<string, Address>} addresses
 * @property {string[]} lists
 */

/** Hits per answer, the same as the server's. */
const PAGE = 50;

const NOT_FOUND = 404;

/** @type {Map<string, Promise<unknown>>} */
const opened = new Map();

/** @returns {Promise<Site>} */
async function site() {
  const place = document.querySelector('meta[name="rlvitals-site"]')?.getAttribute("content") ?? "";
  return /** @type {Site} */ (await file(place));
}

/** @param {string} name @returns {Promise<unknown>} the JSON in a file, read once */
function file(name) {
  let known = opened.get(name);
  if (!known) {
    known = read(name);
    known.catch(() => opened.delete(name));
    opened.set(name, known);
  }
  return known;
}

/** @param {string} name @returns {Promise<unknown>} */
async function read(name) {
  const answer = await fetch(name).catch(() => null);
  if (!answer?.ok) throw new Refused(`The file ${name} of this shared copy cannot be read.`, answer?.status ?? 0);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  // Some servers decompress .gz files themselves.
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return JSON.parse(new TextDecoder().decode(bytes));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/**
 * The same as `ask` of api.js.
 * @template {keyof Answers} A
 * @param {A} path
 * @param {URLSearchParams} query
 * @param {AbortSignal} [signal]
 * @returns {Promise<Answers[A]>}
 */
export async function ask(path, query, signal) {
  const facts = await answer(path, query);
  signal?.throwIfAborted();
  return /** @type {Answers[A]} */ (facts);
}

/**
 * Reports the status that a run had when it was shared. Files do not change.
 * @param {string} run
 * @param {(news: News) => void} onNews
 */
export async function reportStatus(run, onNews) {
  const {runs} = await ask("runs", new URLSearchParams());
  const listed = runs.find((item) => item.run === run);
  if (listed) onNews({kind: "status", facts: {status: listed.status, status_note: listed.status_note, ended: null}});
}

/**
 * @param {string} path
 * @param {URLSearchParams} query
 * @returns {Promise<unknown>}
 */
export async function answer(path, query) {
  const address = (await site()).addresses[path];
  if (!address) throw new Refused("This page is a shared copy. It does not contain this address.", NOT_FOUND);
  if (path === "rollouts" && query.get("search")) return searched(address, query);
  const values = address.each ? query.getAll(address.each) : [];
  if (values.length < 2) return single(address, query);
  const parts = await Promise.all(
    values.map((value) => {
      const own = new URLSearchParams(query);
      own.set(address.each, value);
      return single(address, own);
    }),
  );
  return parts.reduce((one, other) => joined(one, other, address.appended));
}

/** @param {Address} address @param {URLSearchParams} query @returns {Promise<Json>} */
async function single(address, query) {
  const {runs: listed, lists} = await site();
  const runs = query.getAll("run");
  const key = keyOf(address, query);
  // If the order of runs does not matter, the answer is stored only for the first listed run.
  const found = (await answersOf(address, runs[0] ?? ""))[key] ?? (address.narrowed ? (await answersOf(address, listed[0]))[key] : undefined);
  if (!isFacts(found)) throw new Refused(address.missing, NOT_FOUND);
  if (typeof found.error === "string") throw new Refused(found.error, Number(found.status));
  /** @type {Map<number, Json[]>} */
  const known = new Map();
  await Promise.all([...wanted(found)].map(async (at) => known.set(at, /** @type {Json[]} */ (await file(lists[at])))));
  const whole = known.size ? filled(found, known) : found;
  const bound = (/** @type {string} */ name, /** @type {number} */ none) => Number(query.get(name) || none);
  const cut = query.get("from") || query.get("to") ? within(whole, bound("from", -Infinity), bound("to", Infinity)) : whole;
  if (!address.narrowed) return cut;
  if (query.get("by") && splits(cut, new Set(runs)))
    throw new Refused("A shared copy can group only all of its runs: choose complete groups, or no groups.", NOT_FOUND);
  return narrowed(cut, new Set(runs));
}

/** @param {Address} address @param {string} run @returns {Promise<Facts>} the answers about a run, by question */
async function answersOf(address, run) {
  const answers = Object.hasOwn(address.files, run) ? await file(address.files[run]) : {};
  return Object.assign(Object.create(null), answers);
}

/** The same as `key_of` of web/site.py. @param {Address} address @param {URLSearchParams} query */
function keyOf(address, query) {
  let pairs = [...query].filter(([name, value]) => !address.ignored.includes(name) && (name !== "page" || value !== "0"));
  const first = pairs.findIndex(([name]) => name === "run");
  pairs = pairs.filter(([name], at) => (address.narrowed ? name !== "run" : at !== first));
  pairs.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0));
  return pairs.map(([name, value]) => `${name}=${value}`).join("\n");
}

/**
 * The rollouts of this copy that contain a text. They are few, so all are searched.
 * @param {Address} address
 * @param {URLSearchParams} query
 */
async function searched(address, query) {
  const [text, outcome, step] = ["search", "outcome", "step"].map((name) => query.get(name)?.toLowerCase() ?? "");
  const page = Number(query.get("page"));
  /** @type {HitFacts[]} */
  const hits = [];
  for (const [key, stored] of Object.entries(await answersOf(address, query.get("run") ?? ""))) {
    if (!/^group=\d+\nstep=/.test(key)) continue;
    const whole = /** @type {WholeGroup} */ (/** @type {unknown} */ (stored));
    if (step && String(whole.step) !== step) continue;
    for (const group of whole.groups) {
      const prompt = group.prompt ?? "";
      group.rollouts?.forEach((rollout, at) => {
        // As on the server, a prompt counts as a text of its group's first rollout.
        const texts = [at ? "" : prompt, ...words(/** @type {Json} */ (/** @type {unknown} */ (rollout)))];
        const {reward = null, outcome: ended = "", stop = "", turns = []} = rollout;
        if (outcome && ended.toLowerCase() !== outcome) return;
        if (!texts.some((word) => word.toLowerCase().includes(text))) return;
        const at1 = {step: whole.step, group: group.number, rollout: at + 1};
        hits.push({...at1, reward, outcome: ended, stop, turns: turns.length, prompt});
      });
    }
  }
  const rank = (/** @type {HitFacts} */ hit) => (typeof hit.reward === "number" ? hit.reward : Infinity);
  if (query.get("worst")) hits.sort((one, other) => rank(one) - rank(other));
  return {hits: hits.slice(page * PAGE, (page + 1) * PAGE), page, more: hits.length > (page + 1) * PAGE};
}

/** Shows what a shared copy contains and what it does not. */
export async function about() {
  const {made} = await site();
  const sentences = [
    `Made on ${new Date(made * 1000).toLocaleString()}. It does not change when the runs do.`,
    "Curves are downsampled; each point keeps its lowest and its highest value. Zooming in does not load more points.",
    "It contains some of the rollouts, without their tokens. The search covers only these.",
    "Secrets, host names, user names and absolute paths were removed, and everything else that the sender excluded.",
  ];
  dialog("Shared copy", el("div", {class: "help"}, el("ul", {}, sentences.map((line) => el("li", {}, line)))));
}
