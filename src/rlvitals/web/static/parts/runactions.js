/** Actions on the marked runs: compare, overlay; with editing enabled also archive, delete, restore and edit cells. */

import {announce, el, fill} from "../dom.js";
import * as marks from "../marks.js";
import {counted} from "../numbers.js";
import {link} from "../pieces.js";
import {editIn} from "./inplace.js";

/** @import {RunMarks} from "../../contract.d.ts" */

const DONE = /** @type {Record<string, string>} */ ({Archive: "Archived", Delete: "Deleted", Restore: "Restored"});

/**
 * @param {HTMLElement} place
 * @param {HTMLElement} done shows the result, with an undo button
 * @param {string[]} runs
 * @param {() => void} clear
 * @param {string} by the setting by which runs are grouped, if any
 */
export function drawActions(place, done, runs, clear, by) {
  const [base, ...others] = runs;
  const {editable} = marks.now();
  const own = runs.map((run) => marks.now().runs[run] ?? {});
  const isGone = own.some((one) => one.archived || one.deleted);
  const overlaid = by && by !== "algorithm" ? (by === "seeds" ? "seed" : by) : null;
  const button = (/** @type {string} */ text, /** @type {RunMarks} */ change) =>
    el("button", {on: {click: () => changeAll(runs, change, text)}}, text);
  fill(
    place,
    el("strong", {}, `${counted(runs.length, "run")} marked`),
    others.length > 0 &&
      link({class: "button primary"}, {run: base, with: others}, "compare", `Compare ${runs.length} runs`),
    link({class: "button"}, {run: base, also: others, by: overlaid}, "metrics", "Overlay on Metrics"),
    editable && !isGone && button("Archive", {archived: true}),
    editable && !isGone && button("Delete", {deleted: true}),
    editable && isGone && button("Restore", {archived: false, deleted: false}),
    el("button", {class: "plain", on: {click: clear}}, "Clear"),
    editable &&
      !isGone &&
      el("span", {class: "faint small"}, "Deleted runs are hidden. Their files stay until you run 'rlvitals purge'."),
  );

  /** @param {string[]} changed @param {RunMarks} change @param {string} word */
  async function changeAll(changed, change, word) {
    /** @type {[string, RunMarks][]} */
    const before = changed.map((run) => [run, marks.now().runs[run] ?? {}]);
    for (const run of changed) await marks.mark(run, change);
    clear();
    const summary = `${DONE[word]} ${counted(changed.length, "run")}`;
    announce(summary);
    const undo = async () => {
      for (const [run, one] of before)
        await marks.mark(run, {archived: one.archived ?? false, deleted: one.deleted ?? false});
      fill(done);
    };
    fill(
      done,
      el("span", {}, `${summary}.`),
      el("button", {on: {click: undo}}, "Undo"),
    );
  }
}

/**
 * Changes a name, tags or a note in its cell.
 * @param {HTMLElement} cell
 * @param {string} run
 * @param {string} key
 * @param {() => void} draw
 */
export function change(cell, run, key, draw) {
  const own = marks.now().runs[run] ?? {};
  if (key === "tags") {
    const keep = (/** @type {string} */ text) =>
      marks.mark(run, {
        tags: text
          .split(",")
          .map((tag) => tag.trim())
          .filter(Boolean),
      });
    editIn(cell, `Tags of ${run}, separated by commas`, (own.tags ?? []).join(", "), keep, draw);
  } else if (key === "note") editIn(cell, `Note on ${run}`, own.note ?? "", (note) => marks.mark(run, {note}), draw);
  else editIn(cell, `Name of ${run}`, own.name ?? "", (name) => marks.mark(run, {name}), draw);
}
