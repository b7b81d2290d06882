/**
 * A grid of thousands of panels, of which only the visible ones exist. Rows have fixed heights, so the visible panels
 * are known without measuring. Panels are created empty and drawn a few per frame, so that scrolling stays smooth.
 */

import {oncePerFrame} from "./frames.js";

/** @typedef {{node: HTMLElement, remove(): void}} Panel */
/**
 * @template T
 * @typedef {{heading: string | null, items: T[]}} Section
 */
/**
 * @template T
 * @typedef {Object} Row
 * @property {number} top
 * @property {number} height
 * @property {string | null} heading
 * @property {T[]} items
 */

/**
 * @template T
 * @typedef {Object} How
 * @property {number} minWidth
 * @property {number} height
 * @property {(item: T) => Panel} make
 * @property {(text: string) => HTMLElement} heading
 * @property {(items: T[]) => void} seen Receives the visible items.
 */

const OVERSCAN = 300;
const GAP = 12;
const HEADING = 40;

/** @template T */
export class VirtualGrid {
  /**
   * @param {HTMLElement} scroller the scrolling element
   * @param {HTMLElement} root the element that contains the panels
   * @param {How<T>} how
   */
  constructor(scroller, root, how) {
    this.scroller = scroller;
    this.root = root;
    this.how = how;
    /** @type {Section<T>[]} */
    this.sections = [];
    /** @type {Row<T>[]} */
    this.rows = [];
    /** @type {Map<T | string, Panel>} */
    this.alive = new Map();
    this.columns = 0;
    this.width = 0;
    this.queue = oncePerFrame(() => this.show());
    scroller.addEventListener("scroll", this.queue, {passive: true});
    this.watcher = new ResizeObserver(() => this.arrange());
    this.watcher.observe(root);
  }

  /** @param {Section<T>[]} sections */
  setSections(sections) {
    this.sections = sections;
    this.clear();
    this.columns = 0;
    this.arrange();
  }

  /** Lays out the rows for the current width. */
  arrange() {
    const width = this.root.clientWidth;
    if (!width) return;
    const columns = Math.max(1, Math.floor((width + GAP) / (this.how.minWidth + GAP)));
    if (columns === this.columns && width === this.width) return;
    if (width !== this.width) this.clear();
    this.columns = columns;
    this.width = width;
    this.rows = [];
    let top = 0;
    for (const section of this.sections) {
      if (section.heading !== null) {
        this.rows.push({top, height: HEADING, heading: section.heading, items: []});
        top += HEADING;
      }
      for (let at = 0; at < section.items.length; at += columns) {
        this.rows.push({top, height: this.how.height, heading: null, items: section.items.slice(at, at + columns)});
        top += this.how.height + GAP;
      }
    }
    this.root.style.height = `${top}px`;
    this.show();
  }

  /** @returns {number} the width of one panel */
  get panelWidth() {
    return Math.floor((this.width - GAP * (this.columns - 1)) / Math.max(this.columns, 1));
  }

  /** Creates panels that came into view and removes those that left it. */
  show() {
    if (!this.root.isConnected || !this.columns) return;
    const offset = this.root.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top;
    const from = -offset - OVERSCAN;
    const to = -offset + this.scroller.clientHeight + OVERSCAN;
    /** @type {Set<T | string>} */
    const wanted = new Set();
    /** @type {T[]} */
    const seen = [];
    for (let at = this.firstRow(from); at < this.rows.length && this.rows[at].top < to; at += 1) {
      const row = this.rows[at];
      if (row.heading !== null) {
        const key = `heading ${row.heading}`;
        wanted.add(key);
        this.place(key, row, 0, () => ({node: this.how.heading(/** @type {string} */ (row.heading)), remove() {}}));
      }
      row.items.forEach((item, column) => {
        wanted.add(item);
        seen.push(item);
        this.place(item, row, column, () => this.how.make(item));
      });
    }
    for (const [key, panel] of this.alive) {
      if (wanted.has(key)) continue;
      panel.remove();
      panel.node.remove();
      this.alive.delete(key);
    }
    this.how.seen(seen);
  }

  /**
   * @param {T | string} key
   * @param {Row<T>} row
   * @param {number} column
   * @param {() => Panel} make
   */
  place(key, row, column, make) {
    if (this.alive.has(key)) return;
    const panel = make();
    const {style} = panel.node;
    style.position = "absolute";
    style.top = `${row.top}px`;
    style.left = `${column * (this.panelWidth + GAP)}px`;
    style.width = row.heading === null ? `${this.panelWidth}px` : "100%";
    style.height = `${row.height}px`;
    this.alive.set(key, panel);
    this.root.append(panel.node);
  }

  /** @param {number} y @returns {number} the first row that ends below y */
  firstRow(y) {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].top + this.rows[middle].height < y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** @param {T} item scrolls its row into view */
  reveal(item) {
    const row = this.rows.find((candidate) => candidate.items.includes(item));
    if (!row) return;
    const offset = this.root.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top;
    this.scroller.scrollTop += offset + row.top - 60;
    this.show();
  }

  clear() {
    for (const panel of this.alive.values()) {
      panel.remove();
      panel.node.remove();
    }
    this.alive.clear();
  }

  stop() {
    this.scroller.removeEventListener("scroll", this.queue);
    this.watcher.disconnect();
    this.clear();
  }
}
