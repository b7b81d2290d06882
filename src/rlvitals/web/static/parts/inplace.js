/** Turns a cell into an input field for editing. Enter or leaving the field saves the text; Escape discards it. */

import {announce, el, fill} from "../dom.js";

/**
 * @param {HTMLElement} cell
 * @param {string} label the name of the value
 * @param {string} value
 * @param {(value: string) => Promise<unknown>} keep
 * @param {() => void} done draws the cell again
 */
export function editIn(cell, label, value, keep, done) {
  let isOver = false;
  const finish = async (/** @type {boolean} */ isKept) => {
    if (isOver) return;
    isOver = true;
    const text = field.value;
    fill(cell);
    done();
    if (!isKept || text === value) return;
    await keep(text).then(
      () => announce(`${label} saved`),
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
  announce(sentence);
}
