/**
 * Metrics: a tree at the side, a filter, overlaid runs, and panels, which exist only while they are visible and share
 * one zoom.
 */

import {ask} from "../api.js";
import {announce, atMostEvery, el, fill} from "../dom.js";
import {explain} from "../drawer.js";
import {smoothingOf} from "../lines.js";
import {counted, number} from "../numbers.js";
import {boardBar} from "../parts/boards.js";
import {byName, chosen, folded, paired} from "../parts/choice.js";
import {back, constantFold, focused, signature, zoom, zoomTo} from "../parts/metricsview.js";
import {distributionFold} from "../parts/distributions.js";
import {imageFold} from "../parts/images.js";
import {othersOf, overlaidNow, overlayBar, runsShown} from "../parts/overlaid.js";
import {MetricPanel} from "../parts/panel.js";
import {pins} from "../parts/panelsettings.js";
import {SeriesStore} from "../series.js";
import {notice} from "../pieces.js";
import * as state from "../state.js";
import {tree} from "../parts/tree.js";
import {VirtualGrid} from "../virtual.js";
import {controls} from "../parts/viewcontrols.js";

const HEIGHT = 232;
const LARGE = 480;
const FRAME = 7; // milliseconds of drawing per frame; the rest is for scrolling
const LIVE_AGAIN = 900;
const OTHERS_AFTER = 1000; // milliseconds; earlier if the answer for a panel arrives

/** @typedef {import("../parts/panel.js").Metric} Metric */
/** @typedef {import("../series.js").Series} Series */
/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal, again}) {
  const answer = await ask("metrics", {run}, signal);
  const all = byName(answer.metrics);
  if (!all.length) {
    fill(root, notice("No metrics have been logged yet."));
    return {
      live: ({kind}) => {
        if (kind === "rows") again();
      },
    };
  }
  let joined = paired(all);
  const alone = folded(joined);
  const isAlone = () => runsShown().length < 2;
  let joining = 0;
  let joinedRuns = ""; // the runs whose metrics are in `joined`
  /** Adds panels for metrics that only the overlaid runs log, when they are known. */
  async function joinOthers() {
    const runs = runsShown();
    const requestedRuns = runs.join("\n");
    if (requestedRuns === joinedRuns) return;
    joinedRuns = requestedRuns;
    const found = runs.length < 2 ? [] : await othersOf(runs, signal).catch(() => []);
    if (joinedRuns !== requestedRuns || signal.aborted) return;
    const before = joined.length;
    joined = paired(byName([...answer.metrics, ...found]));
    if (joined.length !== before || found.length) look(false);
  }
  const metrics = () => (isAlone() ? alone : joined); // if runs are overlaid, each slice has its own panel
  /** @type {Map<string, MetricPanel>} */
  const panels = new Map();
  /** @type {Set<MetricPanel>} */
  const waiting = new Set();
  let isDrawing = false;
  const problem = el("p", {class: "problem", role: "alert"});
  const count = el("span", {class: "faint"});
  const area = el("div", {class: "panels"});
  /** @type {import("../series.js").Grouping} */
  let grouping = {groups: [], settings: []};
  const over = overlayBar();
  const store = new SeriesStore(
    runsShown(),
    signal,
    (name) => arrived(name),
    (sentence) => {
      problem.textContent = sentence;
    },
    (found) => {
      grouping = found;
      over.update(found);
      void joinOthers();
    },
  );
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
  /** @param {MetricPanel} panel @returns {Series[]} its series; empty while one of them is missing */
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
  const widthOf = (/** @type {MetricPanel} */ panel) => (panel === large ? top.clientWidth : grid.panelWidth);
  const how = () => ({
    log: state.get("log") === "1",
    smooth: smoothingOf(state.get("smooth")),
    sync: "metrics",
    isTime: state.get("x") === "time",
    xLabel: (state.get("x") || "step").replace("_", " "),
    onZoom: zoomTo,
    zoom: zoom(),
    overlaid: overlaidNow(grouping),
  });
  let constant = "";
  /** @type {VirtualGrid<Metric>} */
  const grid = new VirtualGrid(root, area, {
    minWidth: 300,
    height: HEIGHT,
    heading: (text) => el("h2", {class: "group"}, text === constant ? constantFold(text) : text),
    make: (metric) => {
      const panel = new MetricPanel(metric, HEIGHT, isAlone());
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
    const metric = [...metrics(), ...all].find((candidate) => candidate.name === name);
    if (large) {
      large.remove();
      panels.delete(large.metric.name);
      large = null;
    }
    fill(top);
    const isFull = Boolean(metric) && state.get("full") === "1";
    top.classList.toggle("full", isFull);
    if (!metric) return;
    large = new MetricPanel(metric, isFull ? innerHeight - 24 : LARGE, isAlone());
    fill(top, el("h2", {class: "unseen"}, "Chosen metric"), large.node);
    panels.set(name, large);
    later(large);
    store.want(large.names);
  }
  let complained = ""; // the message about a wrong filter
  /** @param {boolean} isNew whether new points must be fetched */
  function look(isNew) {
    if (isNew) {
      problem.textContent = "";
      const [from, to] = zoom() ?? [null, null];
      store.setView({x: state.get("x") || "step", from, to}, runsShown(), state.get("by"));
      // The visible panels are fetched first. They must not wait for panels of other runs' metrics.
      clearTimeout(joining);
      joining = setTimeout(joinOthers, isAlone() ? 0 : OTHERS_AFTER);
    }
    const found = chosen(metrics(), {
      filter: state.get("filter"),
      group: state.get("group"),
      one: state.get("one"),
      essentials: answer.essentials,
      pins: pins(),
      pinsAlone: state.get("show") === "pinned",
      folds: state.get("constant") !== "1",
    });
    const {sections, shown, complaint} = found;
    constant = found.constant;
    if (complaint || problem.textContent === complained) problem.textContent = complaint;
    complained = complaint;
    const all = metrics().length;
    count.textContent = shown === all ? counted(shown, "metric") : `${shown} of ${counted(all, "metric")}`;
    if (answer.left_out) count.textContent += `, and ${number(answer.left_out)} more that are not listed`;
    grid.setSections(sections);
    showLarge();
    announce(count.textContent);
  }
  const newer = atMostEvery(LIVE_AGAIN, () => {
    store.grow();
    grid.show();
    if (large) store.want(large.names);
  });
  const names = new Set(all.map(({name}) => name));
  const remount = atMostEvery(LIVE_AGAIN, again);
  const bar = controls(count);
  bar.node.append(over.node);
  const boards = boardBar();
  const spread = answer.has_distributions || answer.texts.length ? distributionFold(run, root, signal) : null;
  const pictures = answer.has_images ? imageFold(run, signal) : null;
  fill(
    root,
    el("h1", {class: "unseen"}, "Metrics"),
    el(
      "div",
      {class: "with-tree"},
      tree(alone),
      el("div", {class: "stage"}, bar.node, boards.node, problem, top, spread?.node, pictures?.node, area),
    ),
  );
  look(true);

  let last = signature();
  return {
    update: () => {
      const now = signature();
      bar.update();
      boards.update();
      spread?.update();
      pictures?.update();
      if (now.data !== last.data) look(true);
      else if (now.list !== last.list || now.look !== last.look) look(false);
      over.update(grouping);
      last = now;
    },
    live: ({kind, facts}) => {
      if (kind !== "rows") return;
      for (const panel of panels.values()) panel.setLast(facts.values[panel.metric.name]);
      pictures?.refresh();
      if (!answer.left_out && Object.keys(facts.values).some((name) => !names.has(name))) remount.ask();
      else newer.ask();
    },
    stop: () => {
      [newer, remount, fetching].forEach((one) => one.stop());
      clearTimeout(joining);
      boards.stop();
      over.stop();
      spread?.stop();
      pictures?.stop();
      grid.stop();
      large?.remove();
    },
    keys: [
      ...bar.keys,
      {
        key: "e",
        label: "explain the panel that has the focus",
        does: () => {
          const name = panels.get(focused())?.names[0];
          if (name) explain(name);
        },
      },
      {key: "j", label: "next panel", does: () => walk(1)},
      {key: "k", label: "previous panel", does: () => walk(-1)},
      {key: "Escape", label: "close the explanation, full screen, the large panel, the zoom", does: back},
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
