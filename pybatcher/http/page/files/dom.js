// Makes elements from names, properties and children. All text becomes text nodes, so that nothing
// that a model writes is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

// h("p", {class: "note", onclick: f, title: "..."}, "text", another element, null)
export function h(name, properties = {}, ...children) {
  return made(document.createElement(name), properties, children);
}

export function svg(name, properties = {}, ...children) {
  return made(document.createElementNS(SVG, name), properties, children);
}

function made(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const $ = (id) => document.getElementById(id);

export function show(element, isShown) {
  element.hidden = !isShown;
}

// Shows a problem in an element with role=alert; "" hides it.
export function tell(element, text) {
  element.textContent = text;
  show(element, text !== "");
}

// Returns a small button with a name.
export function action(name, onclick, properties = {}) {
  return h("button", { type: "button", class: "action", onclick, ...properties }, name);
}
