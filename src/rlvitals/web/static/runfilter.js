/**
 * The filter of the list of runs: `learning_rate < 1e-5 and reward.last > 0.5 and tag = "good"`.
 * It is parsed and evaluated here and never run as code. Text without a comparison is a search for words.
 */

/** @typedef {string | number | boolean | null} Value */
/** @typedef {(name: string) => Value | string[] | undefined} Look A run's value of a name. */
/** @typedef {{names: string[], fits: (look: Look, content: string) => boolean}} Filter */
/** @typedef {{kind: string, text: string, at: number}} Token */
/** @typedef {(look: Look) => boolean} Test */

const TOKEN = /\s*(?:(<=|>=|==|!=|!~|[<>=~()])|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(`[^`]+`)|([^\s<>=!~()"'`]+))/y;
const WORDS = ["and", "or", "not"];
const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;
const DEEPEST = 50;

/**
 * @param {string} text
 * @returns {Filter} throws an Error with the reason if the filter is wrong
 */
export function filterOf(text) {
  if (!/[<>=~]/.test(text)) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return {names: [], fits: (_, content) => words.every((word) => content.includes(word))};
  }
  const parser = new Parser(tokens(text), text.length);
  const test = parser.whole();
  return {names: [...parser.names], fits: (look) => test(look)};
}

/** @param {string} text @returns {Token[]} */
function tokens(text) {
  /** @type {Token[]} */
  const found = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw new Error(`cannot read "${text.slice(at).trim().slice(0, 20)}"; a quote may be missing`);
    const [, sign, quoted, name, word] = match;
    if (sign) found.push({kind: "sign", text: sign === "==" ? "=" : sign, at});
    else if (quoted) found.push({kind: "text", text: quoted.slice(1, -1).replace(/\\(.)/g, "$1"), at});
    else if (name) found.push({kind: "name", text: name.slice(1, -1), at});
    else if (WORDS.includes(word.toLowerCase())) found.push({kind: "sign", text: word.toLowerCase(), at});
    else found.push({kind: "word", text: word, at});
  }
  return found;
}

class Parser {
  /** @param {Token[]} tokens @param {number} end */
  constructor(tokens, end) {
    this.tokens = tokens;
    this.end = end;
    this.place = 0;
    this.depth = 0;
    /** @type {Set<string>} */
    this.names = new Set();
  }

  /** @returns {Test} */
  whole() {
    const test = this.either();
    const left = this.tokens[this.place];
    if (left) throw new Error(`expected "and" or "or" before "${left.text}"`);
    return test;
  }

  /** @param {string} sign */
  takes(sign) {
    const is = this.tokens[this.place]?.kind === "sign" && this.tokens[this.place].text === sign;
    if (is) this.place += 1;
    return is;
  }

  /** @returns {Test} */
  either() {
    const tests = [this.both()];
    while (this.takes("or")) tests.push(this.both());
    return tests.length === 1 ? tests[0] : (look) => tests.some((test) => test(look));
  }

  /** @returns {Test} */
  both() {
    const tests = [this.one()];
    while (this.takes("and")) tests.push(this.one());
    return tests.length === 1 ? tests[0] : (look) => tests.every((test) => test(look));
  }

  /** @returns {Test} */
  one() {
    if (++this.depth > DEEPEST) throw new Error("too many parentheses");
    let test;
    if (this.takes("not")) {
      const other = this.one();
      test = (/** @type {Look} */ look) => !other(look);
    } else if (this.takes("(")) {
      test = this.either();
      if (!this.takes(")")) throw new Error('a "(" is not closed');
    } else test = this.comparison();
    this.depth -= 1;
    return test;
  }

  /** @returns {Test} */
  comparison() {
    const name = this.tokens[this.place++];
    if (!name) throw new Error("something is missing at the end");
    if (name.kind === "sign" || name.kind === "text") throw new Error(`expected a name, not "${name.text}"`);
    const sign = this.tokens[this.place++];
    if (!sign || sign.kind !== "sign" || !(sign.text in SIGNS))
      throw new Error(`expected a comparison after "${name.text}": one of ${Object.keys(SIGNS).join(" ")}`);
    const given = this.tokens[this.place++];
    if (!given || given.kind === "sign") throw new Error(`expected a value after "${name.text} ${sign.text}"`);
    this.names.add(name.text);
    const value = given.kind === "word" ? valueOf(given.text) : given.text;
    const compare = SIGNS[sign.text];
    return (look) => {
      const found = look(name.text) ?? null;
      if (Array.isArray(found)) {
        const any = found.some((item) => SIGNS[sign.text === "!=" ? "=" : sign.text](item, value));
        return sign.text === "!=" ? !any : any;
      }
      return compare(found, value);
    };
  }
}

/** @param {string} word @returns {Value} */
function valueOf(word) {
  if (NUMBER.test(word)) return Number(word);
  const low = word.toLowerCase();
  if (low === "true" || low === "false") return low === "true";
  return low === "none" || low === "null" || low === "missing" ? null : word;
}

/** @param {(one: number, other: number) => boolean} compare @returns {(found: Value, value: Value) => boolean} */
function ordered(compare) {
  return (found, value) => {
    if (found === null || value === null || typeof found === "boolean") return false;
    const [one, other] = [Number(found), Number(value)];
    if (!Number.isNaN(one) && !Number.isNaN(other)) return compare(one, other);
    return (
      typeof found === "string" && typeof value === "string" && compare(found < value ? -1 : found > value ? 1 : 0, 0)
    );
  };
}

/** @param {Value} found @param {Value} value */
function isSame(found, value) {
  if (found === null || value === null) return found === value;
  if (typeof value === "number") return typeof found !== "boolean" && found !== "" && Number(found) === value;
  return String(found).toLowerCase() === String(value).toLowerCase();
}

/** @param {Value} found @param {Value} value */
const contains = (found, value) => found !== null && String(found).toLowerCase().includes(String(value).toLowerCase());

/** @type {Record<string, (found: Value, value: Value) => boolean>} A missing value matches only `= none`. */
const SIGNS = {
  "=": isSame,
  "!=": (found, value) => (found !== null || value === null) && !isSame(found, value),
  "<": ordered((one, other) => one < other),
  "<=": ordered((one, other) => one <= other),
  ">": ordered((one, other) => one > other),
  ">=": ordered((one, other) => one >= other),
  "~": contains,
  "!~": (found, value) => found !== null && !contains(found, value),
};
