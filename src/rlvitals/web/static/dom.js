/**
 * Builds elements. Whatever comes from a run enters the page as text, never as markup: there is no innerHTML anywhere,
 * and attributes that could run something (`on…`, `style`, `srcdoc`) are not taken.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Child | Child[]} Children */
/** @typedef {{class?: string, data?: Record<string, string | number>, on?: Record<string, Handler>}} Special */
/** @typedef {(event: any) => void} Handler By the event's name. */
/** @typedef {Special & Record<string, unknown>} Properties */

const SVG = "http://www.w3.org/2000/svg";
const REFUSED = /^(on|style$|srcdoc$)/i;

/**
 * An HTML element. `false`, `null` and `undefined` leave an attribute or child out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Properties} [properties]
 * @param {...Children} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/**
 * An SVG element.
 * @param {string} tag
 * @param {Properties} [properties]
 */
export function svg(tag, properties = {}) {
  return filled(/** @type {SVGElement} */ (document.createElementNS(SVG, tag)), properties, []);
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {Properties} properties
 * @param {Children[]} children
 * @returns {E}
 */
function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(properties.on ?? {})) element.addEventListener(event, handler);
    } else if (name === "data") {
      for (const [key, text] of Object.entries(properties.data ?? {})) element.setAttribute(`data-${key}`, String(text));
    } else if (REFUSED.test(name)) {
      throw new Error(`no attribute ${name} here`);
    } else if (name === "value" && element instanceof HTMLInputElement) {
      element.value = String(value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

/**
 * @param {Element} element
 * @param {Children[]} children
 */
export function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
}

/**
 * Puts these children in the place of all there were.
 * @param {Element} element
 * @param {...Children} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * The element with this id, which the page is known to have.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Says something to those who listen to the page.
 * @param {string} sentence
 */
export function say(sentence) {
  byId("said").textContent = sentence;
}

/** @returns {boolean} whether the keys now belong to a field the user types in */
export function isTyping() {
  const at = document.activeElement;
  return (
    (at instanceof HTMLInputElement && !["checkbox", "radio", "range"].includes(at.type)) ||
    at instanceof HTMLTextAreaElement ||
    at instanceof HTMLSelectElement
  );
}

/**
 * Calls a function once things have been quiet for a while.
 * @template {unknown[]} A
 * @param {(...given: A) => void} action
 * @param {number} wait milliseconds
 * @returns {(...given: A) => void}
 */
export function calm(action, wait) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), wait);
  };
}

/**
 * Calls a function soon after it was asked for, however often that is.
 * @param {number} wait milliseconds
 * @param {() => void} action
 * @returns {{ask: () => void, stop: () => void}}
 */
export function atMostEvery(wait, action) {
  let timer = 0;
  return {
    ask: () => {
      if (!timer)
        timer = setTimeout(() => {
          timer = 0;
          action();
        }, wait);
    },
    stop: () => clearTimeout(timer),
  };
}
