/** Metrics: a tree and a filter at the side, panels that exist while they are in view, one zoom for all of them. */

import {ask} from "../api.js";
import {atMostEvery, el, fill, say} from "../dom.js";
import {explain} from "../drawer.js";
import {counted, number} from "../numbers.js";
import {byName, chosen, folded} from "../parts/choice.js";
import {MetricPanel} from "../parts/panel.js";
import {SeriesStore} from "../series.js";
import {notice} from "../pieces.js";
import * as state from "../state.js";
import {tree} from "../parts/tree.js";
import {VirtualGrid} from "../virtual.js";
import {controls} from "../parts/viewcontrols.js";

const HEIGHT = 232;
const LARGE = 480;
const FRAME = 7; // milliseconds of drawing a frame: the rest belongs to scrolling
const LIVE_AGAIN = 900;

/** @typedef {import("../parts/panel.js").Metric} Metric */
/** @typedef {import("../series.js").Series} Series */

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal, again}) {
  const answer = await ask("metrics", {run}, signal);
  const all = byName(answer.metrics);
  const metrics = folded(all);
  if (!metrics.length) {
    fill(root, notice("No metric was logged yet."));
    return {
      live: ({kind}) => {
        if (kind === "rows") again();
      },
    };
  }
  /** @type {Map<string, MetricPanel>} */
  const panels = new Map();
  /** @type {Set<MetricPanel>} */
  const waiting = new Set();
  let isDrawing = false;
  const problem = el("p", {class: "problem", role: "alert"});
  const count = el("span", {class: "faint"});
  const area = el("div", {class: "panels"});
  const store = new SeriesStore(
    run,
    signal,
    (name) => arrived(name),
    (sentence) => {
      problem.textContent = sentence;
    },
  );
  const zoomTo = (/** @type {number | null} */ from, /** @type {number | null} */ to) =>
    state.go({from: rounded(from), to: rounded(to)});

  /** @param {string} name */
  function arrived(name) {
    for (const panel of panels.values()) if (panel.names.includes(name)) later(panel);
  }
  /** @param {MetricPanel} panel */
  function later(panel) {
    waiting.add(panel);
    if (!isDrawing) requestAnimationFrame(drawSome);
    isDrawing = true;
  }
  /** @param {MetricPanel} panel @returns {Series[]} what it draws; nothing while a part is missing */
  function partsOf(panel) {
    const parts = panel.names.flatMap((name) => store.kept.get(name) ?? []);
    return parts.length === panel.names.length ? parts : [];
  }
  function drawSome() {
    const began = performance.now();
    for (const panel of waiting) {
      waiting.delete(panel);
      const parts = partsOf(panel);
      if (panel.node.isConnected && parts.length) panel.draw(parts, how(), widthOf(panel));
      if (performance.now() - began > FRAME) break;
    }
    isDrawing = waiting.size > 0;
    if (isDrawing) requestAnimationFrame(drawSome);
  }
  const widthOf = (/** @type {MetricPanel} */ panel) => (panel.height === LARGE ? area.clientWidth : grid.panelWidth);
  const how = () => ({
    log: state.get("log") === "1",
    smooth: Math.min(Math.max(state.getNumber("smooth") ?? 0, 0), 0.999),
    sync: "metrics",
    isTime: state.get("x") === "time",
    xLabel: (state.get("x") || "step").replace("_", " "),
    onZoom: zoomTo,
    zoom: zoom(),
  });
  const zoom = () => {
    const [from, to] = [state.getNumber("from"), state.getNumber("to")];
    return from !== null && to !== null && from < to ? /** @type {[number, number]} */ ([from, to]) : null;
  };
  /** @type {VirtualGrid<Metric>} */
  const grid = new VirtualGrid(root, area, {
    minWidth: 300,
    height: HEIGHT,
    heading: (text) => el("h2", {class: "group"}, text),
    make: (metric) => {
      const panel = new MetricPanel(metric, HEIGHT);
      panels.set(metric.name, panel);
      return {
        node: panel.node,
        remove: () => {
          panel.remove();
          panels.delete(metric.name);
          waiting.delete(panel);
        },
      };
    },
    seen: (items) => {
      for (const {name} of items) {
        const panel = panels.get(name);
        if (panel && !panel.shows(partsOf(panel))) later(panel);
      }
      want(items);
    },
  });
  /** @type {string[]} */
  let wanted = [];
  const fetching = atMostEvery(60, () => store.want(wanted));
  const want = (/** @type {Metric[]} */ items) => {
    wanted = items.flatMap(({name, lines}) => panels.get(name)?.names ?? [lines[0].name]);
    fetching.ask();
  };

  /** @type {MetricPanel | null} */
  let large = null;
  const top = el("div", {class: "large"});
  function showLarge() {
    const name = state.get("one");
    const metric = [...metrics, ...all].find((candidate) => candidate.name === name);
    if (large) {
      large.remove();
      panels.delete(large.metric.name);
      large = null;
    }
    fill(top);
    if (!metric) return;
    large = new MetricPanel(metric, LARGE);
    fill(top, el("h2", {class: "unseen"}, "Chosen metric"), large.node);
    panels.set(name, large);
    later(large);
    store.want(large.names);
  }
  let complained = ""; // of the filter, which the next one makes good
  /** @param {boolean} isNew whether other points are needed */
  function look(isNew) {
    if (isNew) {
      problem.textContent = "";
      const [from, to] = zoom() ?? [null, null];
      store.setView({x: state.get("x") || "step", from, to});
    }
    const {sections, shown, complaint} = chosen(metrics, state.get("filter"), state.get("group"), state.get("one"));
    if (complaint || problem.textContent === complained) problem.textContent = complaint;
    complained = complaint;
    count.textContent =
      shown === metrics.length ? counted(shown, "metric") : `${shown} of ${counted(metrics.length, "metric")}`;
    if (answer.left_out) count.textContent += `, and ${number(answer.left_out)} more that are not listed`;
    grid.setSections(sections);
    showLarge();
    say(count.textContent);
  }
  const newer = atMostEvery(LIVE_AGAIN, () => {
    store.grow();
    grid.show();
    if (large) store.want(large.names);
  });
  const names = new Set(all.map(({name}) => name));
  const anew = atMostEvery(LIVE_AGAIN, again);
  const bar = controls(count);
  fill(
    root,
    el("h1", {class: "unseen"}, "Metrics"),
    el("div", {class: "with-tree"}, tree(metrics), el("div", {class: "stage"}, bar.node, problem, top, area)),
  );
  look(true);

  let last = signature();
  return {
    update: () => {
      const now = signature();
      bar.update();
      if (now.data !== last.data) look(true);
      else if (now.list !== last.list || now.look !== last.look) look(false);
      last = now;
    },
    live: ({kind, facts}) => {
      if (kind !== "rows") return;
      for (const panel of panels.values()) panel.heard(facts.values[panel.metric.name]);
      if (!answer.left_out && Object.keys(facts.values).some((name) => !names.has(name))) anew.ask();
      else newer.ask();
    },
    stop: () => {
      [newer, anew, fetching].forEach((one) => one.stop());
      grid.stop();
      large?.remove();
    },
    keys: [
      ...bar.keys,
      {
        key: "e",
        says: "explain the panel that has the focus",
        does: () => {
          const name = focused();
          if (name) explain(name);
        },
      },
      {key: "j", says: "next panel", does: () => walk(1)},
      {key: "k", says: "panel before", does: () => walk(-1)},
      {key: "Escape", says: "close the explanation, the large panel, the zoom", does: back},
    ],
  };

  /** @param {number} by */
  function walk(by) {
    const order = grid.rows.flatMap((row) => row.items);
    const next =
      order[Math.min(Math.max(order.findIndex((metric) => metric.name === focused()) + by, 0), order.length - 1)];
    if (!next) return;
    grid.reveal(next);
    panels.get(next.name)?.node.focus({preventScroll: true});
  }
}

/** One after the other what hides the whole. */
function back() {
  if (state.get("explain")) state.go({explain: null});
  else if (state.get("one")) state.go({one: null});
  else if (state.get("from")) state.go({from: null, to: null});
}

/** @returns {string} the metric whose panel has the focus */
function focused() {
  return document.activeElement?.closest(".panel")?.getAttribute("data-metric") ?? "";
}

/** What in the address asks for other data, other panels, another look. */
function signature() {
  const pick = (/** @type {string[]} */ names) => names.map((name) => state.get(name)).join("\n");
  return {data: pick(["x", "from", "to"]), list: pick(["filter", "group", "one"]), look: pick(["log", "smooth"])};
}

/** @param {number | null} value @returns {number | null} as few digits as an address needs */
function rounded(value) {
  return value === null ? null : Number(value.toPrecision(10));
}
