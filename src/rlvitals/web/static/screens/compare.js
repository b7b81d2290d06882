/** Compare: settings that differ, curves over each other, bands over seeds, first divergence, best and final values. */

import {ask} from "../api.js";
import {el, fill} from "../dom.js";
import {explainable} from "../drawer.js";
import {Figures} from "../figures.js";
import {lineOf} from "../lines.js";
import {number} from "../numbers.js";
import {differences, only, swatch, table} from "../parts/comparison.js";
import {notice, section} from "../pieces.js";
import * as state from "../state.js";

const CURVES = 6;

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal}) {
  const {runs} = await ask("runs", {}, signal);
  const figures = new Figures(root);
  const holder = el("div");
  const bar = el("div", {class: "controls"});
  fill(root, el("h1", {class: "head"}, "Compare"), bar, holder);
  /** @type {import("../../contract.d.ts").Compared | null} */
  let told = null;
  const chosen = () => [
    run,
    ...state
      .read()
      .query.getAll("with")
      .filter((name) => name !== run),
  ];

  function drawBar() {
    const names = chosen();
    const list = el(
      "datalist",
      {id: "all-runs"},
      runs.filter((item) => !names.includes(item.run)).map((item) => el("option", {value: item.run})),
    );
    const field = el("input", {
      type: "search",
      list: "all-runs",
      placeholder: "add a run",
      "aria-label": "Add a run to compare",
      on: {input: () => take(), change: () => take()},
    });
    const take = () => {
      if (runs.some((item) => item.run === field.value)) state.go({with: [...names.slice(1), field.value]});
    };
    const seeds = el("input", {
      type: "checkbox",
      checked: state.get("seeds") === "1",
      on: {change: () => state.go({seeds: seeds.checked ? 1 : null})},
    });
    fill(
      bar,
      names.map((name, at) =>
        el(
          "span",
          {class: "run"},
          swatch(at),
          " ",
          name === "." ? "this folder" : name,
          at > 0 &&
            el(
              "button",
              {
                class: "plain",
                "aria-label": `Remove ${name}`,
                on: {click: () => state.go({with: names.slice(1).filter((other) => other !== name)})},
              },
              "✕",
            ),
        ),
      ),
      field,
      list,
      names.length > 1 && el("label", {}, seeds, " bands over seeds"),
      state.get("from") !== "" && el("button", {on: {click: () => state.go({from: null, to: null})}}, "Whole range"),
    );
  }

  async function look() {
    drawBar();
    const names = chosen();
    if (names.length < 2) {
      told = null;
      fill(holder, notice("Add a run to lay beside this one.", "Or mark several in the list of all runs (r)."));
      return;
    }
    try {
      told = await ask("compare", {run: names}, signal);
      draw(told);
    } catch (error) {
      if (!signal.aborted) fill(holder, notice(error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {import("../../contract.d.ts").Compared} told */
  function draw(told) {
    figures.clear();
    const names = chosen();
    const marked = state.read().query.getAll("metric");
    const wanted = marked.length
      ? marked
      : told.metrics
          .filter((row) => row.verdict !== "different")
          .slice(0, CURVES)
          .map((row) => row.name);
    fill(
      holder,
      el(
        "p",
        {},
        told.first_divergence === null
          ? "No common step differs."
          : `The first common step that differs is ${number(told.first_divergence)}.`,
      ),
      section("Settings that differ", differences(told.config_differences, names)),
      section(
        "Curves",
        el(
          "div",
          {class: "figures"},
          wanted.map((name) => figures.add(explainable(name), () => overlay(names, name))),
        ),
      ),
      section("Best and final", table(told, names, wanted)),
      section("In one run alone", only(told.only_in_one)),
    );
  }

  /** @param {string[]} names @param {string} name */
  async function overlay(names, name) {
    const answer = await ask(
      "overlay",
      {
        run: names,
        name,
        x: state.get("x") || "step",
        from: state.getNumber("from"),
        to: state.getNumber("to"),
        points: 500,
      },
      signal,
    );
    if (!answer.lines.length) return answer.refused[0]?.reason ?? "no points";
    const bands = state.get("seeds") === "1" ? answer.bands.filter((band) => band.x.length) : [];
    const banded = new Set(bands.flatMap((band) => band.runs));
    const lines = answer.lines
      .filter((line) => !banded.has(line.run))
      .map((line) => ({...lineOf(line, line.run, names.indexOf(line.run)), ghosts: []}));
    const seeds = bands.map((band) => ({
      label: `mean of ${band.runs.length} seeds`,
      x: band.x,
      y: band.mean,
      low: band.low,
      high: band.high,
      style: names.indexOf(band.runs[0]),
    }));
    const onZoom = (/** @type {number | null} */ from, /** @type {number | null} */ to) =>
      state.go({from: from && Number(from.toPrecision(10)), to: to && Number(to.toPrecision(10))});
    return {
      lines: [...seeds, ...lines],
      onZoom,
      isTime: state.get("x") === "time",
      sync: "compare",
      log: state.get("log") === "1",
      smooth: Math.min(Math.max(state.getNumber("smooth") ?? 0, 0), 0.999),
    };
  }

  await look();
  let before = chosen().join("\n");
  return {
    update: () => {
      const now = chosen().join("\n");
      if (now !== before) look();
      else if (told) {
        drawBar();
        draw(told);
      }
      before = now;
    },
    stop: () => figures.stop(),
    keys: [
      {
        key: "/",
        says: "add a run",
        does: () => /** @type {HTMLElement} */ (bar.querySelector("input[type=search]")).focus(),
      },
      {key: "0", says: "whole range", does: () => state.go({from: null, to: null})},
      {key: "y", says: "log scale", does: () => state.go({log: state.get("log") ? null : 1})},
    ],
  };
}
