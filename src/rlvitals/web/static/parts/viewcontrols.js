/** The controls above the charts: filter, x-axis, log scale, smoothing, zoom. Their state is in the address. */

import {calm, el} from "../dom.js";
import {smoothingOf} from "../lines.js";
import * as state from "../state.js";

const AXES = [
  ["step", "step"],
  ["epoch", "epoch"],
  ["tokens", "tokens"],
  ["time", "wall time"],
  ["policy_version", "policy version"],
];

const FIRST = /** @type {Record<string, string | null>} */ ({weight: null, points: "20p", x: "20x"});

/**
 * @param {Node} count the text next to the filter
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
  const unit = el(
    "select",
    {"aria-label": "Smooth by", on: {change: () => state.go({smooth: FIRST[unit.value]}, {replace: true})}},
    ["weight", "points", "x"].map((kind) => el("option", {value: kind}, kind)),
  );
  const smooth = el("input", {
    "aria-label": "Smoothing",
    on: {
      input: calm(() => {
        const ending = {weight: "", points: "p", x: "x"}[unit.value] ?? "";
        state.go({smooth: Number(smooth.value) > 0 ? `${smooth.value}${ending}` : null}, {replace: true});
      }, 120),
    },
  });
  const value = el("output", {class: "faint num"});
  const reset = el("button", {on: {click: () => state.go({from: null, to: null})}}, "Whole range");
  const update = () => {
    if (document.activeElement !== filter) filter.value = state.get("filter");
    axis.value = state.get("x") || "step";
    log.checked = state.get("log") === "1";
    const smoothing = smoothingOf(state.get("smooth"));
    const isWeight = (smoothing?.kind ?? "weight") === "weight";
    unit.value = smoothing?.kind ?? "weight";
    const unitOfX = axis.value === "time" ? "seconds" : axis.value === "step" ? "steps" : axis.value.replace("_", " ");
    unit.options[2].textContent = unitOfX;
    smooth.type = isWeight ? "range" : "number";
    smooth.min = "0";
    smooth.max = isWeight ? "0.99" : "";
    smooth.step = isWeight ? "0.01" : "any";
    if (document.activeElement !== smooth) smooth.value = String(smoothing?.size ?? 0);
    value.textContent = !smoothing ? "off" : isWeight ? smoothing.size.toFixed(2) : "";
    reset.hidden = !state.get("from");
  };
  const next = () => AXES[(AXES.findIndex(([name]) => name === (state.get("x") || "step")) + 1) % AXES.length][0];
  const smoother = (/** @type {number} */ by) => {
    const now = smoothingOf(state.get("smooth"));
    if (now && now.kind !== "weight") {
      const size = Number((now.size * (by > 0 ? 1.5 : 1 / 1.5)).toPrecision(3));
      state.go({smooth: `${size}${now.kind === "points" ? "p" : "x"}`}, {replace: true});
      return;
    }
    const level = Math.min(Math.max((now?.size ?? 0) + by, 0), 0.99);
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
      el("span", {class: "smooth"}, "smooth ", smooth, value, unit),
      reset,
    ),
    update,
    keys: [
      {key: "/", label: "filter", does: () => filter.focus()},
      {key: "y", label: "log scale", does: () => state.go({log: state.get("log") ? null : 1})},
      {
        key: "x",
        label: "next x-axis",
        does: () => state.go({x: next() === "step" ? null : next(), from: null, to: null}),
      },
      {key: "s", label: "smoother", does: () => smoother(0.1)},
      {key: "S", label: "less smooth", does: () => smoother(-0.1)},
      {key: "+", label: "zoom in", does: () => zoomBy(0.5)},
      {key: "-", label: "zoom out", does: () => zoomBy(2)},
      {key: "ArrowLeft", label: "move the zoom to the left", does: () => move(-0.25)},
      {key: "ArrowRight", label: "move the zoom to the right", does: () => move(0.25)},
      {key: "0", label: "whole range", does: () => state.go({from: null, to: null})},
    ],
  };
}

/** @returns {[number, number] | null} the range that the charts show */
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

/** @param {number} share the fraction of the range */
function move(share) {
  const now = stretch();
  if (!now || !state.get("from")) return;
  const by = (now[1] - now[0]) * share;
  state.go({from: Number((now[0] + by).toPrecision(10)), to: Number((now[1] + by).toPrecision(10))}, {replace: true});
}
