/**
 * The table of runs. Only the visible rows exist. All rows have the same height, so the visible ones are known without
 * measuring. Existing rows are updated in place, cell by cell, so that hundreds of running runs cost little.
 */

import {el, fill} from "../dom.js";
import {oncePerFrame} from "../frames.js";

/** @import {Children} from "../dom.js" */

/**
 * @typedef {Object} Cell
 * @property {string} sign Its content; the cell is drawn again when this changes.
 * @property {() => Children} draw
 * @property {string} [style]
 */
/** @typedef {{key: string, style: string, cells: Cell[]}} Row */

export const HEIGHT = 50;
const OVERSCAN = 6;

export class RunTable {
  /** @param {HTMLElement} scroller @param {HTMLElement} body a tbody */
  constructor(scroller, body) {
    this.scroller = scroller;
    this.body = body;
    /** @type {{key: string, make: () => Row}[]} */
    this.items = [];
    /** @type {Map<string, {node: HTMLTableRowElement, row: Row}>} */
    this.alive = new Map();
    this.above = el("tr", {"aria-hidden": "true", class: "spacer"}, el("td"));
    this.below = el("tr", {"aria-hidden": "true", class: "spacer"}, el("td"));
    fill(body, this.above, this.below);
    this.queue = oncePerFrame(() => this.show(false));
    scroller.addEventListener("scroll", this.queue, {passive: true});
    addEventListener("resize", this.queue);
  }

  /** @param {{key: string, make: () => Row}[]} items all rows */
  setItems(items) {
    this.items = items;
    this.show(true);
  }

  /** Removes all rows, so that they are drawn again. */
  clear() {
    for (const {node} of this.alive.values()) node.remove();
    this.alive.clear();
  }

  /** @param {boolean} isNews whether existing rows may have changed */
  show(isNews) {
    if (!this.body.isConnected) return;
    const top = this.scroller.getBoundingClientRect().top - this.body.getBoundingClientRect().top;
    const from = Math.max(0, Math.floor(top / HEIGHT) - OVERSCAN);
    const to = Math.min(this.items.length, Math.ceil((top + this.scroller.clientHeight) / HEIGHT) + OVERSCAN);
    const first = Math.min(from, Math.max(0, to));
    const wanted = new Set();
    /** @type {Element} */
    let before = this.above;
    for (let at = first; at < to; at += 1) {
      const {key, make} = this.items[at];
      wanted.add(key);
      let known = this.alive.get(key);
      if (!known) {
        known = made(make());
        this.alive.set(key, known);
      } else if (isNews) refresh(known, make());
      known.node.setAttribute("aria-rowindex", String(at + 2));
      if (before.nextElementSibling !== known.node) before.after(known.node);
      before = known.node;
    }
    for (const [key, {node}] of this.alive) {
      if (wanted.has(key)) continue;
      node.remove();
      this.alive.delete(key);
    }
    space(this.above, first);
    space(this.below, this.items.length - Math.max(to, first));
  }

  stop() {
    this.scroller.removeEventListener("scroll", this.queue);
    removeEventListener("resize", this.queue);
  }
}

/** @param {HTMLElement} spacer @param {number} rows */
function space(spacer, rows) {
  spacer.hidden = rows <= 0;
  spacer.style.height = `${Math.max(rows, 0) * HEIGHT}px`;
}

/** @param {Row} row */
function made(row) {
  const node = el(
    "tr",
    {class: row.style, data: {row: row.key}},
    row.cells.map((cell) => el("td", {class: cell.style}, cell.draw())),
  );
  return {node, row};
}

/** @param {{node: HTMLTableRowElement, row: Row}} known @param {Row} row */
function refresh(known, row) {
  if (known.node.className !== row.style) known.node.className = row.style;
  row.cells.forEach((cell, at) => {
    const place = known.node.cells[at];
    const isSame = cell.sign === known.row.cells[at]?.sign && place.hasChildNodes();
    if (isSame || place.querySelector("input:not([type=checkbox])")) return;
    place.className = cell.style ?? "";
    fill(place, cell.draw());
  });
  known.row = row;
}
