/**
 * Logged images: a slider over the steps, and for every name the newest image up to the chosen step. They are requested
 * when the section is opened. A picture arrives as base64 and is always shown as a PNG, whatever it contains.
 */

import {ask} from "../api.js";
import {atMostEvery, el, fill} from "../dom.js";
import {counted, number} from "../numbers.js";
import * as state from "../state.js";

/** @import {Images, ImageSeries} from "../../contract.d.ts" */

const NEWEST = "last";
const LIVE_AGAIN = 3000;
const SLIDING = 60;
const KEPT = 64; // number of cached pictures per name

/**
 * @param {string} run
 * @param {AbortSignal} signal
 * @returns {{node: HTMLElement, update(): void, refresh(): void, stop(): void}}
 */
export function imageFold(run, signal) {
  const body = el("div", {class: "pictures"});
  const toggle = () => state.go({images: fold.open ? state.get("images") || NEWEST : null}, {replace: true});
  const fold = el("details", {class: "spread", open: state.get("images") !== "", on: {toggle}}, el("summary", {}, "Images"), body);
  /** @type {ImageSeries[]} */
  let series = [];
  /** @type {number[]} */
  let steps = [];
  let isRequested = false;
  const slider = el("input", {type: "range", min: "0", step: "1", "aria-label": "Step of the images"});
  const output = el("output", {class: "small"});
  /** @type {Map<string, ReturnType<typeof frame>>} */
  const frames = new Map();
  const moved = atMostEvery(SLIDING, () => {
    const isLast = Number(slider.value) === steps.length - 1;
    state.go({images: isLast ? NEWEST : steps[Number(slider.value)]}, {replace: true});
  });
  slider.addEventListener("input", () => moved.ask());
  const newer = atMostEvery(LIVE_AGAIN, () => void load());

  async function load() {
    isRequested = true;
    try {
      take(await ask("images", {run}, signal));
    } catch (error) {
      if (!signal.aborted) fill(body, el("p", {class: "problem"}, String(/** @type {Error} */ (error).message ?? error)));
    }
  }

  /** @param {Images} answer */
  function take({images}) {
    const isOther = images.map(({name}) => name).join("\n") !== series.map(({name}) => name).join("\n");
    series = images;
    steps = [...new Set(images.flatMap((one) => one.images.map(({step}) => step)))].sort((one, other) => one - other);
    slider.max = String(Math.max(steps.length - 1, 0));
    if (isOther || !frames.size) {
      frames.clear();
      for (const {name} of series) frames.set(name, frame(run, name, signal, () => series.find((one) => one.name === name)));
      fill(
        body,
        steps.length
          ? [el("label", {class: "controls"}, "step ", slider, output), el("div", {class: "figures"}, series.map(({name}) => frames.get(name)?.node))]
          : el("p", {class: "faint"}, "No image was recorded."),
      );
    }
    show();
  }

  function show() {
    if (!steps.length) return;
    const wanted = state.get("images");
    const at = wanted === NEWEST ? steps.length - 1 : Math.max(steps.filter((step) => step <= Number(wanted)).length - 1, 0);
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", `step ${number(steps[at])}`);
    output.textContent = ` ${number(steps[at])} · ${at + 1} of ${counted(steps.length, "step")}`;
    frames.forEach((one) => one.show(steps[at]));
  }

  const update = () => {
    fold.open = state.get("images") !== "";
    if (!fold.open) return;
    if (isRequested) show();
    else void load();
  };
  update();
  return {
    node: fold,
    update,
    refresh: () => {
      if (fold.open) newer.ask();
    },
    stop: () => [moved, newer].forEach((one) => one.stop()),
  };
}

/**
 * The element that shows the images of one name.
 * @param {string} run
 * @param {string} name
 * @param {AbortSignal} signal
 * @param {() => ImageSeries | undefined} series
 */
function frame(run, name, signal, series) {
  const picture = el("img", {alt: "", class: "picture"});
  const caption = el("span", {class: "faint small"});
  const node = el("figure", {class: "figure"}, el("figcaption", {}, el("strong", {}, name), caption), picture);
  /** @type {Map<number, string>} */
  const kept = new Map();
  let wanted = NaN;
  return {
    node,
    /** @param {number} step */
    show(step) {
      const found = series()?.images.filter((one) => one.step <= step).at(-1);
      picture.hidden = !found;
      caption.textContent = found
        ? [`step ${number(found.step)}`, `${found.width} × ${found.height}`, found.caption].filter(Boolean).join(" · ")
        : "no image up to this step";
      if (!found || found.step === wanted) return;
      wanted = found.step;
      const words = `${name} at step ${number(found.step)}${found.caption ? `: ${found.caption}` : ""}`;
      const draw = (/** @type {string} */ png) => {
        if (wanted !== found.step) return;
        picture.width = found.width;
        picture.height = found.height;
        picture.alt = words;
        picture.src = `data:image/png;base64,${png}`;
      };
      const known = kept.get(found.step);
      if (known) return draw(known);
      ask("image", {run, name, step: found.step}, signal).then(
        ({png}) => {
          kept.set(found.step, png);
          if (kept.size > KEPT) kept.delete(/** @type {number} */ (kept.keys().next().value));
          draw(png);
        },
        (error) => {
          if (!signal.aborted) caption.textContent = String(error.message ?? error);
        },
      );
    },
  };
}
