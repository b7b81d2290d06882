/** Asks the server. Every question can be called off; every failure is a sentence. */

import {changed} from "./state.js";

/** @import {Answers} from "../contract.d.ts" */
/** @import {Changes, News} from "../page.d.ts" */

const AGAIN_MS = 5000;

/** An answer that is no data: `message` is what to tell the user. */
export class Refused extends Error {
  /**
   * @param {string} sentence
   * @param {number} status
   */
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

/**
 * @template {keyof Answers} A
 * @param {A} path
 * @param {Changes} [question]
 * @param {AbortSignal} [signal]
 * @returns {Promise<Answers[A]>}
 */
export async function ask(path, question = {}, signal) {
  const query = changed(new URLSearchParams(), question);
  let answer;
  try {
    answer = await fetch(`/api/${path}?${query}`, {signal, headers: {Accept: "application/json"}});
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused("The server does not answer. Is rlvitals serve still running?", 0);
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(said.error ?? `The server answered ${answer.status}.`, answer.status);
  return said;
}

/** @param {unknown} error @returns {boolean} whether a question was only called off */
export function wasCalledOff(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * Follows a run while it is written, as long as the page is in view: a browser has six connections to a server for all
 * its tabs, and a stream takes one. Whoever comes back, or was turned away, goes on from the last event.
 * @param {string} run
 * @param {(news: News) => void} heard
 * @returns {() => void} stops following
 */
export function follow(run, heard) {
  /** @type {EventSource | null} */
  let source = null;
  let place = "";
  let again = 0;
  function close() {
    clearTimeout(again);
    source?.close();
    source = null;
  }
  function open() {
    close();
    if (document.hidden) return;
    const opened = new EventSource(`/api/live?${new URLSearchParams({run, place})}`);
    source = opened;
    opened.onopen = () => heard({kind: "open", facts: null});
    opened.onerror = () => {
      heard({kind: "lost", facts: null});
      if (opened.readyState === EventSource.CLOSED) again = setTimeout(open, AGAIN_MS);
    };
    for (const kind of /** @type {const} */ (["rows", "findings", "status"])) {
      opened.addEventListener(kind, (event) => {
        place = event.lastEventId;
        heard({kind, facts: JSON.parse(event.data)});
      });
    }
  }
  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
