/** The cost of continuing a run after it went wrong, the checkpoint to revert to, and the nearest healthy run. */

import {el} from "../dom.js";
import {number} from "../numbers.js";
import {link, section} from "../pieces.js";
import {differences} from "./comparison.js";

/** @import {Hindsight} from "../../contract.d.ts" */

/** @param {Hindsight} facts */
export function hindsight({told, nearest}) {
  const sentences = el(
    "ul",
    {class: "hindsight"},
    told.map((sentence) => el("li", {}, sentence)),
  );
  if (nearest === null) return section("If it had been stopped", sentences);
  return section(
    "If it had been stopped",
    sentences,
    Object.keys(nearest.differences).length > 0 &&
      el(
        "details",
        {},
        el("summary", {}, "Settings that differ"),
        differences(nearest.differences, ["this run", nearest.name]),
        nearest.left_out > 0 && el("p", {class: "faint"}, `and ${number(nearest.left_out)} more settings`),
      ),
    nearest.run !== "" && el("p", {}, link({class: "jump"}, {with: nearest.run}, "compare", `Compare with ${nearest.name}`)),
  );
}
