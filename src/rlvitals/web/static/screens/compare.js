/** Compare: settings that differ, a sweep, curves and bands over seeds, where they start to differ, rollouts. */

import {ask} from "../api.js";
import {atMostEvery, el, fill} from "../dom.js";
import {explainable} from "../drawer.js";
import {Figures} from "../figures.js";
import {lineOf, smoothingOf} from "../lines.js";
import {number} from "../numbers.js";
import {differences, folded, only, parting, runSwatch, table} from "../parts/comparison.js";
import {notice, section} from "../pieces.js";
import {stylesOf} from "../runstyles.js";
import * as state from "../state.js";

const CURVES = 6;
const LIVE_AGAIN = 10_000;
const SIDE_BY_SIDE = 12; // maximum of runs in curves and tables; a sweep may have hundreds

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal}) {
  const {runs} = await ask("runs", {}, signal);
  const figures = new Figures(root);
  const holder = el("div");
  const rollouts = el("div");
  const sweep = el("div");
  let swept = ""; // the runs, target and ranges of the drawn sweep
  const bar = el("div", {class: "controls"});
  fill(root, el("h1", {class: "head"}, "Compare"), bar, holder);
  /** @type {import("../../contract.d.ts").Compared | null} */
  let compared = null;
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
      checked: state.get("seeds") !== "0",
      on: {change: () => state.go({seeds: seeds.checked ? null : 0})},
    });
    fill(
      bar,
      names.slice(0, SIDE_BY_SIDE).map((name, at) =>
        el(
          "span",
          {class: "run"},
          runSwatch(names, at),
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
      names.length > SIDE_BY_SIDE && el("span", {class: "faint"}, `and ${names.length - SIDE_BY_SIDE} more`),
      field,
      list,
      names.length > 1 && el("label", {}, seeds, " bands over seeds"),
      state.get("from") !== "" && el("button", {on: {click: () => state.go({from: null, to: null})}}, "Whole range"),
    );
  }

  /** @param {boolean} [isNews] whether only rows were added; rollouts and the scroll position are then kept */
  async function look(isNews = false) {
    if (!bar.contains(document.activeElement)) drawBar();
    const names = chosen();
    if (names.length < 2) {
      compared = null;
      fill(holder, notice("Add a run to compare with this one.", "Or mark several in the list of all runs (r)."));
      return;
    }
    try {
      compared = await ask("compare", {run: names.slice(0, SIDE_BY_SIDE)}, signal);
      const top = root.scrollTop;
      draw(compared);
      if (isNews) {
        root.scrollTop = top;
        return;
      }
      if (compared.runs.slice(0, 2).every((one) => one.rollouts)) lookAtRollouts(names).catch(() => {});
      else fill(rollouts);
    } catch (error) {
      if (!signal.aborted) fill(holder, notice(error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {import("../../contract.d.ts").Compared} compared */
  function draw(compared) {
    figures.clear();
    const all = chosen();
    const names = all.slice(0, SIDE_BY_SIDE);
    const about = [...all, state.get("target"), ...state.read().query.getAll("range")].join("\n");
    if (all.length > 2 && about !== swept) {
      swept = about;
      import("../parts/sweep.js").then((made) =>
        fill(
          sweep,
          made.sweepOf(
            all,
            compared.metrics.map((row) => row.name),
            signal,
          ),
        ),
      );
    }
    const marked = state.read().query.getAll("metric");
    const wanted = marked.length
      ? marked
      : compared.metrics
          .filter((row) => row.verdict !== "different")
          .slice(0, CURVES)
          .map((row) => row.name);
    fill(
      holder,
      el(
        "p",
        {},
        compared.first_divergence === null
          ? "The runs have the same values at every common step."
          : `The values differ from step ${number(compared.first_divergence)} on.`,
        names.length < all.length &&
          ` Curves and tables show the first ${names.length} of ${all.length} runs. The sweep shows all of them.`,
      ),
      section("Settings that differ", differences(compared.config_differences, names), folded(compared.bookkeeping, names)),
      all.length > 2 && section("Sweep", sweep),
      section(
        "Curves",
        el(
          "div",
          {class: "figures"},
          wanted.map((name) => {
            const row = compared.metrics.find((one) => one.name === name);
            return figures.add(explainable(name), () => overlay(names, name), {
              legend: row ? parting(row, names) : null,
            });
          }),
        ),
      ),
      section("Best and final", table(compared, names, wanted)),
      section("Only in one run", only(compared.only_in_one)),
      rollouts,
    );
  }

  /** Rollouts of the first two runs, if both have some. @param {string[]} names */
  async function lookAtRollouts(names) {
    const {samePrompt} = await import("../parts/sameprompt.js");
    const found = await samePrompt(names, signal);
    if (!signal.aborted) fill(rollouts, section("Rollouts of the same prompt", found) || null);
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
    const bands = state.get("seeds") !== "0" ? answer.bands.filter((band) => band.x.length) : [];
    const banded = new Set(bands.flatMap((band) => band.runs));
    const styles = stylesOf(names);
    const lines = answer.lines
      .filter((line) => !banded.has(line.run))
      .map((line) => ({...lineOf(line, line.run, styles.get(line.run)), ghosts: []}));
    const logged = (/** @type {string[]} */ runs) =>
      answer.lines.reduce((sum, line) => sum + (runs.includes(line.run) ? line.total : 0), 0);
    const seeds = bands.map((band) => ({
      label: `mean of ${band.runs.length} seeds`,
      total: logged(band.runs),
      shown: logged(band.runs),
      x: band.x,
      y: band.mean,
      low: band.low,
      high: band.high,
      style: styles.get(band.runs[0]),
    }));
    const onZoom = (/** @type {number | null} */ from, /** @type {number | null} */ to) =>
      state.go({from: from && Number(from.toPrecision(10)), to: to && Number(to.toPrecision(10))});
    return {
      lines: [...seeds, ...lines],
      onZoom,
      isTime: state.get("x") === "time",
      sync: "compare",
      log: state.get("log") === "1",
      smooth: smoothingOf(state.get("smooth")),
    };
  }

  const later = atMostEvery(LIVE_AGAIN, () => look(true));
  await look();
  let before = chosen().join("\n");
  return {
    update: () => {
      const now = chosen().join("\n");
      if (now !== before) look();
      else if (compared) {
        drawBar();
        draw(compared);
      }
      before = now;
    },
    live: ({kind}) => {
      if (kind === "rows") later.ask();
    },
    stop: () => {
      later.stop();
      figures.stop();
    },
    keys: [
      {
        key: "/",
        label: "add a run",
        does: () => /** @type {HTMLElement} */ (bar.querySelector("input[type=search]")).focus(),
      },
      {key: "0", label: "whole range", does: () => state.go({from: null, to: null})},
      {key: "y", label: "log scale", does: () => state.go({log: state.get("log") ? null : 1})},
    ],
  };
}
