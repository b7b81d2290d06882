/** A cell that becomes a field when it is to be changed: Enter keeps what was typed, Escape does not. */

import {el, fill, say} from "../dom.js";

/**
 * @param {HTMLElement} cell
 * @param {string} label what is changed
 * @param {string} value
 * @param {(value: string) => Promise<unknown>} keep
 * @param {() => void} done the cell is to be drawn as before
 */
export function editIn(cell, label, value, keep, done) {
  let isOver = false;
  const finish = async (/** @type {boolean} */ isKept) => {
    if (isOver) return;
    isOver = true;
    const said = field.value;
    fill(cell);
    done();
    if (!isKept || said === value) return;
    await keep(said).then(
      () => say(`${label} kept`),
      (error) => alertIn(cell, String(error.message ?? error)),
    );
  };
  const field = el("input", {
    type: "text",
    class: "inplace",
    "aria-label": label,
    value,
    on: {
      keydown: (event) => {
        event.stopPropagation();
        if (event.key === "Enter") finish(true);
        if (event.key === "Escape") finish(false);
      },
      blur: () => finish(true),
    },
  });
  fill(cell, field);
  field.focus();
  field.select();
}

/** @param {HTMLElement} cell @param {string} sentence */
function alertIn(cell, sentence) {
  cell.append(el("div", {class: "small act"}, `✖ ${sentence}`));
  say(sentence);
}
