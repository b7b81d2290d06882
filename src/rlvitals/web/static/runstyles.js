/** The colour and dash of each run, the same on all screens. */

import {LINES} from "./theme.js";

const PALE = 5; // the second blue, too similar to the first one

/**
 * A style for each of several names. A name has the same colour everywhere, unless an earlier name of the list has that
 * colour.
 * @param {string[]} names
 * @returns {Map<string, number>}
 */
export function stylesOf(names) {
  const used = new Array(LINES).fill(0);
  used[PALE] = 0.5; // used after all others
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const name of names) {
    const least = Math.min(...used);
    let colourAt = [...name].reduce((sum, letter) => (sum * 31 + (letter.codePointAt(0) ?? 0)) % 65521, 7) % LINES;
    while (used[colourAt] > least) colourAt = (colourAt + 1) % LINES;
    found.set(name, colourAt + LINES * Math.floor(used[colourAt]));
    used[colourAt] += 1;
  }
  return found;
}
