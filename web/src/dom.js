/** Elements without HTML text: what programs wrote is text, whatever it contains. */

/**
 * Makes an element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} [attributes] functions
 *   are listeners; null, undefined and false leave an attribute out, true makes it empty
 * @param {...(Node | string | null | undefined)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function createElement(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  appendChildren(element, children);
  return element;
}

/**
 * Makes a folded list of remarks; null without any.
 * @param {string} title
 * @param {{text: string}[]} notes
 */
export function createNotes(title, notes) {
  return notes.length === 0
    ? null
    : createElement(
        "details",
        {},
        createElement("summary", {}, title),
        createElement("ul", { class: "notes" }, ...notes.map(({ text }) => createElement("li", {}, text))),
      );
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element of a drawing.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} [attributes]
 * @param {...(Node | string | null | undefined)} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function createSvgElement(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  appendChildren(element, children);
  return element;
}

/**
 * @param {Element} element
 * @param {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} attributes
 */
function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name, value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * @param {Element} element
 * @param {(Node | string | null | undefined)[]} children
 */
function appendChildren(element, children) {
  element.append(...children.filter((child) => child !== null && child !== undefined));
}
