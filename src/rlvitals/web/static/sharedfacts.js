/** Operations on the answers of a shared site: inserts lists, joins answers, cuts curves, selects runs. */

/** @import {Facts, Json} from "../page.d.ts" */

/** @param {Json | undefined} value @returns {value is Facts} */
export function isFacts(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** @param {Facts} facts @param {(value: Json) => Json} change @returns {Facts} the same keys with changed values */
function changed(facts, change) {
  return Object.fromEntries(Object.entries(facts).map(([key, value]) => [key, change(value)]));
}

/** @param {Json | undefined} value @returns {string[]} */
function texts(value) {
  return Array.isArray(value) ? value.filter((item) => typeof item === "string") : [];
}

/** @param {Facts} facts @returns {[number, number] | null} the file and the place of the referenced list */
function reference(facts) {
  const [at, place] = Array.isArray(facts["="]) ? facts["="] : [];
  return typeof at === "number" && typeof place === "number" ? [at, place] : null;
}

/** @param {Json} value @param {Set<number>} [found] @returns {Set<number>} the files of the lists that it references */
export function wanted(value, found = new Set()) {
  const here = isFacts(value) ? reference(value) : null;
  if (here) found.add(here[0]);
  else if (value !== null && typeof value === "object") for (const item of Object.values(value)) wanted(item, found);
  return found;
}

/** @param {Json} value @param {Map<number, Json[]>} lists @returns {Json} with the referenced lists inserted */
export function filled(value, lists) {
  if (Array.isArray(value)) return value.map((item) => filled(item, lists));
  if (!isFacts(value)) return value;
  const here = reference(value);
  return here ? (lists.get(here[0])?.[here[1]] ?? null) : changed(value, (item) => filled(item, lists));
}

/**
 * Joins answers to the same question about two names. The lists in `appended` are concatenated, objects are merged, and
 * other lists are joined item by item. Everything else is the same in both.
 * @param {Json} one
 * @param {Json} other
 * @param {string[]} appended
 * @returns {Json}
 */
export function joined(one, other, appended) {
  if (Array.isArray(one)) return one.map((item, at) => joined(item, Array.isArray(other) ? (other[at] ?? null) : null, appended));
  if (!isFacts(one) || !isFacts(other)) return one;
  const both = {...other, ...one};
  for (const [key, mine] of Object.entries(one)) {
    const theirs = other[key];
    if (theirs === undefined) continue;
    const isLong = appended.includes(key) && Array.isArray(mine) && Array.isArray(theirs);
    both[key] = isLong ? [...mine, ...theirs] : joined(mine, theirs, appended);
  }
  return both;
}

/**
 * The part of every curve between two places. Omitted points are not restored.
 * @param {Json} value
 * @param {number} from
 * @param {number} to
 * @returns {Json}
 */
export function within(value, from, to) {
  if (Array.isArray(value)) return value.map((item) => within(item, from, to));
  if (!isFacts(value)) return value;
  const {x} = value;
  if (!Array.isArray(x)) return changed(value, (item) => within(item, from, to));
  const seen = x.map((place) => typeof place === "number" && place >= from && place <= to);
  return changed(value, (item) =>
    Array.isArray(item) && item.length === x.length ? item.filter((_, at) => seen[at]) : item,
  );
}

/**
 * Whether an answer has a group with some requested runs and some others. A group is stored as one band and cannot be
 * divided.
 * @param {Json} value
 * @param {Set<string>} runs
 * @returns {boolean}
 */
export function splits(value, runs) {
  if (value === null || typeof value !== "object") return false;
  const group = isFacts(value) ? texts(value.runs) : [];
  const known = group.filter((run) => runs.has(run)).length;
  return (known > 0 && known < group.length) || Object.values(value).some((item) => splits(item, runs));
}

/**
 * The part of an answer about all runs that is about the given runs.
 * @param {Json} value
 * @param {Set<string>} runs
 * @returns {Json}
 */
export function narrowed(value, runs) {
  if (Array.isArray(value)) return value.filter((item) => isOf(item, runs)).map((item) => narrowed(item, runs));
  if (!isFacts(value)) return value;
  const part = changed(value, (item) => narrowed(item, runs));
  if (Array.isArray(part.missing)) part.missing = texts(part.missing).filter((run) => runs.has(run));
  return part;
}

/** @param {Json} item @param {Set<string>} runs */
function isOf(item, runs) {
  if (!isFacts(item)) return true;
  if (typeof item.run === "string") return runs.has(item.run);
  return texts(item.runs).every((run) => runs.has(run));
}

/** @param {Json | undefined} value @returns {string[]} every text in it */
export function words(value) {
  if (typeof value === "string") return [value];
  return value !== null && typeof value === "object" ? Object.values(value).flatMap(words) : [];
}
