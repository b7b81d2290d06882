/**
 * Distributions of values over the steps, as percentile bands or histograms, from logged distributions and recorded
 * rollouts; and the logged texts. They are requested when the section is opened.
 */

import {ask} from "../api.js";
import {el, fill} from "../dom.js";
import {Figures} from "../figures.js";
import {counted, number, short} from "../numbers.js";
import {head, wideTable} from "../pieces.js";
import * as state from "../state.js";
import {colour} from "../theme.js";

/** @import {Distribution, LoggedText} from "../../contract.d.ts" */

const HEIGHT = 190;
const LEFT = 52; // pixels for the labels of the y axis
const BELOW = 20;
const MOST_LETTERS = 400;
const BANDS = "Median, 25 to 75 % and 5 to 95 % of the values; dotted: the lowest and the highest";

/**
 * @param {string} run
 * @param {HTMLElement} scroller
 * @param {AbortSignal} signal
 * @returns {{node: HTMLElement, update(): void, stop(): void}}
 */
export function distributionFold(run, scroller, signal) {
  const figures = new Figures(scroller);
  const body = el("div", {class: "distributed"});
  const toggle = () => state.go({spread: fold.open ? state.get("spread") || "bands" : null}, {replace: true});
  const fold = el(
    "details",
    {class: "spread", open: state.get("spread") !== "", on: {toggle}},
    el("summary", {}, "Distributions and texts"),
    body,
  );
  /** @type {Promise<import("../../contract.d.ts").Distributions> | null} */
  let request = null;
  let shown = "";
  const update = () => {
    const kind = state.get("spread");
    fold.open = kind !== "";
    if (!kind || kind === shown) return;
    shown = kind;
    request ??= ask("distributions", {run}, signal);
    request.then(
      ({distributions, texts}) => {
        figures.clear();
        fill(
          body,
          distributions.length > 0 && choice(kind),
          el("div", {class: "figures"}, distributions.map((one) => picture(figures, one, kind))),
          texts.length > 0 && table(texts),
          !distributions.length && !texts.length && el("p", {class: "faint"}, "Nothing was recorded."),
        );
      },
      (error) => {
        if (!signal.aborted) fill(body, el("p", {class: "problem"}, String(error.message ?? error)));
      },
    );
  };
  update();
  return {node: fold, update, stop: () => figures.stop()};
}

/** @param {string} kind */
function choice(kind) {
  const select = el(
    "select",
    {"aria-label": "Distributions as", on: {change: () => state.go({spread: select.value}, {replace: true})}},
    [
      ["bands", "percentile bands"],
      ["histogram", "histograms"],
    ].map(([value, text]) => el("option", {value, selected: value === kind}, text)),
  );
  return el("label", {class: "controls"}, "as ", select);
}

/** @param {Figures} figures @param {Distribution} one @param {string} kind */
function picture(figures, one, kind) {
  const counted = `${number(one.counts.reduce((sum, count) => sum + count, 0))} values`;
  const note = one.source === "logged" ? `${counted}, from 21 quantiles a step` : counted;
  const caption = el("span", {class: "faint small"}, note);
  if (kind === "histogram") return el("figure", {class: "figure"}, title(one, caption), heat(one));
  const [low, p5, p25, p50, p75, p95, high] = one.quantiles;
  const x = one.steps;
  const lines = [
    {label: "lowest", x, y: low, style: 4, isDotted: true, isBare: true, total: 0, shown: 0},
    {label: "highest", x, y: high, style: 4, isDotted: true, isBare: true, total: 0, shown: 0},
    {label: "5 to 95 %", x, y: p50, low: p5, high: p95, style: 0, isBare: true, total: 0, shown: 0},
    {label: "median, 25 to 75 %", x, y: p50, low: p25, high: p75, style: 0, isBare: true},
  ];
  const what = [one.title === one.name ? "" : one.title, note].filter(Boolean).join(" · ");
  return figures.add(el("span", {title: BANDS}, one.name, " ", el("span", {class: "faint small"}, what)), {lines}, {height: HEIGHT});
}

/** @param {Distribution} one @param {Node} caption */
function title(one, caption) {
  return el("figcaption", {}, el("strong", {}, one.name), el("span", {class: "faint small"}, one.title === one.name ? "" : one.title), caption);
}

/** @param {Distribution} one @returns {HTMLElement} a column per step, a row per bin; darker bins hold more values */
function heat(one) {
  const canvas = el("canvas", {role: "img", "aria-label": inWords(one), class: "heatmap"});
  const [width, height, ratio] = [480, HEIGHT, devicePixelRatio];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  ctx.scale(ratio, ratio);
  const [across, down] = [(width - LEFT) / one.steps.length, (height - BELOW) / (one.edges.length - 1)];
  const most = Math.max(...one.shares.flat());
  ctx.fillStyle = colour("line-0");
  one.shares.forEach((shares, column) =>
    shares.forEach((share, bin) => {
      if (!share) return;
      ctx.globalAlpha = 0.08 + 0.92 * Math.sqrt(share / most); // keeps small shares visible
      ctx.fillRect(LEFT + column * across, (shares.length - 1 - bin) * down, Math.max(across, 1), down);
    }),
  );
  ctx.globalAlpha = 1;
  ctx.fillStyle = colour("faint");
  ctx.font = "11px system-ui, sans-serif";
  ctx.textAlign = "right";
  const last = one.edges.length - 1;
  for (const [edge, y] of [
    [one.edges[last], 10],
    [one.edges[last >> 1], (height - BELOW) / 2 + 4],
    [one.edges[0], height - BELOW],
  ])
    ctx.fillText(short(Number(edge.toPrecision(3))), LEFT - 5, y);
  ctx.fillText(`step ${number(one.steps[one.steps.length - 1])}`, width - 2, height - 5);
  ctx.textAlign = "left";
  ctx.fillText(`step ${number(one.steps[0])}`, LEFT, height - 5);
  return canvas;
}

/** @param {Distribution} one @returns {string} */
function inWords({name, steps, quantiles}) {
  const rangeAt = (/** @type {number} */ at) =>
    `step ${steps[at]}: ${number(quantiles[0][at])} to ${number(quantiles[6][at])}, median ${number(quantiles[3][at])}`;
  return `Histogram of ${name} at ${counted(steps.length, "place")}; ${rangeAt(0)}; ${rangeAt(steps.length - 1)}`;
}

/** @param {LoggedText[]} texts */
function table(texts) {
  return wideTable(
    "Logged texts",
    "",
    head("Step", "Name", "Text"),
    el(
      "tbody",
      {},
      texts.map(({step, name, text}) =>
        el(
          "tr",
          {},
          el("td", {class: "num"}, number(step)),
          el("th", {scope: "row", class: "mono"}, name),
          el("td", {title: text}, text.slice(0, MOST_LETTERS)),
        ),
      ),
    ),
  );
}
