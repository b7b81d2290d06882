/** Asks the server. Every question can be called off; every failure is a sentence. */

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
 * @param {string} path
 * @param {Record<string, string | number | string[] | null | undefined>} [question]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function ask(path, question = {}, signal) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(question)) {
    if (Array.isArray(value)) value.forEach((item) => query.append(key, item));
    else if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
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
 * Follows a run while it is written. The browser connects again by itself and says what it had last.
 * @param {string} run
 * @param {(kind: "rows" | "findings" | "status" | "open" | "lost", facts: any) => void} heard
 * @returns {() => void} stops following
 */
export function follow(run, heard) {
  const source = new EventSource(`/api/live?${new URLSearchParams({run})}`);
  source.onopen = () => heard("open", null);
  source.onerror = () => heard("lost", null);
  for (const kind of /** @type {const} */ (["rows", "findings", "status"])) {
    source.addEventListener(kind, (event) => {
      heard(kind, JSON.parse(/** @type {MessageEvent} */ (event).data));
    });
  }
  return () => source.close();
}
