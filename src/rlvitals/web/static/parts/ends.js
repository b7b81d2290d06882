/** The labels at both ends of an axis of steps or seconds. */

import {el} from "../dom.js";

/** @param {string} first @param {string} last @returns {HTMLElement} */
export function ends(first, last) {
  return el("div", {class: "ends faint small"}, el("span", {}, first), el("span", {}, last));
}
