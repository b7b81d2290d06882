/** Chooses the columns of the list of runs: facts, settings, and a metric's last or best value or that at a step. */

import {ask} from "../api.js";
import {calm, el, fill} from "../dom.js";
import {dialog} from "../keys.js";
import {chooseColumns, chosenColumns, columnOf, MOST, OWN} from "../runcolumns.js";

/** @import {Table} from "../../contract.d.ts" */

const SHOWN = 150;

/** @param {Table} table */
async function choicesOf(table) {
  if (table.choices) return table.choices;
  const {choices} = await ask("table", {choices: 1, hidden: 1});
  return choices ?? {metrics: [], settings: []};
}

/** @param {Table} table */
export async function pickColumns(table) {
  const choices = await choicesOf(table);
  const chosen = el("ol", {class: "chosen"});
  const list = el("div", {class: "choices"});
  const step = el("input", {
    type: "number",
    min: 0,
    value: 100,
    class: "step",
    "aria-label": "Step for values at a step",
  });
  const field = searchField("search metrics and settings", () => drawList());
  const has = (/** @type {string} */ key) => chosenColumns().includes(key);
  const toggle = (/** @type {string} */ key) => {
    const now = chosenColumns();
    chooseColumns(now.includes(key) ? now.filter((other) => other !== key) : [...now, key].slice(0, MOST));
    draw();
  };
  const chip = (/** @type {string} */ key, /** @type {string} */ text) =>
    el("button", {class: "chip", "aria-pressed": String(has(key)), on: {click: () => toggle(key)}}, text);
  const move = (/** @type {string} */ key, /** @type {number} */ by) => {
    const now = chosenColumns();
    const at = now.indexOf(key);
    now.splice(at, 1);
    now.splice(Math.max(at + by, 0), 0, key);
    chooseColumns(now);
    drawChosen();
  };
  const drawChosen = () =>
    fill(
      chosen,
      ...chosenColumns().map((key, at) =>
        el(
          "li",
          {},
          el("span", {}, columnOf(key).title),
          el(
            "button",
            {class: "plain", disabled: at === 0, "aria-label": `${key} to the left`, on: {click: () => move(key, -1)}},
            "←",
          ),
          el("button", {class: "plain", "aria-label": `${key} to the right`, on: {click: () => move(key, 1)}}, "→"),
          el("button", {class: "plain", "aria-label": `Remove ${key}`, on: {click: () => toggle(key)}}, "✕"),
        ),
      ),
    );
  const drawList = () => {
    const fits = matching(field.value);
    const at = Math.max(0, Math.round(Number(step.value) || 0));
    fill(
      list,
      el("h3", {}, "Properties of the run"),
      el(
        "p",
        {},
        Object.entries(OWN)
          .filter(([key, {title}]) => fits(`${key} ${title}`))
          .map(([key, {title}]) => chip(key, title)),
      ),
      el("h3", {}, "Metrics"),
      rows(choices.metrics.filter(fits), (name) => [
        chip(`${name}.last`, "last"),
        chip(`${name}.best`, "best"),
        chip(`${name}@${at}`, `at step ${at}`),
      ]),
      el("h3", {}, "Settings"),
      rows(choices.settings.filter(fits), (name) => [chip(name, "show")]),
    );
  };
  const draw = () => {
    drawChosen();
    drawList();
  };
  step.addEventListener("input", calm(drawList, 150));
  dialog(
    "Columns",
    el(
      "div",
      {class: "picker"},
      chosen,
      el("div", {class: "controls"}, field, el("label", {}, "at step ", step)),
      list,
    ),
  );
  draw();
  field.focus();
}

/** @param {Table} table @param {(key: string) => void} take */
export async function pickGroup(table, take) {
  const choices = await choicesOf(table);
  const list = el("div", {class: "choices"});
  const field = searchField("search settings", () => draw());
  const draw = () => {
    const choose = (/** @type {string} */ name) => {
      made.close();
      take(name);
    };
    fill(
      list,
      rows(choices.settings.filter(matching(field.value)), (name) => [
        el("button", {on: {click: () => choose(name)}}, "group"),
      ]),
    );
  };
  const made = dialog("Group by a setting", el("div", {class: "picker"}, el("div", {class: "controls"}, field), list));
  draw();
  field.focus();
}

/** @param {string} words @param {() => void} typed */
function searchField(words, typed) {
  return el("input", {type: "search", placeholder: words, "aria-label": words, on: {input: calm(typed, 100)}});
}

/** @param {string} text @returns {(name: string) => boolean} */
function matching(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (name) => words.every((word) => name.toLowerCase().includes(word));
}

/** @param {string[]} names @param {(name: string) => HTMLElement[]} chips */
function rows(names, chips) {
  if (!names.length) return el("p", {class: "faint"}, "No match.");
  return el(
    "ul",
    {class: "plainlist"},
    names.slice(0, SHOWN).map((name) => el("li", {}, el("span", {class: "mono"}, name), chips(name))),
    names.length > SHOWN && el("li", {class: "faint"}, `and ${names.length - SHOWN} more: search for one`),
  );
}
