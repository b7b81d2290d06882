/** Vitals: the verdict and its reason, the vital signs as tiles, findings along the steps, and where the run is now. */

import {ask} from "../api.js";
import {follow} from "../bar.js";
import {el, fill, say} from "../dom.js";
import {explainable} from "../drawer.js";
import {ago, counted, duration, moment, number, range} from "../numbers.js";
import {spark} from "../spark.js";
import * as state from "../state.js";
import {badge, styleOf} from "../words.js";

const AGAIN = 2000;
const PATTERN = /** @type {Record<string, string>} */ ({critical: "✖", warning: "!", info: "·"});

/**
 * @param {import("../app.js").Place} place
 * @returns {Promise<import("../app.js").Screen>}
 */
export async function mount({run, root, signal}) {
  let facts = await ask("run", {run}, signal);
  let timer = 0;
  let clock = 0;
  const draw = () => fill(root, verdict(facts), el("div", {class: "tiles"}, facts.tiles.map(tile)), steps(facts), about(facts));
  const again = () => {
    timer = 0;
    ask("run", {run}, signal).then((newer) => {
      if (newer.verdict !== facts.verdict) say(`The verdict is now ${newer.verdict}: ${newer.reason}`);
      facts = newer;
      if (!root.contains(document.activeElement) || document.activeElement === root) draw();
      else refresh(root, facts);
    }).catch(() => {});
  };
  draw();
  clock = setInterval(() => tick(root, facts), 1000);
  return {
    live: ({kind, facts: heard}) => {
      if (kind === "rows") {
        facts.now.step = heard.step;
        facts.now.updated = heard.updated;
        for (const item of facts.tiles) if (heard.values?.[item.name] !== undefined) item.value = heard.values[item.name];
        refresh(root, facts);
      }
      if (kind !== "open" && kind !== "lost" && !timer) timer = setTimeout(again, AGAIN);
    },
    stop: () => { clearTimeout(timer); clearInterval(clock); },
    keys: [{key: "m", says: "all metrics", does: () => state.go({}, {screen: "metrics"})},
      {key: "h", says: "all findings", does: () => state.go({}, {screen: "health"})}],
  };
}

/** @param {any} facts */
function verdict(facts) {
  const {now} = facts;
  const known = now.total_steps && now.step !== null;
  const share = known ? Math.min(now.step / now.total_steps, 1) : 0;
  const progress = el("progress", {max: 1, "aria-label": "Steps done"});
  progress.value = share;
  const cell = (/** @type {string} */ title, /** @type {any} */ value, id = "") =>
    el("div", {}, el("dt", {}, title), el("dd", {data: id ? {now: id} : {}}, value));
  return el("section", {class: `verdict ${styleOf(facts.verdict)}`},
    el("div", {class: "said"},
      el("h1", {}, badge(facts.verdict)),
      el("p", {class: "reason"}, facts.reason),
      el("p", {class: "faint"}, [facts.name, facts.algorithm, facts.framework, facts.status_note || facts.status].filter(Boolean).join(" · "))),
    el("div", {class: "now"},
      el("dl", {},
        cell("Step", stepText(now), "step"),
        now.eta_s !== null && now.eta_s !== undefined && cell("Left", duration(now.eta_s)),
        now.tokens_per_s && cell("Tokens/s", number(now.tokens_per_s)),
        phase(now.phase) && cell("Phase", phase(now.phase)),
        cell("Updated", ago(now.updated), "updated")),
      known && progress));
}

/** @param {any} now @returns {string} */
function stepText(now) {
  return now.total_steps ? `${number(now.step)} of ${number(now.total_steps)}` : number(now.step);
}

/** @param {any} given @returns {string} */
function phase(given) {
  return typeof given === "object" && given ? String(given.phase ?? given.name ?? "") : String(given ?? "");
}

/** @param {any} tile */
function tile(tile) {
  return el("article", {class: `tile ${styleOf(tile.status)}`, data: {tile: tile.name}},
    el("header", {}, el("h2", {}, explainable(tile.name, tile.title)), badge(tile.status, true)),
    el("p", {class: "value"}, el("span", {data: {value: ""}}, number(tile.value)), tile.unit && tile.unit !== "none" && el("span", {class: "unit"}, tile.unit)),
    el("a", {class: "sparklink", href: state.address({one: tile.name}, "metrics"), "aria-label": `${tile.title}: chart`,
      on: {click: (/** @type {MouseEvent} */ event) => follow(event, () => state.go({one: tile.name}, {screen: "metrics"}))}}, spark(tile.spark, tile.band)),
    el("p", {class: "small faint"}, changeText(tile), range(tile.band) && ` · healthy ${range(tile.band)}`),
    (tile.status === "watch" || tile.status === "act") && el("p", {class: "small why"}, tile.why));
}

/** @param {any} tile @returns {string} */
function changeText(tile) {
  if (tile.change === null || tile.change === undefined) return "no change to tell yet";
  if (tile.change === 0) return "→ unchanged";
  const isBetter = tile.direction === "up" ? tile.change > 0 : tile.direction === "down" ? tile.change < 0 : null;
  const word = isBetter === null ? "" : isBetter ? ", better" : ", worse";
  return `${tile.change > 0 ? "▲ +" : "▼ −"}${number(Math.abs(tile.change))}${word}`;
}

/** @param {any} facts */
function steps(facts) {
  if (!facts.step_bar.length) return null;
  const cells = merged(facts.step_bar).map((cell) => {
    const made = cell.severity
      ? el("button", {class: `cell ${styleOf(cell.severity)}`, title: `steps ${cell.from} to ${cell.to}: ${counted(cell.findings.length, "finding")}, worst ${cell.severity}`,
        on: {click: () => state.go({finding: cell.findings[0]}, {screen: "health"})}}, PATTERN[cell.severity] ?? "·",
        el("span", {class: "unseen"}, ` ${cell.severity}, steps ${cell.from} to ${cell.to}`))
      : el("span", {class: "cell clear", title: `steps ${cell.from} to ${cell.to}: nothing found`});
    made.style.flexGrow = String(cell.to - cell.from + 1);
    return made;
  });
  const first = facts.step_bar[0].from;
  const last = facts.step_bar[facts.step_bar.length - 1].to;
  return el("section", {}, el("h2", {}, "Findings along the steps"), el("div", {class: "stepbar"}, cells),
    el("div", {class: "ends faint small"}, el("span", {}, `step ${number(first)}`), el("span", {}, number(last))));
}

/**
 * Neighbouring cells of one severity as one.
 * @param {any[]} cells
 * @returns {any[]}
 */
function merged(cells) {
  /** @type {any[]} */
  const out = [];
  for (const cell of cells) {
    const before = out[out.length - 1];
    if (before && before.severity === cell.severity) {
      before.to = cell.to;
      before.findings = [...new Set([...before.findings, ...cell.findings])];
    } else out.push({...cell});
  }
  return out;
}

/** @param {any} facts */
function about(facts) {
  const list = (/** @type {any[]} */ items) => el("ul", {}, items.map((item) => el("li", {}, typeof item === "string" ? item : JSON.stringify(item))));
  const fold = (/** @type {string} */ title, /** @type {any} */ content, isOpen = false) => content && el("details", {open: isOpen}, el("summary", {}, title), content);
  const trackers = Array.isArray(facts.trackers) ? facts.trackers : Object.entries(facts.trackers ?? {}).map(([name, told]) => `${name}: ${plainly(told)}`);
  return el("section", {class: "about"},
    fold(`Problems (${facts.problems?.length})`, facts.problems?.length && list(facts.problems), true),
    fold(`Trackers (${trackers.length})`, trackers.length && list(trackers.map((/** @type {any} */ item) => typeof item === "string" ? item : plainly(item)))),
    fold(`Attempts (${facts.attempts?.length})`, facts.attempts?.length > 1 && list(facts.attempts.map((/** @type {any} */ item) =>
      `${item.number}: started ${moment(item.started)}${item.from_step === null ? "" : `, from step ${item.from_step}`}`))),
    fold("Settings", Object.keys(facts.config ?? {}).length && table(flat(facts.config))),
    fold("Environment", Object.keys(facts.environment ?? {}).length && table(flat(facts.environment))));
}

/** @param {any} told @returns {string} */
function plainly(told) {
  return typeof told === "object" && told ? Object.entries(told).filter(([, value]) => value !== null && value !== "").map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ") : String(told);
}

/**
 * Nested settings by dotted keys.
 * @param {any} given
 * @param {string} [head]
 * @returns {[string, string][]}
 */
function flat(given, head = "") {
  return Object.entries(given).flatMap(([key, value]) => value && typeof value === "object" && !Array.isArray(value)
    ? flat(value, `${head}${key}.`)
    : [/** @type {[string, string]} */ ([head + key, typeof value === "string" ? value : JSON.stringify(value)])]);
}

/** @param {[string, string][]} rows */
function table(rows) {
  return el("div", {class: "wide"}, el("table", {class: "facts"}, rows.map(([key, value]) => el("tr", {}, el("th", {scope: "row", class: "mono"}, key), el("td", {class: "mono"}, value)))));
}

/**
 * The numbers that a new row brings, in their places: nothing is built anew, so no focus is lost.
 * @param {HTMLElement} root
 * @param {any} facts
 */
function refresh(root, facts) {
  for (const item of facts.tiles) {
    const place = root.querySelector(`[data-tile="${CSS.escape(item.name)}"] [data-value]`);
    if (place) place.textContent = number(item.value);
  }
  const step = root.querySelector("[data-now=step]");
  if (step) step.textContent = stepText(facts.now);
  tick(root, facts);
}

/** @param {HTMLElement} root @param {any} facts */
function tick(root, facts) {
  const updated = root.querySelector("[data-now=updated]");
  if (updated) updated.textContent = ago(facts.now.updated);
}
