/** Requests to the server. Each request can be aborted; each failure has a message for the user. */

import {changed} from "./state.js";

/** @import {Answers} from "../contract.d.ts" */
/** @import {Changes, News} from "../page.d.ts" */

const AGAIN_MS = 5000;

/** Whether the page is a shared site, which has files instead of a server. */
export const isShared = document.querySelector('meta[name="rlvitals-site"]') !== null;

/** A failed request. `message` is shown to the user. */
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
  if (isShared) return (await import("./shared.js")).ask(path, query, signal);
  return answered(`api/${path}?${query}`, {signal, headers: {Accept: "application/json"}});
}

/**
 * Sends a change. The server must have been started with --edit.
 * @template {keyof Answers} A
 * @param {A} path
 * @param {Record<string, unknown>} body
 * @returns {Promise<Answers[A]>} the state after the change
 */
export function post(path, body) {
  const headers = {"Content-Type": "application/json", Accept: "application/json"};
  return answered(`api/${path}`, {method: "POST", headers, body: JSON.stringify(body)});
}

/** @param {string} address @param {RequestInit} request */
async function answered(address, request) {
  let answer;
  try {
    answer = await fetch(address, request);
  } catch (error) {
    if (request.signal?.aborted) throw error;
    throw new Refused("The server does not answer. Is rlvitals serve still running?", 0);
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(content.error ?? `The server answered ${answer.status}.`, answer.status);
  return content;
}

/**
 * Repeats a request while the page is visible. It continues after the server was unreachable.
 * @template T
 * @param {() => Promise<T>} question
 * @param {(answer: T | null) => number} onAnswer receives the answer, or null if there was none; returns the
 *   milliseconds until the next request
 * @returns {{now: () => void, stop: () => void}} `now` asks at once; `stop` ends it
 */
export function repeat(question, onAnswer) {
  let timer = 0;
  let turn = 0;
  const look = async () => {
    clearTimeout(timer);
    const mine = ++turn;
    if (document.hidden) return;
    const answer = await question().catch(() => null);
    if (mine !== turn) return;
    const pause = onAnswer(answer);
    if (!isShared) timer = setTimeout(look, pause); // files do not change
  };
  document.addEventListener("visibilitychange", look);
  return {
    now: look,
    stop: () => {
      turn += 1;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    },
  };
}

/** @param {unknown} error @returns {boolean} whether the request was aborted by the page */
export function wasAborted(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * Follows a run that is being written while the page is visible. A hidden page closes its stream, because a browser has
 * only six connections to a server for all tabs. A reopened stream continues after the last event.
 * @param {string} run
 * @param {(news: News) => void} onNews
 * @returns {() => void} stops following
 */
export function follow(run, onNews) {
  if (isShared) {
    import("./shared.js").then(({reportStatus}) => reportStatus(run, onNews));
    return () => {};
  }
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
    const opened = new EventSource(`api/live?${new URLSearchParams({run, place})}`);
    source = opened;
    opened.onopen = () => onNews({kind: "open", facts: null});
    opened.onerror = () => {
      onNews({kind: "lost", facts: null});
      if (opened.readyState === EventSource.CLOSED) again = setTimeout(open, AGAIN_MS);
    };
    for (const kind of /** @type {const} */ (["rows", "findings", "status"])) {
      opened.addEventListener(kind, (event) => {
        place = event.lastEventId;
        onNews({kind, facts: JSON.parse(event.data)});
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
