/**
 * Regular expressions for the filter. The time is at most proportional to the length of the expression times that of
 * the text. RegExp backtracks: ^(a+)+$ on 34 letters practically never ends. Here all alternatives are followed at the
 * same time, as in `views/expressions.py`, which lists the supported syntax. The tests use one table for both.
 */

const MOST_PARTS = 500; // maximum number of instructions; a part in {2,3} counts three times
const DEEPEST = 50; // maximum nesting of groups
const LONGEST_TEXT = 1000; // characters of a text that are searched

/** @typedef {(character: string) => boolean} Fits */
/** @typedef {(text: string, place: number) => boolean} Holds */
/** @typedef {{kind: "found"} | {kind: "set", fits: Fits} | {kind: "place", holds: Holds}} Leaf */
/** @typedef {Leaf | {kind: "split", one: number, other: number} | {kind: "jump", one: number}} Step */
/** @typedef {{kind: "choice", parts: Node[]} | {kind: "repeat", part: Node, least: number, most: number | null}} Inner */
/** @typedef {Leaf | Inner | {kind: "all", parts: Node[]}} Node */

/** @type {Record<string, Fits>} */
const CLASSES = {
  d: (character) => character >= "0" && character <= "9",
  w: (character) => /[\p{L}\p{N}_]/u.test(character),
  s: (character) => /\s/.test(character),
};
/** @type {Record<string, string>} */
const CONTROLS = {n: "\n", r: "\r", t: "\t", f: "\f", v: "\v"};

export class Expression {
  /** @param {string} text throws an Error with the reason if it is not a valid expression */
  constructor(text) {
    /** @type {Step[]} */
    this.program = [];
    this.emit(new Parser(text).whole());
    this.add({kind: "found"});
  }

  /** @param {string} whole @returns {boolean} whether it matches anywhere in a text */
  isFoundIn(whole) {
    const text = whole.slice(0, LONGEST_TEXT);
    /** @type {number[]} */
    let states = [];
    const entered = new Uint16Array(this.program.length).fill(LONGEST_TEXT + 1); // the last place of each state
    for (let place = 0; place <= text.length; place += 1) {
      if (this.enter(states, entered, 0, text, place)) return true;
      if (place === text.length) break;
      /** @type {number[]} */
      const after = [];
      for (const state of states) {
        const step = this.program[state];
        if (step.kind !== "set" || !step.fits(text[place])) continue;
        if (this.enter(after, entered, state + 1, text, place + 1)) return true;
      }
      states = after;
    }
    return false;
  }

  /**
   * Adds a state and all states that it reaches without a character.
   * @param {number[]} states states that wait for a character
   * @param {Uint16Array} entered
   * @param {number} state
   * @param {string} text
   * @param {number} place
   * @returns {boolean} whether the expression has matched
   */
  enter(states, entered, state, text, place) {
    if (entered[state] === place) return false;
    entered[state] = place;
    const step = this.program[state];
    if (step.kind === "found") return true;
    if (step.kind === "set") states.push(state);
    if (step.kind === "jump") return this.enter(states, entered, step.one, text, place);
    if (step.kind === "place") return step.holds(text, place) && this.enter(states, entered, state + 1, text, place);
    if (step.kind !== "split") return false;
    return this.enter(states, entered, step.one, text, place) || this.enter(states, entered, step.other, text, place);
  }

  /** @param {Step} step @returns {number} */
  add(step) {
    if (this.program.length >= MOST_PARTS) throw new Error(`it has more than ${MOST_PARTS} parts`);
    return this.program.push(step) - 1;
  }

  /** @param {Node} part the optional part */
  optional(part) {
    const start = this.add({kind: "split", one: 0, other: 0});
    this.emit(part);
    return start;
  }

  /** @param {number} start */
  closeSplit(start) {
    this.program[start] = {kind: "split", one: start + 1, other: this.program.length};
  }

  /** @param {Node} node */
  emit(node) {
    if (node.kind === "repeat") {
      for (let times = 0; times < node.least; times += 1) this.emit(node.part);
      if (node.most === null) {
        const start = this.optional(node.part);
        this.add({kind: "jump", one: start});
        this.closeSplit(start);
      }
      for (let times = node.least; times < (node.most ?? 0); times += 1) this.closeSplit(this.optional(node.part));
    } else if (node.kind === "choice") {
      /** @type {number[]} */
      const ends = [];
      for (const part of node.parts.slice(0, -1)) {
        const start = this.optional(part);
        ends.push(this.add({kind: "jump", one: 0}));
        this.closeSplit(start);
      }
      this.emit(node.parts[node.parts.length - 1]);
      for (const end of ends) this.program[end] = {kind: "jump", one: this.program.length};
    } else if (node.kind === "all") node.parts.forEach((part) => this.emit(part));
    else this.add(node);
  }
}

/** Reads an expression. */
class Parser {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.depth = 0;
  }

  /** @returns {Node} */
  whole() {
    const node = this.choice();
    if (this.at < this.text.length) throw new Error("a ')' closes nothing");
    return node;
  }

  get next() {
    return this.text[this.at] ?? "";
  }

  take() {
    const taken = this.next;
    if (!taken) throw new Error("it ends too early");
    this.at += 1;
    return taken;
  }

  /** @returns {RegExpMatchArray | null} {2}, {2,} or {2,3} at this place */
  times() {
    return this.text.slice(this.at, this.at + 12).match(/^\{(\d{1,4})(?:(,)(\d{1,4})?)?\}/);
  }

  get isRepeat() {
    return (this.next !== "" && "*+?".includes(this.next)) || this.times() !== null;
  }

  /** @returns {Node} */
  choice() {
    const parts = [this.sequence()];
    while (this.next === "|") {
      this.at += 1;
      parts.push(this.sequence());
    }
    return parts.length === 1 ? parts[0] : {kind: "choice", parts};
  }

  /** @returns {Node} */
  sequence() {
    /** @type {Node[]} */
    const parts = [];
    while (this.next && !"|)".includes(this.next)) parts.push(this.repeated(this.part()));
    return {kind: "all", parts};
  }

  /** @param {Node} part @returns {Node} */
  repeated(part) {
    if (!this.isRepeat) return part;
    const times = this.times();
    let least = 0;
    /** @type {number | null} */
    let most = null;
    if (times) {
      this.at += times[0].length;
      least = Number(times[1]);
      if (!times[2] || times[3]) most = Number(times[3] ?? times[1]);
    } else {
      const sign = this.take();
      if (sign === "+") least = 1;
      if (sign === "?") most = 1;
    }
    if (most !== null && most < least) throw new Error("a range of repeats runs backwards");
    if (this.next === "?") this.at += 1; // a lazy repeat matches the same texts
    if (this.isRepeat) throw new Error("a repeat is repeated");
    return {kind: "repeat", part, least, most};
  }

  /** @returns {Node} */
  part() {
    const taken = this.take();
    if ("*+?".includes(taken)) throw new Error(`'${taken}' repeats nothing`);
    if (taken === "(") return this.group();
    if (taken === "[") return {kind: "set", fits: this.set()};
    if (taken === ".") return {kind: "set", fits: (character) => character !== "\n"};
    if (taken === "^") return {kind: "place", holds: (_, place) => place === 0};
    if (taken === "$") return {kind: "place", holds: (text, place) => place === text.length};
    if (taken === "\\") return this.escape();
    return {kind: "set", fits: same(taken)};
  }

  /** @returns {Node} */
  group() {
    if (this.next === "?") {
      if (!this.text.startsWith("?:", this.at)) {
        throw new Error("it looks ahead or behind or names a group, which this filter does not know");
      }
      this.at += 2;
    }
    this.depth += 1;
    if (this.depth > DEEPEST) throw new Error(`more than ${DEEPEST} groups are within each other`);
    const node = this.choice();
    if (this.next !== ")") throw new Error("a '(' is not closed");
    this.at += 1;
    this.depth -= 1;
    return node;
  }

  /** @returns {Node} */
  escape() {
    const taken = this.take();
    if ("bB".includes(taken)) return {kind: "place", holds: (text, place) => isEdge(text, place) === (taken === "b")};
    if (CLASSES.d(taken)) throw new Error("it refers back to a group, which this filter does not know");
    return {kind: "set", fits: classOf(taken) ?? same(escaped(taken))};
  }

  /** @returns {Fits} */
  set() {
    const isOther = this.next === "^";
    if (isOther) this.at += 1;
    /** @type {Fits[]} */
    const tests = [];
    while (this.next !== "]" || !tests.length) tests.push(this.member());
    this.at += 1;
    return (character) => tests.some((test) => test(character)) !== isOther;
  }

  /** @returns {Fits} */
  member() {
    let low = this.take();
    if (low === "\\") {
      const letter = this.take();
      const known = classOf(letter);
      if (known) return known;
      low = letter === "b" ? "\b" : escaped(letter);
    }
    if (this.next !== "-" || ["]", ""].includes(this.text[this.at + 1] ?? "")) return same(low);
    this.at += 1;
    let high = this.take();
    if (high === "\\") high = escaped(this.take());
    if (high < low) throw new Error("a range of characters runs backwards");
    const isWithin = (/** @type {string} */ character) => low <= character && character <= high;
    return (character) => isWithin(character.toLowerCase()) || isWithin(character.toUpperCase());
  }
}

/** @param {string} letter @returns {Fits | null} */
function classOf(letter) {
  const known = Object.hasOwn(CLASSES, letter.toLowerCase()) ? CLASSES[letter.toLowerCase()] : null;
  return known === null || letter === letter.toLowerCase() ? known : (character) => !known(character);
}

/** @param {string} wanted @returns {Fits} */
function same(wanted) {
  const lowered = wanted.toLowerCase();
  return (character) => character === wanted || character.toLowerCase() === lowered;
}

/** @param {string} letter @returns {string} */
function escaped(letter) {
  if (Object.hasOwn(CONTROLS, letter)) return CONTROLS[letter];
  if (/[a-z0-9]/i.test(letter)) throw new Error(`this filter does not know '\\${letter}'`);
  return letter;
}

/** @param {string} text @param {number} place @returns {boolean} whether a word begins or ends here */
function isEdge(text, place) {
  const before = place > 0 && CLASSES.w(text[place - 1]);
  return before !== (place < text.length && CLASSES.w(text[place]));
}
