/** Formats numbers, times and durations as in the terminal (`render/numbers.py`). */

/**
 * A number with about four significant digits; whole numbers in full; a dash if there is none.
 * @param {number | string | null | undefined} value
 * @returns {string}
 */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e15) return scientific(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const decimals = size < 1e5 ? 1 : 0;
  if (size >= 1000) return value.toLocaleString("en", {minimumFractionDigits: decimals, maximumFractionDigits: decimals});
  if (size < 1e-4) return scientific(value);
  return String(Number(value.toPrecision(4)));
}

/** @param {number} value @returns {string} four digits, and at least two in the exponent: 5e-07 */
function scientific(value) {
  return shorter(value.toExponential(3)).replace(/([+-])(\d)$/, "$10$2");
}

/** @param {string} text @returns {string} 5.000e-7 as 5e-7 */
function shorter(text) {
  return text.replace(/\.?0+e/, "e");
}

/**
 * At most about six letters, for axes.
 * @param {number} value
 * @returns {string}
 */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9 || (size > 0 && size < 1e-3)) return shorter(value.toExponential(1));
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return String(Number(value.toPrecision(5)));
}

/**
 * A length of time in its two largest units.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  const whole = Math.round(seconds);
  /** @type {[number, string, number, string][]} */
  const units = [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ];
  for (const [size, word, small, smallWord] of units) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / small);
      return `${Math.floor(whole / size)} ${word}${rest ? ` ${rest} ${smallWord}` : ""}`;
    }
  }
  return `${whole} s`;
}

/**
 * A point in time, local, to the minute.
 * @param {number | null | undefined} timestamp unix seconds
 * @returns {string}
 */
export function moment(timestamp) {
  if (!timestamp || !Number.isFinite(timestamp)) return "–";
  const at = new Date(timestamp * 1000);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

/**
 * How long ago, in words.
 * @param {number | null | undefined} timestamp unix seconds
 * @returns {string}
 */
export function ago(timestamp) {
  if (!timestamp || !Number.isFinite(timestamp)) return "–";
  const seconds = Date.now() / 1000 - timestamp;
  return seconds < 2 ? "just now" : `${duration(seconds)} ago`;
}

/**
 * A band in words.
 * @param {readonly (number | null)[] | null | undefined} band
 * @returns {string}
 */
export function range(band) {
  if (!band || (band[0] === null && band[1] === null)) return "";
  if (band[0] === null) return `at most ${number(band[1])}`;
  return band[1] === null ? `at least ${number(band[0])}` : `${number(band[0])} to ${number(band[1])}`;
}

/**
 * A counted noun.
 * @param {number} count
 * @param {string} noun
 * @returns {string}
 */
export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
