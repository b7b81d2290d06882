/** Charts in a scrolling page. Each is drawn when it comes into view, for its width at that time. */

import {Chart} from "./charts.js";
import {el} from "./dom.js";
import {howMany} from "./lines.js";

/** @typedef {import("./charts.js").Picture} Picture */

export class Figures {
  /** @param {HTMLElement} scroller */
  constructor(scroller) {
    /** @type {Chart[]} */
    this.charts = [];
    /** @type {WeakMap<Element, (body: HTMLElement) => void>} */
    this.waiting = new WeakMap();
    this.watcher = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (!entry.isIntersecting) continue;
          this.watcher.unobserve(entry.target);
          this.waiting.get(entry.target)?.(/** @type {HTMLElement} */ (entry.target));
        }
      },
      {root: scroller, rootMargin: "200px"},
    );
  }

  /**
   * A figure. `given` may be a function, which is called when the figure comes into view.
   * @param {Node | string} title
   * @param {Picture | (() => Promise<Picture | string>)} given a text instead of a picture is shown as the reason
   * @param {{height?: number, legend?: Node | null}} [how]
   * @returns {HTMLElement}
   */
  add(title, given, {height = 180, legend = null} = {}) {
    const readout = el("span", {class: "readout small"});
    const count = el("span", {class: "faint small"});
    const body = el("div", {class: "plot"});
    body.style.minHeight = `${height}px`;
    this.waiting.set(body, async () => {
      const picture =
        typeof given === "function" ? await given().catch((error) => String(error.message ?? error)) : given;
      if (!body.isConnected) return;
      if (typeof picture === "string") {
        body.append(el("p", {class: "faint empty"}, picture));
        return;
      }
      count.textContent = howMany(picture.lines);
      this.charts.push(
        new Chart(
          body,
          {
            ...picture,
            onHover: (text) => {
              readout.textContent = text;
            },
          },
          {width: Math.max(body.clientWidth, 120), height},
        ),
      );
    });
    this.watcher.observe(body);
    return el("figure", {class: "figure"}, el("figcaption", {}, el("strong", {}, title), readout, count), body, legend);
  }

  /** Removes every chart. */
  clear() {
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
  }

  stop() {
    this.watcher.disconnect();
    this.clear();
  }
}
