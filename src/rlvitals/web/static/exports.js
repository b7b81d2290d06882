/**
 * Exports a panel: all points as CSV, the chart as SVG or PNG, or as an image on the clipboard. The page makes the
 * files; the server only provides the points.
 */

import {ask} from "./api.js";
import {el, svg} from "./dom.js";
import {counted} from "./numbers.js";
import {scaleNote} from "./scales.js";
import * as state from "./state.js";
import {colour, lineStyle} from "./theme.js";

/** @typedef {import("./charts.js").Chart} Chart */
/** @import {DrawnLine} from "../contract.d.ts" */

const MOST_POINTS = 10_000; // maximum of one answer
const FONT = "system-ui, sans-serif";
const LINE = 16; // height of a line of text in pixels

/**
 * Saves every logged point of the visible range: one row each, with the run, the name and the stream.
 * @param {string} title
 * @param {string[]} runs
 * @param {string[]} names
 * @returns {Promise<string>} a message about the result
 */
export async function saveCsv(title, runs, names) {
  const x = state.get("x") || "step";
  /** @type {(string | number | null)[][]} */
  const rows = [["run", "metric", "stream", ...(x === "step" ? [] : [x]), "step", "value"]];
  /** @type {string[]} */
  const failed = [];
  for (const run of runs) {
    for (const name of names) {
      const question = {run, name, x, from: state.getNumber("from"), to: state.getNumber("to")};
      const lines = await everyPoint(question).catch((error) => {
        failed.push(`${run}: ${error.message ?? error}`);
        return [];
      });
      for (const line of lines.sort((one, other) => (one.stream < other.stream ? 1 : one.stream > other.stream ? -1 : 0))) {
        line.x.forEach((at, place) => {
          rows.push([run, line.name, line.stream, ...(x === "step" ? [] : [at]), line.steps[place], line.y[place]]);
        });
      }
    }
  }
  const text = rows.map((row) => row.map(cell).join(",")).join("\n");
  download(`${title}.csv`, new Blob([`${text}\n`], {type: "text/csv"}));
  const summary = `${counted(rows.length - 1, "row")} saved. Non-finite values are empty cells.`;
  return failed.length ? `${summary} Not included: ${failed.join("; ")}` : summary;
}

/**
 * All points of a range. The points of one answer are limited, so a longer range is requested in two parts.
 * @param {import("../page.d.ts").Changes} question
 * @returns {Promise<DrawnLine[]>}
 */
async function everyPoint(question) {
  const {lines} = await ask("series", {...question, points: MOST_POINTS});
  const thinned = lines.find((line) => line.shown < line.total && line.x[0] < line.x[line.x.length - 1]);
  if (!thinned) return lines;
  const {x} = thinned;
  let middle = x[x.length >> 1];
  if (middle === x[0]) middle = x[x.length - 1];
  return [...(await everyPoint({...question, to: below(middle)})), ...(await everyPoint({...question, from: middle}))];
}

/** @param {number} value @returns {number} the next smaller floating-point number */
function below(value) {
  if (value === 0) return -Number.MIN_VALUE;
  const bits = new BigInt64Array(new Float64Array([value]).buffer);
  bits[0] += value > 0 ? -1n : 1n;
  return new Float64Array(bits.buffer)[0];
}

/**
 * Quotes a cell if necessary. A text that a spreadsheet would run as a formula gets an apostrophe, as in
 * `store/spreadsheet.py`.
 * @param {string | number | null} value
 */
function cell(value) {
  if (typeof value !== "string") return String(value ?? "");
  const safe = /^'*[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {string} title @param {Chart} chart @returns {string} a message about the result */
export function saveSvg(title, chart) {
  const text = new XMLSerializer().serializeToString(asSvg(title, chart));
  download(`${title}.svg`, new Blob([text], {type: "image/svg+xml"}));
  return "SVG saved.";
}

/** @param {string} title @param {Chart} chart */
export async function savePng(title, chart) {
  download(`${title}.png`, await asPng(title, chart));
  return "PNG saved.";
}

/** @param {string} title @param {Chart} chart */
export async function copyImage(title, chart) {
  if (!navigator.clipboard?.write) return "The browser copies images only from localhost or over https. Save the PNG instead.";
  await navigator.clipboard.write([new ClipboardItem({"image/png": asPng(title, chart)})]);
  return "Image copied.";
}

/** @param {Chart} chart @returns {{label: string, stroke: string}[]} */
function keyOf({picture}) {
  if (picture.lines.length < 2) return [];
  return picture.lines.map((line, place) => ({label: line.label, stroke: lineStyle(line.style ?? place).stroke}));
}

/** @param {string} title @param {Chart} chart @returns {Promise<Blob>} the title, the chart and its legend */
function asPng(title, chart) {
  const source = chart.plot.ctx.canvas;
  const ratio = devicePixelRatio;
  const key = keyOf(chart);
  const canvas = el("canvas");
  canvas.width = source.width;
  canvas.height = source.height + (1.5 + key.length) * LINE * ratio;
  const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  ctx.fillStyle = colour("card");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.fillStyle = colour("ink");
  ctx.font = `bold ${12 * ratio}px ${FONT}`;
  ctx.fillText(title, 8 * ratio, 14 * ratio);
  ctx.drawImage(source, 0, LINE * ratio);
  ctx.font = `${11 * ratio}px ${FONT}`;
  key.forEach(({label, stroke}, place) => {
    const y = LINE * ratio + source.height + (place + 0.7) * LINE * ratio;
    ctx.fillStyle = stroke;
    ctx.fillRect(8 * ratio, y - 5 * ratio, 20 * ratio, 3 * ratio);
    ctx.fillStyle = colour("ink");
    ctx.fillText(label, 34 * ratio, y);
  });
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The browser could not create the image.")))),
  );
}

/** @param {string} title @param {Chart} chart @returns {SVGElement} the same as vector graphics */
export function asSvg(title, chart) {
  const {plot, columns, scale} = chart;
  const key = keyOf(chart);
  const ratio = devicePixelRatio;
  const [left, top, width, height] = [plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height].map((part) => part / ratio);
  const whole = {width: plot.width, height: plot.height + (1.5 + key.length) * LINE};
  const root = svg("svg", {...whole, viewBox: `0 0 ${whole.width} ${whole.height}`, "font-family": FONT, "font-size": 11});
  const text = (/** @type {string} */ content, /** @type {number} */ x, /** @type {number} */ y, more = {}) => {
    const made = svg("text", {x, y, fill: colour("ink"), ...more});
    made.textContent = content;
    return made;
  };
  root.append(svg("rect", {...whole, fill: colour("card")}), text(title, 8, 14, {"font-weight": "bold", "font-size": 12}));
  const stage = svg("g", {transform: `translate(0 ${LINE})`});
  const at = (/** @type {number} */ x, /** @type {number} */ y) =>
    `${(left + plot.valToPos(x, "x")).toFixed(2)} ${(top + plot.valToPos(y, "y")).toFixed(2)}`;
  for (const [place, axis] of /** @type {{_splits: number[], _values: string[]}[]} */ (/** @type {unknown} */ (plot.axes)).entries()) {
    axis._splits?.forEach((tick, number) => {
      if (axis._values[number] === "" || axis._values[number] === null) return;
      const across = place === 0 ? left + plot.valToPos(tick, "x") : top + plot.valToPos(tick, "y");
      const grid = place === 0 ? {x1: across, x2: across, y1: top, y2: top + height} : {x1: left, x2: left + width, y1: across, y2: across};
      stage.append(svg("line", {...grid, stroke: colour("grid")}));
      const where = place === 0 ? [across, top + height + 14, "middle"] : [left - 6, across + 4, "end"];
      stage.append(text(axis._values[number], Number(where[0]), Number(where[1]), {fill: colour("faint"), "text-anchor": where[2]}));
    });
  }
  const clip = svg("clipPath", {id: "stage"});
  clip.append(svg("rect", {x: left, y: top, width, height}));
  const lines = svg("g", {fill: "none", "clip-path": "url(#stage)"});
  columns.series.forEach((series, place) => {
    const values = plot.data[place + 1];
    let isDown = false;
    const path = Array.from(plot.data[0], (x, row) => {
      const y = values[row];
      if (y === undefined) return ""; // x of another line
      if (y === null || chart.isOff(y)) return (isDown = false), "";
      const command = `${isDown ? "L" : "M"}${at(x, y)}`;
      isDown = true;
      return command;
    });
    const how = {stroke: series.stroke, "stroke-width": series.width, "stroke-dasharray": series.dash?.join(" ") || null};
    lines.append(svg("path", {d: path.join(""), ...how}));
  });
  stage.append(clip, lines, text(scaleNote(scale), left + 4, top + 10, {fill: colour("faint"), "font-size": 10}));
  root.append(stage);
  key.forEach(({label, stroke}, place) => {
    const y = plot.height + LINE * (1.7 + place);
    root.append(svg("rect", {x: 8, y: y - 6, width: 20, height: 3, fill: stroke}), text(label, 34, y));
  });
  return root;
}

/** @param {string} name @param {Blob} content */
export function download(name, content) {
  const link = el("a", {href: URL.createObjectURL(content), download: name.replace(/[^\w.\- ]+/g, "_")});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
