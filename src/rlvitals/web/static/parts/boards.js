/**
 * Boards: pinned panels in their order, with the settings of each. The address contains the current board. With
 * `rlvitals serve --edit`, a board can be saved under a name for all users, in a file of the folder.
 */

import {el, fill} from "../dom.js";
import {dialog} from "../keys.js";
import {keepBoard, now, onMarks, read} from "../marks.js";
import {counted} from "../numbers.js";
import * as state from "../state.js";
import {pins} from "./panelsettings.js";

const HELD = ["pin", "panel", "x", "log", "smooth"]; // the parameters of the address that make a board

/** @returns {{node: HTMLElement, update(): void, stop(): void}} */
export function boardBar() {
  const node = el("div", {class: "controls boards", role: "group", "aria-label": "Boards"});
  const update = () => {
    const count = pins().length;
    const isAlone = state.get("show") === "pinned";
    const {boards, editable} = now();
    node.hidden = !count && !Object.keys(boards).length;
    fill(
      node,
      Object.keys(boards).length > 0 && choice(Object.keys(boards)),
      count > 0 && [
        el(
          "button",
          {"aria-pressed": String(isAlone), on: {click: () => state.go({show: isAlone ? null : "pinned"})}},
          isAlone ? "All panels" : `Only ${counted(count, "pinned panel")}`,
        ),
        editable && el("button", {on: {click: keep}}, "Save as a board…"),
        el("button", {on: {click: () => state.go({pin: null, show: null, board: null})}}, "Unpin all"),
      ],
    );
  };
  update();
  const stop = onMarks(update);
  read().catch(() => {});
  return {node, update, stop};
}

/** @param {string[]} names */
function choice(names) {
  const select = el(
    "select",
    {"aria-label": "Board", on: {change: () => open(select.value)}},
    el("option", {value: ""}, "no board"),
    names.map((name) => el("option", {value: name}, name)),
  );
  select.value = state.get("board");
  return el("label", {}, "board ", select);
}

/** @param {string} name the board to show; empty for none */
function open(name) {
  const kept = /** @type {Record<string, unknown>} */ (now().boards[name] ?? {});
  const changes = HELD.map((key) => [key, texts(kept[key])]);
  state.go({...Object.fromEntries(changes), board: name || null, show: name ? "pinned" : null});
}

/** @param {unknown} value @returns {string[]} the texts of a list; other values are dropped */
function texts(value) {
  return (Array.isArray(value) ? value : []).filter((one) => typeof one === "string");
}

/** Asks for a name and saves the pinned panels. */
function keep() {
  const field = el("input", {type: "text", maxlength: 200, "aria-label": "Name of the board", value: state.get("board")});
  const problem = el("p", {class: "problem", role: "alert"});
  const act = async (/** @type {string} */ name, /** @type {Record<string, unknown> | null} */ content) => {
    try {
      await keepBoard(name, content);
      opened.close();
      state.go({board: content ? name : null}, {replace: true});
    } catch (error) {
      problem.textContent = error instanceof Error ? error.message : String(error);
    }
  };
  const content = () => Object.fromEntries(HELD.map((key) => [key, state.getAll(key)]).filter(([, value]) => value.length));
  const known = state.get("board");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    act(field.value.trim(), content());
  };
  const opened = dialog(
    "Save as a board",
    el("form", {on: {submit}}, field, " ", el("button", {type: "submit"}, "Save")),
    el("p", {class: "faint small"}, "Saves the pinned panels, their settings, the x-axis, the scale and the smoothing. Everyone who opens this folder sees the board."),
    known && now().boards[known] !== undefined
      ? el("button", {on: {click: () => act(known, null)}}, `Delete the board ${known}`)
      : el("span"),
    problem,
  );
  field.focus();
}
