/** Parallel coordinates: one axis for each setting that varies and one for the target, one line for each run. Dragging
 * along an axis selects the runs in that range. The ranges are stored in the address. */

import {el, fill, svg} from "../dom.js";
import {number, short} from "../numbers.js";
import * as state from "../state.js";

/** @import {Sweep, SweepSetting} from "../../contract.d.ts" */
/** @typedef {{key: string, title: string, at: (place: number) => number | null, labelAt: (share: number) => string, ticks: [number, string][], textOf: (place: number) => string}} Axis */
/** @typedef {{low: number, high: number}} Range fractions of an axis, from its lower end */

const HEIGHT = 300;
const TOP = 46;
const BOTTOM = 24;
const LEAST = 110;
const MOST_AXES = 12;
const FEW = 6; // up to this many values, each is a label of the axis

/** @returns {Map<string, Range>} the ranges in the address */
export function ranges() {
  /** @type {Map<string, Range>} */
  const found = new Map();
  for (const text of state.read().query.getAll("range")) {
    const [high, low, ...key] = text.split(":").reverse();
    if (key.length && Number.isFinite(Number(low)) && Number.isFinite(Number(high)))
      found.set(key.reverse().join(":"), {low: Number(low), high: Number(high)});
  }
  return found;
}

/** @param {Map<string, Range>} wanted */
function choose(wanted) {
  const texts = [...wanted].map(([key, {low, high}]) => `${key}:${Number(low.toFixed(4))}:${Number(high.toFixed(4))}`);
  state.go({range: texts}, {replace: true});
}

/**
 * @param {Sweep} sweep
 * @returns {Axis[]}
 */
export function axesOf(sweep) {
  const settings = sweep.settings.slice(0, MOST_AXES - 1).map((setting, at) =>
    axis(
      setting,
      sweep.runs.map((run) => run.values[at]),
    ),
  );
  /** @type {SweepSetting} */
  const target = {key: sweep.target, kind: "number", is_log: false, words: []};
  return [
    ...settings,
    axis(
      target,
      sweep.runs.map((run) => run.target),
    ),
  ];
}

/** @param {SweepSetting} setting @param {unknown[]} values @returns {Axis} */
function axis({key, kind, is_log: isLog, words}, values) {
  const title = key;
  const textOf = (/** @type {number} */ place) =>
    typeof values[place] === "number" ? number(values[place]) : String(values[place] ?? "–");
  if (kind === "category") {
    const share = (/** @type {string} */ word) => (words.length > 1 ? words.indexOf(word) / (words.length - 1) : 0.5);
    const labelAt = (/** @type {number} */ at) => words[Math.round(at * (words.length - 1))] ?? "";
    /** @type {[number, string][]} */
    const ticks = words.slice(0, 30).map((word) => [share(word), word]);
    return {
      key,
      title,
      textOf,
      labelAt,
      ticks,
      at: (place) => (values[place] === null ? null : share(String(values[place]))),
    };
  }
  const scale = isLog ? Math.log10 : (/** @type {number} */ value) => value;
  const known = values.filter((value) => typeof value === "number").map((value) => scale(value));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const share = (/** @type {number} */ own) => (high > low ? (scale(own) - low) / (high - low) : 0.5);
  const few = [...new Set(values)].filter((own) => typeof own === "number");
  const value = (/** @type {number} */ at) => (isLog ? 10 ** (low + at * (high - low)) : low + at * (high - low));
  return {
    key,
    title: isLog ? `${key} (log)` : key,
    textOf,
    labelAt: (at) => number(Number(value(at).toPrecision(4))),
    ticks:
      few.length <= FEW
        ? few.map((own) => [share(own), short(own)])
        : [0, 0.25, 0.5, 0.75, 1].map((at) => [at, short(Number(value(at).toPrecision(3)))]),
    at: (place) => {
      const own = values[place];
      return typeof own === "number" ? share(own) : null;
    },
  };
}

/** @param {Axis[]} axes @param {number} runs @returns {number[]} the indices of the runs that are in all ranges */
export function kept(axes, runs) {
  const wanted = ranges();
  return [...Array(runs).keys()].filter((place) =>
    axes.every((one) => {
      const range = wanted.get(one.key);
      const at = one.at(place);
      return !range || (at !== null && at >= range.low - 1e-9 && at <= range.high + 1e-9);
    }),
  );
}

/**
 * @param {HTMLElement} place
 * @param {Sweep} sweep
 */
export function drawParallel(place, sweep) {
  const axes = axesOf(sweep);
  const target = axes[axes.length - 1];
  const width = Math.max(place.clientWidth - 4, LEAST * axes.length);
  const x = (/** @type {number} */ at) => (axes.length > 1 ? 50 + (at * (width - 100)) / (axes.length - 1) : width / 2);
  const y = (/** @type {number} */ share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const inside = new Set(kept(axes, sweep.runs.length));
  const drawing = svg("svg", {
    width,
    height: HEIGHT,
    role: "img",
    "aria-label": `${sweep.runs.length} runs over ${axes.length} axes`,
  });
  const readout = el("p", {class: "small faint", "aria-live": "polite"});
  const write = (/** @type {string} */ text) => {
    readout.textContent = text || "Drag along an axis to select a range; click the axis to clear it.";
  };
  for (const isInside of [false, true]) {
    sweep.runs.forEach((run, at) => {
      if (inside.has(at) !== isInside) return;
      const points = axes.map((one, number_) => [x(number_), one.at(at)]).filter(([, share]) => share !== null);
      const path = points.map(([left, share], first) => `${first ? "L" : "M"}${left},${y(Number(share))}`).join("");
      const line = svg("path", {d: path, class: isInside ? "way" : "way outside"});
      const share = target.at(at);
      line.style.stroke = `color-mix(in oklab, var(--above) ${Math.round((share ?? 0.5) * 100)}%, var(--below))`;
      line.addEventListener("pointerenter", () =>
        write([run.run, ...axes.map((one) => `${one.key} ${one.textOf(at)}`)].join(" · ")),
      );
      drawing.append(line);
    });
  }
  axes.forEach((one, at) => drawing.append(axisNode(one, x(at), y, at === 0)));
  write("");
  fill(
    place,
    el("div", {class: "wide", tabindex: 0, role: "region", "aria-label": "Parallel coordinates"}, drawing),
    readout,
    fields(axes),
  );
}

/** @param {Axis} axis @param {number} left @param {(share: number) => number} y @param {boolean} isFirst */
function axisNode(axis, left, y, isFirst) {
  const node = svg("g", {class: "axis"});
  const range = ranges().get(axis.key);
  node.append(svg("line", {x1: left, x2: left, y1: y(0), y2: y(1)}));
  // To the left of the first axis there are no lines.
  for (const [share, text] of axis.ticks)
    node.append(label(text, isFirst ? left - 6 : left + 6, y(share) + 4, isFirst ? "first tick" : "tick"));
  const title = axis.title.length > 24 ? `${axis.title.slice(0, 23)}…` : axis.title;
  node.append(label(title, isFirst ? 2 : left, 18, isFirst ? "first title" : "title", axis.title));
  const brush = svg("rect", {
    class: "brush",
    x: left - 9,
    width: 18,
    y: range ? y(range.high) : 0,
    height: range ? Math.max(y(range.low) - y(range.high), 3) : 0,
  });
  const grip = svg("rect", {class: "grip", x: left - 14, width: 28, y: y(1) - 6, height: y(0) - y(1) + 12});
  const share = (/** @type {PointerEvent} */ event) => {
    const top = grip.getBoundingClientRect();
    return Math.min(Math.max(1 - (event.clientY - top.top - 6) / (top.height - 12), 0), 1);
  };
  grip.addEventListener("pointerdown", (event) => {
    const down = /** @type {PointerEvent} */ (event);
    const from = share(down);
    let to = from;
    grip.setPointerCapture(down.pointerId);
    const move = (/** @type {Event} */ moved) => {
      to = share(/** @type {PointerEvent} */ (moved));
      brush.setAttribute("y", String(y(Math.max(from, to))));
      brush.setAttribute("height", String(Math.abs(y(from) - y(to))));
    };
    const up = () => {
      grip.removeEventListener("pointermove", move);
      const wanted = ranges();
      if (Math.abs(from - to) < 0.02) wanted.delete(axis.key);
      else wanted.set(axis.key, {low: Math.min(from, to), high: Math.max(from, to)});
      choose(wanted);
    };
    grip.addEventListener("pointermove", move);
    grip.addEventListener("pointerup", up, {once: true});
  });
  node.append(brush, grip);
  return node;
}

/** @param {string} text @param {number} x @param {number} y @param {string} style @param {string} [whole] */
function label(text, x, y, style, whole = "") {
  const anchor = {title: "middle", "first tick": "end"}[style] ?? "start";
  const node = svg("text", {x, y, class: style, "text-anchor": anchor});
  node.textContent = text;
  if (whole) {
    const title = svg("title");
    title.textContent = whole;
    node.append(title);
  }
  return node;
}

/** Sliders for the ranges, which work with the keyboard. @param {Axis[]} axes */
function fields(axes) {
  const slider = (/** @type {Axis} */ axis, /** @type {"low" | "high"} */ side) => {
    const range = ranges().get(axis.key) ?? {low: 0, high: 1};
    const readout = el("span", {class: "num small"}, axis.labelAt(range[side]));
    const field = el("input", {
      type: "range",
      min: 0,
      max: 1,
      step: 0.01,
      value: range[side],
      "aria-label": `${axis.key} ${side === "low" ? "from" : "to"}`,
      on: {
        input: () => {
          readout.textContent = axis.labelAt(Number(field.value));
        },
        change: () => {
          const wanted = ranges();
          const now = {...(wanted.get(axis.key) ?? {low: 0, high: 1}), [side]: Number(field.value)};
          if (now.low <= 0 && now.high >= 1) wanted.delete(axis.key);
          else wanted.set(axis.key, {low: Math.min(now.low, now.high), high: Math.max(now.low, now.high)});
          choose(wanted);
        },
      },
    });
    return el("td", {}, field, " ", readout);
  };
  return el(
    "details",
    {class: "ranges"},
    el("summary", {}, "Ranges by slider"),
    el(
      "table",
      {},
      axes.map((axis) =>
        el("tr", {}, el("th", {scope: "row", class: "mono"}, axis.key), slider(axis, "low"), slider(axis, "high")),
      ),
    ),
  );
}
