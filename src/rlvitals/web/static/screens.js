/** The list of screens. The bar, the keys, the search and the tests use it. */

/** @import {Entry} from "../page.d.ts" */

/** @type {Entry} the screen with all runs */
export const HOME = {name: "runs", key: "r", title: "All runs", load: () => import("./screens/runs.js")};

/** @type {Entry[]} the screens of one run, in the order of the bar */
export const SCREENS = [
  {name: "vitals", key: "1", title: "Vitals", load: () => import("./screens/vitals.js")},
  {name: "metrics", key: "2", title: "Metrics", load: () => import("./screens/metrics.js")},
  {name: "health", key: "3", title: "Health", load: () => import("./screens/health.js")},
  {name: "rollouts", key: "4", title: "Rollouts", load: () => import("./screens/rollouts.js")},
  {name: "compare", key: "5", title: "Compare", load: () => import("./screens/compare.js")},
  {name: "performance", key: "6", title: "Performance", load: () => import("./screens/performance.js")},
  {name: "evaluations", key: "7", title: "Evaluations", load: () => import("./screens/evaluations.js")},
];

/** @param {string} name @returns {Entry} the home screen for an unknown name */
export function screenOf(name) {
  return SCREENS.find((entry) => entry.name === name) ?? HOME;
}
