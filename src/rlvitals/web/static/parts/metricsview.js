/** The state of the Metrics screen in the address, and functions that change it: zoom, collapse, close. */

import {el} from "../dom.js";
import * as state from "../state.js";

/** @param {string} text @returns {HTMLElement} the heading of the constant metrics, which shows or hides them */
export function constantFold(text) {
  const isOpen = state.get("constant") === "1";
  const does = () => state.go({constant: isOpen ? null : 1});
  return el("button", {class: "plain", "aria-expanded": String(isOpen), on: {click: does}}, isOpen ? "▾ " : "▸ ", text);
}

/** Closes one thing: the explanation, full screen, the large panel, or the zoom. */
export function back() {
  if (state.get("explain")) state.go({explain: null});
  else if (state.get("full")) state.go({full: null});
  else if (state.get("one")) state.go({one: null});
  else if (state.get("from")) state.go({from: null, to: null});
}

/** @returns {string} the metric whose panel has the focus */
export function focused() {
  return document.activeElement?.closest(".panel")?.getAttribute("data-metric") ?? "";
}

/** The parts of the address that determine the data, the list of panels, and their look. */
export function signature() {
  const pick = (/** @type {string[]} */ names) => names.map((name) => state.getAll(name).join("\t")).join("\n");
  return {
    data: pick(["x", "from", "to", "also", "by"]),
    list: pick(["filter", "group", "one", "full", "pin", "show", "constant"]),
    look: pick(["log", "smooth", "panel", "hide", "front"]),
  };
}

/** @returns {[number, number] | null} the visible range of the x-axis */
export function zoom() {
  const [from, to] = [state.getNumber("from"), state.getNumber("to")];
  return from !== null && to !== null && from < to ? [from, to] : null;
}

/** @param {number | null} from @param {number | null} to zooms to a range, rounded to keep the address short */
export function zoomTo(from, to) {
  const rounded = (/** @type {number | null} */ value) => (value === null ? null : Number(value.toPrecision(10)));
  state.go({from: rounded(from), to: rounded(to)});
}
