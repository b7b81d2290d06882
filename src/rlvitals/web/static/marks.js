/** Marks of runs: names, tags, notes, archived, deleted; and boards. Read once; listeners are called on changes. */

import {ask, post} from "./api.js";

/** @import {Marks, RunMarks} from "../contract.d.ts" */

/** @type {Marks} */
let known = {editable: false, runs: {}, boards: {}};
/** @type {Promise<Marks> | null} */
let request = null;
/** @type {Set<(marks: Marks) => void>} */
const listeners = new Set();

/** @returns {Marks} the marks that were read last */
export function now() {
  return known;
}

/**
 * The marks of the folder. If they cannot be read, they are empty and cannot be changed.
 * @param {boolean} [again] asks the server even if the marks are known
 * @returns {Promise<Marks>}
 */
export function read(again = false) {
  if (again || !request)
    request = ask("marks")
      .catch(() => ({editable: false, runs: {}, boards: {}}))
      .then(take);
  return request;
}

/**
 * Changes the marks of a run. An empty text or list, or false, removes a mark.
 * @param {string} run
 * @param {RunMarks} changes
 */
export async function mark(run, changes) {
  return take(await post("marks", {run, set: changes}));
}

/**
 * Saves a board under a name; null deletes it.
 * @param {string} board
 * @param {Record<string, unknown> | null} content
 */
export async function keepBoard(board, content) {
  return take(await post("marks", {board, set: content}));
}

/** @param {(marks: Marks) => void} listener @returns {() => void} stops listening */
export function onMarks(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @param {string} run @returns {string} the name in its marks, or the run's own */
export function nameOf(run) {
  return known.runs[run]?.name || run;
}

/** @param {Marks} marks */
function take(marks) {
  known = marks;
  request = Promise.resolve(marks);
  for (const listener of listeners) listener(marks);
  return marks;
}
