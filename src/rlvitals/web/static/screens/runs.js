/** The list of all runs: chosen columns, sorting, filter, groups, live updates; edits of marks if they are enabled. */

import {ask, repeat} from "../api.js";
import {setLive} from "../bar.js";
import {calm, el, fill} from "../dom.js";
import * as marks from "../marks.js";
import {counted} from "../numbers.js";
import {rowsOf, WORDS} from "../parts/runrows.js";
import {RunTable} from "../parts/runtable.js";
import {notice, wideTable} from "../pieces.js";
import {chosenColumns, columnOf, filterValue, needsRequest, newest, sorted} from "../runcolumns.js";
import * as state from "../state.js";

/** @import {Table} from "../../contract.d.ts" */
/** @import {Line} from "../runcolumns.js" */
/** @import {Filter} from "../runfilter.js" */

const RUNNING_MS = 2000;
const RESTING_MS = 10_000;
const PENDING_MS = 250;

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({root, signal}) {
  /** @type {Filter} */
  let filter = {names: [], fits: () => true};
  let complaint = "";
  /** @type {typeof import("../rungroups.js") | null} */
  let groups = null;
  /** @type {Set<string>} */
  const marked = new Set();
  /** @type {Set<string>} */
  const folded = new Set();

  const isHidden = () => state.get("hidden") === "1";
  const wanted = () => {
    const keys = [...chosenColumns(), ...filter.names, state.get("group"), state.get("sort")];
    return [...new Set(keys.filter((key) => key && needsRequest(key)))];
  };
  const question = () => ask("table", {column: wanted(), hidden: isHidden() ? 1 : null}, signal);
  const readAddress = async () => {
    const text = state.get("filter");
    complaint = "";
    filter = {names: [], fits: () => true};
    if (text) {
      const {filterOf} = await import("../runfilter.js");
      try {
        filter = filterOf(text);
      } catch (error) {
        complaint = error instanceof Error ? error.message : String(error);
      }
    }
    if (state.get("group")) groups = await import("../rungroups.js");
  };
  await Promise.all([readAddress(), marks.read(true)]);
  /** @type {Table} */
  let listing = await question();

  const field = el("input", {
    type: "search",
    class: "filter",
    placeholder: "words, or lr < 1e-5 and reward.last > 0.5",
    "aria-label": "Filter runs",
    value: state.get("filter"),
    on: {input: calm(() => state.go({filter: field.value}, {replace: true}), 200)},
  });
  const problem = el("p", {class: "act small", role: "alert"});
  const group = el("select", {"aria-label": "Group by", on: {change: () => chooseGroup()}});
  const chooseGroup = () => {
    if (group.value === "…") pickers().then((made) => made.pickGroup(listing, (key) => state.go({group: key})));
    else state.go({group: group.value || null});
  };
  const pickers = () => import("../parts/columnpicker.js");
  const columns = el("button", {on: {click: () => pickers().then((made) => made.pickColumns(listing))}}, "Columns");
  const hidden = el(
    "button",
    {class: "chip", on: {click: () => state.go({hidden: isHidden() ? null : 1})}},
    "archived and deleted",
  );
  const count = el("p", {class: "faint"});
  const actions = el("div", {class: "controls actions"});
  const done = el("div", {class: "controls actions"});
  const header = el("thead");
  const body = el("tbody");
  const table = new RunTable(root, body);
  let shownColumns = "";

  const mark = (/** @type {string[]} */ runs, /** @type {boolean} */ isOn) => {
    for (const run of runs) isOn ? marked.add(run) : marked.delete(run);
    draw();
  };
  const box = (/** @type {string[]} */ runs, /** @type {string} */ label) =>
    el("input", {
      type: "checkbox",
      checked: runs.length > 0 && runs.every((run) => marked.has(run)),
      "aria-label": label,
      on: {change: (event) => mark(runs, event.target.checked)},
    });

  /** @returns {Line[]} */
  const lines = () => {
    const all = listing.runs.map((run) => ({
      run,
      cells: Object.fromEntries(listing.columns.map((key, at) => [key, run.cells[at]])),
    }));
    const found = all.filter((line) => {
      const own = marks.now().runs[line.run.run] ?? {};
      if (isHidden() !== Boolean(own.archived || own.deleted)) return false;
      const {run} = line;
      const words = [
        run.run,
        own.name,
        run.name,
        run.status,
        run.algorithm,
        run.framework,
        run.verdict,
        own.note,
        ...(own.tags ?? []),
      ];
      return filter.fits((name) => filterValue(line, name), words.join(" ").toLowerCase());
    });
    const key = state.get("sort");
    return key ? sorted(found, key, state.get("down") === "1") : found.sort(newest);
  };

  const {rowOf, groupRow} = rowsOf({
    isMarked: (run) => marked.has(run),
    box,
    draw: () => draw(),
    fold: (name) => {
      folded.has(name) ? folded.delete(name) : folded.add(name);
      draw();
    },
    cellOf: (one, key) => groups?.groupCell(one, key) ?? "",
  });

  function draw() {
    if (!wanted().every((key) => listing.columns.includes(key))) return; // new columns are being fetched
    if (state.get("group") && !groups) return; // loading
    const keys = chosenColumns();
    const found = lines();
    const now = keys.join("\n") + state.get("sort") + state.get("down");
    if (now !== shownColumns) {
      shownColumns = now;
      table.clear();
      drawHead(keys, () => found.map(({run}) => run.run), found);
    }
    const by = state.get("group");
    const items = [];
    for (const one of by && groups ? groups.grouped(found, by) : [{name: "", lines: found}]) {
      const isOpen = !folded.has(one.name);
      if (by) items.push({key: `group ${one.name}`, make: () => groupRow(one, keys, isOpen)});
      if (isOpen) for (const line of one.lines) items.push({key: line.run.run, make: () => rowOf(line, keys)});
    }
    table.setItems(items);
    body.parentElement?.setAttribute("aria-rowcount", String(items.length + 1));
    problem.textContent = complaint;
    const total = listing.runs.length;
    count.textContent = found.length === total ? counted(total, "run") : `${found.length || "none"} of ${counted(total, "run")}`;
    if (listing.pending) count.textContent += `, ${listing.pending} still being read`;
    hidden.setAttribute("aria-pressed", String(isHidden()));
    drawGroups();
    if (marked.size)
      import("../parts/runactions.js").then((made) => made.drawActions(actions, done, [...marked], clear, by));
    else fill(actions);
  }
  const clear = () => mark([...marked], false);

  function drawGroups() {
    if (document.activeElement === group) return;
    const by = state.get("group");
    const usual = [
      ["", "no groups"],
      ["seeds", "groups: same but the seed"],
      ["sweep", "groups: sweep"],
      ["algorithm", "groups: algorithm"],
    ];
    if (by && !usual.some(([value]) => value === by)) usual.push([by, `groups: ${by}`]);
    usual.push(["…", "group by a setting…"]);
    fill(group, ...usual.map(([value, text]) => el("option", {value, selected: value === by}, text)));
  }

  /** @param {string[]} keys @param {() => string[]} all @param {import("../runcolumns.js").Line[]} found */
  function drawHead(keys, all, found) {
    const isNumber = (/** @type {string} */ key) =>
      key !== "run" && !WORDS.includes(key) && !found.some((line) => typeof columnOf(key).value(line) === "string");
    const by = state.get("sort");
    const isDown = state.get("down") === "1";
    const sort = (/** @type {string} */ key) => {
      const next = by !== key ? {sort: key, down: null} : isDown ? {sort: null, down: null} : {sort: key, down: 1};
      state.go(next, {replace: true});
    };
    const cell = (/** @type {string} */ key) =>
      el(
        "th",
        {scope: "col", class: isNumber(key) ? "num" : "", "aria-sort": by === key && (isDown ? "descending" : "ascending")},
        el(
          "button",
          {class: "plain sort", on: {click: () => sort(key)}},
          columnOf(key).title,
          by === key && (isDown ? " ▼" : " ▲"),
        ),
      );
    const every = el("input", {
      type: "checkbox",
      "aria-label": "Mark every listed run",
      on: {change: (event) => mark(all(), event.target.checked)},
    });
    fill(header, el("tr", {}, el("th", {scope: "col"}, every), ["run", ...keys].map(cell)));
  }

  const live = () => {
    const running = listing.runs.filter((run) => run.status === "running").length;
    setLive(
      running ? "running" : "finished",
      running ? `live: ${counted(running, "run")} running` : "live: no run is running",
    );
  };
  const polling = repeat(question, (answer) => {
    if (signal.aborted) return RESTING_MS;
    if (!answer) {
      setLive("lost");
      return RUNNING_MS;
    }
    listing = answer;
    live();
    draw();
    return listing.pending ? PENDING_MS : listing.runs.some((run) => run.status === "running") ? RUNNING_MS : RESTING_MS;
  });
  const stopMarks = marks.onMarks(() => {
    draw();
    polling.now();
  });
  const later = setTimeout(polling.now, listing.pending ? PENDING_MS : RUNNING_MS);

  fill(
    root,
    el("div", {class: "head"}, el("h1", {}, `Runs in ${listing.folder}`), count),
    listing.runs.length || isHidden()
      ? [
          el("div", {class: "controls"}, field, group, columns, hidden),
          problem,
          actions,
          done,
          wideTable("Runs", "runs", header, body),
        ]
      : notice(
          "There are no runs in this folder.",
          'Record one with rlvitals.start("out/my-run"), or import a log: rlvitals import LOG --to out/my-run',
        ),
  );
  live();
  if (listing.note) root.append(el("p", {class: "faint"}, listing.note));
  draw();
  return {
    update: async () => {
      await readAddress();
      if (document.activeElement !== field) field.value = state.get("filter");
      draw();
      polling.now();
    },
    stop: () => {
      clearTimeout(later);
      polling.stop();
      stopMarks();
      table.stop();
    },
    keys: [
      {key: "/", label: "filter", does: () => field.focus()},
      {key: "c", label: "columns", does: () => columns.click()},
    ],
  };
}
