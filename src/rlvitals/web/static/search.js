/** Ctrl-K: opens a metric, a run, a screen, a finding's rule, or a search in the rollouts. */

import {ask} from "./api.js";
import {el, fill} from "./dom.js";
import {dialog} from "./keys.js";
import {SCREENS} from "./screens.js";
import * as state from "./state.js";

/** @import {Changes} from "../page.d.ts" */
/** @typedef {{kind: string, text: string, more: string, changes: Changes, screen: string}} Choice */

const MOST = 40;

/** @returns {Promise<Choice[]>} all possible targets */
async function choices() {
  const run = state.get("run");
  const none = () => null;
  const [runs, metrics, findings] = await Promise.all([
    ask("runs").catch(none),
    run ? ask("metrics", {run}).catch(none) : null,
    run ? ask("findings", {run}).catch(none) : null,
  ]);
  const rules = new Map(findings?.findings.map((finding) => [finding.rule, finding]));
  return [
    ...(run ? SCREENS : []).map(({name}) => ({kind: "screen", text: name, more: "", changes: {}, screen: name})),
    ...(metrics?.metrics ?? []).map(({name, title}) => ({
      kind: "metric",
      text: name,
      more: title === name ? "" : title,
      changes: {one: name, filter: null, group: null},
      screen: "metrics",
    })),
    ...[...rules].map(([rule, {title}]) => ({kind: "rule", text: rule, more: title, changes: {rule}, screen: "health"})),
    ...(runs?.runs ?? []).map(({run, name}) => ({kind: "run", text: run, more: name, changes: {run}, screen: "vitals"})),
  ];
}

/**
 * The choices that contain all words, the earliest match first.
 * @param {Choice[]} all
 * @param {string} text
 * @returns {Choice[]}
 */
function matching(all, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const place = (/** @type {Choice} */ choice) => {
    const content = `${choice.text} ${choice.more} ${choice.kind}`.toLowerCase();
    return words.every((word) => content.includes(word)) ? content.indexOf(words[0] ?? "") : -1;
  };
  const found = all.map((choice) => ({choice, at: place(choice)})).filter(({at}) => at >= 0);
  return found
    .sort((one, other) => one.at - other.at)
    .slice(0, MOST)
    .map(({choice}) => choice);
}

export async function search() {
  if (document.querySelector("dialog[open]")) return;
  const field = el("input", {
    type: "search",
    placeholder: "metric, run, screen, rule, or a text in the rollouts",
    "aria-label": "Search",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "found",
    autocomplete: "off",
  });
  const list = el("ul", {id: "found", role: "listbox", "aria-label": "Found"});
  const box = dialog("Search", field, list);
  box.classList.add("search");
  /** @type {Choice[]} */
  let shown = [];
  /** @type {Choice[]} */
  let all = [];
  let at = 0;
  const take = (/** @type {Choice} */ choice) => {
    box.close();
    state.go(choice.changes, {screen: choice.screen});
  };
  const draw = () => {
    fill(
      list,
      ...shown.map((choice, place) =>
        el(
          "li",
          {
            role: "option",
            id: `found-${place}`,
            "aria-selected": String(place === at),
            on: {click: () => take(choice)},
          },
          el("span", {class: "kind"}, choice.kind),
          el("span", {class: "mono"}, choice.text),
          " ",
          el("span", {class: "faint"}, choice.more),
        ),
      ),
    );
    field.setAttribute("aria-activedescendant", shown.length ? `found-${at}` : "");
    list.children[at]?.scrollIntoView({block: "nearest"});
  };
  const look = () => {
    const text = field.value.trim();
    shown = matching(all, text);
    if (text && state.get("run")) {
      shown.push({
        kind: "rollouts",
        text,
        more: "search in all rollouts",
        changes: {search: text, step: null},
        screen: "rollouts",
      });
    }
    at = 0;
    draw();
  };
  field.addEventListener("input", look);
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), shown.length - 1);
      draw();
    } else if (event.key === "Enter" && shown[at]) {
      event.preventDefault();
      take(shown[at]);
    }
  });
  field.focus();
  all = await choices();
  look();
}
