/** The rows of the list of runs: rows of runs and rows of groups. */

import {el} from "../dom.js";
import * as marks from "../marks.js";
import {counted} from "../numbers.js";
import {columnOf, drawn} from "../runcolumns.js";

/** @import {Children} from "../dom.js" */
/** @import {Line} from "../runcolumns.js" */
/** @import {Group} from "../rungroups.js" */
/** @import {Row} from "./runtable.js" */

/** Columns that are always shown as text. */
export const WORDS = ["verdict", "tags", "note", "algorithm", "status", "name", "host", "framework"];

/**
 * @typedef {Object} How
 * @property {(run: string) => boolean} isMarked
 * @property {(runs: string[], label: string) => HTMLElement} box A check box that marks runs.
 * @property {() => void} draw
 * @property {(group: string) => void} fold
 * @property {(group: Group, key: string) => Children} cellOf
 */

/** @param {How} how */
export function rowsOf(how) {
  /** @param {Line} line @param {string[]} keys @returns {Row} */
  const rowOf = (line, keys) => {
    const {run} = line.run;
    const own = marks.now().runs[run] ?? {};
    return {
      key: run,
      style: own.deleted ? "entry deleted" : "entry",
      cells: [
        {sign: String(how.isMarked(run)), draw: () => how.box([run], `Mark ${run}`)},
        ...["run", ...keys].map((key) => {
          const column = columnOf(key);
          const value = column.value(line);
          const isNumber = key !== "run" && !WORDS.includes(key) && (value === null || typeof value === "number");
          const sign =
            key === "run" ? [own.name, line.run.reason, line.run.verdict] : [value, line.run.status_note, line.run.total_steps];
          const isChanged = marks.now().editable && ["run", "tags", "note"].includes(key);
          return {
            sign: JSON.stringify([sign, key === "updated" && Math.round(Date.now() / 5000)]),
            style: `${isNumber ? "num " : ""}col-${key.replace(/\W/g, "-")}`,
            draw: () => [drawn(column, line), isChanged ? pencil(run, key) : ""].flat(),
          };
        }),
      ],
    };
  };
  /** @param {string} run @param {string} key */
  const pencil = (run, key) =>
    el(
      "button",
      {
        class: "plain pencil",
        title: `Change the ${key === "run" ? "name" : key}`,
        "aria-label": `Change the ${key === "run" ? "name" : key} of ${run}`,
        on: {
          click: (event) =>
            import("./runactions.js").then((made) => made.change(event.target.closest("td"), run, key, how.draw)),
        },
      },
      "✎",
    );

  /** @param {Group} one @param {string[]} keys @param {boolean} isOpen @returns {Row} */
  const groupRow = (one, keys, isOpen) => {
    const runs = one.lines.map(({run}) => run.run);
    const sign = JSON.stringify([
      isOpen,
      one.lines.map((line) => [line.run.verdict, ...keys.map((key) => columnOf(key).value(line))]),
    ]);
    return {
      key: `group ${one.name}`,
      style: "bundle",
      cells: [
        {
          sign: runs.map((run) => Number(how.isMarked(run))).join(""),
          draw: () => how.box(runs, `Mark the group ${one.name}`),
        },
        {
          sign,
          draw: () => [
            el(
              "button",
              {class: "plain fold", "aria-expanded": String(isOpen), on: {click: () => how.fold(one.name)}},
              isOpen ? "▾ " : "▸ ",
              el("strong", {}, one.name || "no value"),
            ),
            el("span", {class: "faint small"}, ` ${counted(one.lines.length, "run")}`),
          ],
        },
        ...keys.map((key) => ({sign, style: WORDS.includes(key) ? "" : "num", draw: () => how.cellOf(one, key)})),
      ],
    };
  };
  return {rowOf, groupRow};
}
