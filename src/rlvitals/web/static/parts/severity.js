/** The name of a severity on the pages. */

/** @param {string} severity @returns {string} */
export function severityWord(severity) {
  return severity === "info" ? "remark" : severity;
}
