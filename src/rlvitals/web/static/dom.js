/**
 * Builds elements. Data from a run is inserted as text, never as markup. innerHTML is never used, and attributes that
 * could run code (`on…`, `style`, `srcdoc`) are refused.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Child | Child[]} Children */
/** @typedef {{class?: string, data?: Record<string, string | number>, on?: Record<string, Handler>}} Special */
/** @typedef {(event: any) => void} Handler An event listener. */
/** @typedef {Special & Record<string, unknown>} Properties */

const SVG = "http://www.w3.org/2000/svg";
const REFUSED = /^(on|style$|srcdoc$)/i;

/**
 * An HTML element. Attributes and children that are `false`, `null` or `undefined` are omitted.
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
 * Replaces all children.
 * @param {Element} element
 * @param {...Children} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * The element with this id. Throws if there is none.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Announces a message to screen readers.
 * @param {string} sentence
 */
export function announce(sentence) {
  byId("announced").textContent = sentence;
}

/** @returns {boolean} whether an input field has the focus */
export function isTyping() {
  const at = document.activeElement;
  return (
    (at instanceof HTMLInputElement && !["checkbox", "radio", "range"].includes(at.type)) ||
    at instanceof HTMLTextAreaElement ||
    at instanceof HTMLSelectElement
  );
}

/**
 * Debounces a function: it runs `wait` milliseconds after the last call.
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
 * Throttles a function: it runs `wait` milliseconds after the first of several calls.
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
