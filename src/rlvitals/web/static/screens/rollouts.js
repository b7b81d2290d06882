/** Rollouts: groups on the left, the table of turns in the middle, the transcript on the right. */

import {ask, Refused} from "../api.js";
import {announce, atMostEvery, calm, el, fill} from "../dom.js";
import {heatTable} from "../parts/heat.js";
import {counted, number} from "../numbers.js";
import {citedList, groupList, hitList, kept} from "../parts/rolloutlists.js";
import {citations} from "../parts/spots.js";
import {notice} from "../pieces.js";
import * as state from "../state.js";
import {transcriptIn} from "../parts/transcript.js";

/** @import {GroupFacts, GroupPage, HitFacts, Hits, ListedGroup, RolloutSteps, WholeGroup} from "../../contract.d.ts" */

/**
 * @typedef {Object} Shown
 * @property {ListedGroup[]} groups The listed groups; empty if hits are listed.
 * @property {HitFacts[] | null} hits
 * @property {boolean} more Whether the list has a next page.
 * @property {number} size Number of groups per page.
 * @property {number} page
 * @property {number} total Number of groups of the step.
 * @property {GroupFacts | null} group The chosen group.
 */

const LIVE_AGAIN = 3000;

/** @param {import("../../page.d.ts").Place} place @returns {Promise<import("../../page.d.ts").Screen>} */
export async function mount({run, root, signal, again}) {
  const askSteps = async () => /** @type {RolloutSteps} */ (await ask("rollouts", {run}, signal));
  /** @type {RolloutSteps} */
  let overview;
  try {
    overview = await askSteps();
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 404) throw error;
    fill(root, notice("This run has no rollouts.", error.message));
    const later = atMostEvery(LIVE_AGAIN, again);
    return {
      live: ({kind}) => {
        if (kind === "rows") later.ask();
      },
      stop: later.stop,
    };
  }
  let steps = overview.steps.map((row) => row.step);
  const cited = citations(run, signal, LIVE_AGAIN, () => draw(step()));
  const newer = atMostEvery(LIVE_AGAIN, () => {
    askSteps()
      .then((newest) => {
        overview = newest;
        steps = newest.steps.map((row) => row.step);
        if (state.get("step")) drawBar(step());
        else look();
      })
      .catch(() => {});
  });
  const list = el("div", {class: "groups"});
  const middle = el("div", {class: "turns"});
  const right = el("div", {class: "transcript", tabindex: 0, role: "region", "aria-label": "Transcript"});
  const read = transcriptIn(right, run, signal);
  const bar = el("div", {class: "controls"});
  /** @type {Shown} */
  let shown = {groups: [], hits: null, more: false, size: 0, page: 0, total: 0, group: null};
  let requests = 0;

  /** The first hit, which is shown until another is chosen. @type {HitFacts | null} */
  let first = null;
  const step = () => {
    const wanted = state.getNumber("step") ?? first?.step ?? null;
    if (wanted === null) return steps[steps.length - 1];
    return steps.includes(wanted)
      ? wanted
      : steps.reduce((best, known) => (Math.abs(known - wanted) < Math.abs(best - wanted) ? known : best));
  };
  const isFinding = () => Boolean(state.get("search") || state.get("outcome") || state.get("worst"));
  const number1 = (/** @type {"group" | "rollout"} */ key) =>
    state.getNumber(key) ?? (state.getNumber("step") === null ? first?.[key] : null) ?? 1;
  const isHere = (/** @type {{step: number, group: number, rollout: number}} */ hit) =>
    hit.step === step() && hit.group === number1("group") && hit.rollout === number1("rollout");

  async function look() {
    const turn = ++requests;
    let at = step();
    const page = state.getNumber("page") ?? 0;
    try {
      const wanted = {outcome: state.get("outcome"), search: state.get("search"), worst: state.get("worst")};
      const where = isFinding() && state.get("everywhere") !== "0" ? null : at;
      const listed = /** @type {Hits | GroupPage} */ (
        await ask("rollouts", {run, step: where, page, ...(isFinding() && wanted)}, signal)
      );
      const hits = "hits" in listed ? listed.hits : null;
      first = hits?.[0] ?? null;
      at = step();
      const whole = /** @type {WholeGroup} */ (
        await ask("rollouts", {run, step: at, group: number1("group")}, signal)
      );
      if (turn !== requests) return;
      const {total} = whole;
      const list =
        "hits" in listed
          ? {groups: [], more: listed.more, size: 0}
          : {groups: listed.groups, more: (page + 1) * listed.page_size < total, size: listed.page_size};
      shown = {...list, hits, page, total, group: whole.groups[0]};
      draw(at);
    } catch (error) {
      if (turn !== requests || signal.aborted) return;
      fill(middle, notice(error instanceof Error ? error.message : String(error)));
      fill(right);
    }
  }

  /** @param {number} at */
  function draw(at) {
    const {group} = shown;
    if (!group) return;
    const chosen = Math.min(number1("rollout"), group.rollouts?.length ?? 1);
    const places = cited.places();
    fill(list, ...(places ? citedList(places, state.get("cited"), isHere) : shown.hits ? hitList(shown.hits, isHere) : groupList(shown.groups, group.number)), ...pages());
    fill(
      middle,
      el("h2", {}, `Group ${group.number} of ${shown.total}`, el("span", {class: "faint"}, ` at step ${number(at)}`)),
      el("p", {class: "prompt"}, group.prompt),
      group.answer && el("p", {}, el("span", {class: "faint"}, "reference answer "), group.answer),
      el("p", {class: "faint small"}, kept(group)),
      heatTable(group, chosen),
    );
    read(at, group, chosen);
    list.querySelector(".here")?.scrollIntoView({block: "nearest"});
    drawBar(at);
  }

  function pages() {
    const button = (/** @type {string} */ text, /** @type {number} */ page) =>
      el("button", {on: {click: () => state.go({page: page || null})}}, text);
    return [shown.page > 0 && button("Before", shown.page - 1), shown.more && button("More", shown.page + 1)].filter(Boolean);
  }

  /** @param {number} at */
  function drawBar(at) {
    if (bar.contains(document.activeElement)) return;
    const row = overview.steps.find((item) => item.step === at);
    const field = el("input", {
      type: "search",
      placeholder: "search texts",
      "aria-label": "Search rollouts",
      value: state.get("search"),
      on: {
        change: () => state.go({search: field.value, page: null, ...nowhere}),
        input: calm(() => field.value === "" && state.go({search: null, page: null, ...nowhere}), 100),
      },
    });
    const select = el(
      "select",
      {
        "aria-label": "Step",
        on: {
          change: () => {
            const to = select.value;
            select.blur();
            state.go({step: to, group: null, rollout: null, page: null});
          },
        },
      },
      steps.map((known) => el("option", {value: known, selected: known === at}, `step ${known}`)),
    );
    const outcomes = el(
      "select",
      {
        "aria-label": "Outcome",
        on: {
          change: () => {
            const to = outcomes.value;
            outcomes.blur();
            state.go({outcome: to || null, page: null, ...nowhere});
          },
        },
      },
      el("option", {value: ""}, "every outcome"),
      known().map((name) => el("option", {value: name, selected: name === state.get("outcome")}, name)),
    );
    const worst = el(
      "button",
      {
        class: "chip",
        "aria-pressed": String(Boolean(state.get("worst"))),
        on: {
          click: () => {
            worst.blur();
            state.go({worst: state.get("worst") ? null : 1, page: null, ...nowhere});
          },
        },
      },
      "lowest rewards",
    );
    const here = el(
      "button",
      {
        class: "chip",
        "aria-pressed": String(state.get("everywhere") === "0"),
        on: {
          click: () => {
            here.blur();
            state.go({everywhere: state.get("everywhere") === "0" ? null : 0, page: null});
          },
        },
      },
      "this step only",
    );
    fill(
      bar,
      el("button", {"aria-label": "Previous step", title: "Previous step (,)", on: {click: () => walkSteps(-1)}}, "‹"),
      select,
      el("button", {"aria-label": "Next step", title: "Next step (.)", on: {click: () => walkSteps(1)}}, "›"),
      field,
      outcomes,
      worst,
      isFinding() && here,
      isFinding() &&
        el("button", {on: {click: () => state.go({search: null, outcome: null, worst: null, everywhere: null, page: null})}}, "All groups"),
      cited.picker({page: null, ...nowhere}),
      row &&
        el(
          "span",
          {class: "faint"},
          `${counted(row.groups, "group")}${row.kept + row.filtered ? `, ${row.kept} kept` : ""}, ${counted(row.rollouts, "rollout")}, mean reward ${number(row.mean)}`,
        ),
    );
  }
  /** @type {Set<string>} */
  const seen = new Set(state.get("outcome") ? [state.get("outcome")] : []);
  const known = () => {
    for (const group of shown.groups) Object.keys(group.outcomes).forEach((name) => seen.add(name));
    for (const rollout of shown.group?.rollouts ?? []) if (rollout.outcome) seen.add(rollout.outcome);
    return [...seen].sort();
  };

  const walkSteps = (/** @type {number} */ by) => {
    const next = steps[Math.min(Math.max(steps.indexOf(step()) + by, 0), steps.length - 1)];
    state.go({step: next, group: null, rollout: null, page: null});
  };
  const walkGroups = (/** @type {number} */ by) => {
    const next = number1("group") + by;
    if (next >= 1 && next <= shown.total)
      state.go(
        {group: next, rollout: null, page: isFinding() ? state.get("page") : Math.floor((next - 1) / shown.size) || null},
        {replace: true},
      );
  };
  const walk = (/** @type {number} */ by) => {
    if (shown.hits) {
      const at = shown.hits.findIndex(isHere);
      const hit = shown.hits[Math.min(Math.max(at + by, 0), shown.hits.length - 1)];
      if (hit) state.go({step: hit.step, group: hit.group, rollout: hit.rollout}, {replace: true});
      return;
    }
    const next = number1("rollout") + by;
    if (next >= 1 && next <= (shown.group?.rollouts?.length ?? 0)) {
      state.go({rollout: next}, {replace: true});
      announce(`rollout ${next}`);
    }
  };
  fill(root, el("h1", {class: "unseen"}, "Rollouts"), bar, el("div", {class: "rollouts"}, list, middle, right));
  await look();
  let before = signature();
  return {
    update: () => {
      const now = signature();
      if (now !== before) look();
      else draw(step());
      before = now;
    },
    live: ({kind}) => {
      if (kind === "rows") newer.ask();
    },
    stop: () => [newer, cited].forEach(({stop}) => stop()),
    keys: [
      {key: "j", label: "next rollout", does: () => walk(1)},
      {key: "k", label: "previous rollout", does: () => walk(-1)},
      {key: "]", label: "next group", does: () => walkGroups(1)},
      {key: "[", label: "previous group", does: () => walkGroups(-1)},
      {key: ".", label: "next step", does: () => walkSteps(1)},
      {key: ",", label: "previous step", does: () => walkSteps(-1)},
      {key: "/", label: "search texts", does: () => /** @type {HTMLElement} */ (bar.querySelector("input")).focus()},
      {
        key: "w",
        label: "lowest rewards",
        does: () => state.go({worst: state.get("worst") ? null : 1, page: null, ...nowhere}),
      },
    ],
  };
}

/** Resets the position: another list starts at its first entry. */
const nowhere = {step: null, group: null, rollout: null};

/** @returns {string} the parameters of the address that need another answer of the server */
function signature() {
  return ["step", "group", "search", "outcome", "worst", "everywhere", "page"].map(state.get).join("\n");
}
