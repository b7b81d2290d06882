/** The controls over charts: filter, x-axis, log scale, smoothing, zoom. All of them live in the address. */

import {calm, el} from "../dom.js";
import * as state from "../state.js";

const AXES = [
  ["step", "step"],
  ["epoch", "epoch"],
  ["tokens", "tokens"],
  ["time", "wall time"],
  ["policy_version", "policy version"],
];

/**
 * @param {Node} count what to say beside the filter
 * @returns {{node: HTMLElement, update(): void, keys: import("../../page.d.ts").Key[]}}
 */
export function controls(count) {
  const filter = el("input", {
    type: "search",
    placeholder: "filter: regular expression",
    "aria-label": "Filter metrics",
    value: state.get("filter"),
    on: {input: calm(() => state.go({filter: filter.value}, {replace: true}), 120)},
  });
  const axis = el(
    "select",
    {
      "aria-label": "x-axis",
      on: {change: () => state.go({x: axis.value === "step" ? null : axis.value, from: null, to: null})},
    },
    AXES.map(([value, text]) => el("option", {value}, text)),
  );
  const log = el("input", {type: "checkbox", on: {change: () => state.go({log: log.checked ? 1 : null})}});
  const smooth = el("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    "aria-label": "Smoothing",
    on: {input: calm(() => state.go({smooth: Number(smooth.value) ? smooth.value : null}, {replace: true}), 120)},
  });
  const value = el("output", {class: "faint num"});
  const reset = el("button", {on: {click: () => state.go({from: null, to: null})}}, "Whole range");
  const update = () => {
    if (document.activeElement !== filter) filter.value = state.get("filter");
    axis.value = state.get("x") || "step";
    log.checked = state.get("log") === "1";
    if (document.activeElement !== smooth) smooth.value = state.get("smooth") || "0";
    value.textContent = state.get("smooth") ? Number(state.get("smooth")).toFixed(2) : "off";
    reset.hidden = !state.get("from");
  };
  const next = () => AXES[(AXES.findIndex(([name]) => name === (state.get("x") || "step")) + 1) % AXES.length][0];
  const smoother = (/** @type {number} */ by) => {
    const level = Math.min(Math.max((Number(state.get("smooth")) || 0) + by, 0), 0.99);
    state.go({smooth: level ? level.toFixed(2) : null}, {replace: true});
  };
  update();
  return {
    node: el(
      "div",
      {class: "controls sticky"},
      filter,
      count,
      el("label", {}, "x ", axis),
      el("label", {}, log, " log"),
      el("label", {class: "smooth"}, "smooth ", smooth, value),
      reset,
    ),
    update,
    keys: [
      {key: "/", says: "filter", does: () => filter.focus()},
      {key: "y", says: "log scale", does: () => state.go({log: state.get("log") ? null : 1})},
      {
        key: "x",
        says: "next x-axis",
        does: () => state.go({x: next() === "step" ? null : next(), from: null, to: null}),
      },
      {key: "s", says: "smoother", does: () => smoother(0.1)},
      {key: "S", says: "less smooth", does: () => smoother(-0.1)},
      {key: "+", says: "zoom in", does: () => zoomBy(0.5)},
      {key: "-", says: "zoom out", does: () => zoomBy(2)},
      {key: "ArrowLeft", says: "move the zoom to the left", does: () => move(-0.25)},
      {key: "ArrowRight", says: "move the zoom to the right", does: () => move(0.25)},
      {key: "0", says: "whole range", does: () => state.go({from: null, to: null})},
    ],
  };
}

/** @returns {[number, number] | null} the stretch the charts show now */
function stretch() {
  const [from, to] = [state.getNumber("from"), state.getNumber("to")];
  if (from !== null && to !== null) return [from, to];
  const plot = /** @type {HTMLElement | null} */ (document.querySelector(".panel .plot[data-from]"));
  return plot ? [Number(plot.dataset.from), Number(plot.dataset.to)] : null;
}

/** @param {number} factor */
function zoomBy(factor) {
  const now = stretch();
  if (!now) return;
  const middle = (now[0] + now[1]) / 2;
  const half = ((now[1] - now[0]) / 2) * factor;
  state.go(
    {from: Number((middle - half).toPrecision(10)), to: Number((middle + half).toPrecision(10))},
    {replace: true},
  );
}

/** @param {number} share of the stretch */
function move(share) {
  const now = stretch();
  if (!now || !state.get("from")) return;
  const by = (now[1] - now[0]) * share;
  state.go({from: Number((now[0] + by).toPrecision(10)), to: Number((now[1] + by).toPrecision(10))}, {replace: true});
}
