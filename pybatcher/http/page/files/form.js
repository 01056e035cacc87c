// A form made from a JSON schema, whose fields are filled while their JSON arrives.

import { action, h, show } from "./dom.js";
import { readPartial } from "./partial_json.js";

const MOST_CHOICES = 8; // values of an enum that are shown side by side
const MOST_DEEP = 12;
const MOST_STEPS = 20; // nested references that are followed

export class SchemaForm {
  #read = "";

  constructor(schema, name) {
    this.root = schema;
    this.field = field(schema, schema, schema.title ?? name, 0);
    const copy = action("Copy JSON", () => navigator.clipboard?.writeText(this.#read));
    this.element = h("div", { class: "form", role: "group", "aria-label": schema.title ?? name },
      schema.description ? h("p", { class: "hint" }, schema.description) : null,
      this.field.element, h("div", { class: "row actions" }, copy));
  }

  // text: the JSON so far. isWhole: the JSON is complete.
  fill(text, isWhole) {
    if (text === this.#read && !isWhole) return;
    this.#read = text;
    const { value, path } = readPartial(text);
    this.field.fill(value);
    for (const old of this.element.querySelectorAll(".being-written")) old.classList.remove("being-written");
    if (!isWhole && path !== null) this.field.at(path)?.classList.add("being-written");
  }
}

// Returns the field of a schema: {element, fill(value), at(path)}; `at` is the element of the place
// below it that a path leads to.
function field(root, schema, name, depth) {
  const own = unfold(root, schema);
  if (depth > MOST_DEEP) return new AnyField(own, name);
  if (Array.isArray(own.enum)) return new ChoiceField(own, name);
  switch (own.type) {
    case "object":
      return new ObjectField(root, own, name, depth);
    case "array":
      return new ListField(root, own, name, depth);
    case "boolean":
      return new ChoiceField({ ...own, enum: [true, false] }, name, { true: "yes", false: "no" });
    default:
      return new AnyField(own, name);
  }
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "");

const label = (schema, name) =>
  h("span", { class: "name", title: schema.description ?? null }, schema.title ?? name);

// Returns the field of a text, a number, or a value without a field of its own.
class AnyField {
  constructor(schema, name) {
    const isLong = schema.type === "string" && !(schema.maxLength <= 80) && !schema.format;
    this.input = isLong
      ? h("textarea", { readonly: true, rows: 1 })
      : h("input", { readonly: true, class: schema.type === "string" ? null : "figure" });
    this.element = h("label", { class: "field" }, label(schema, name), this.input);
  }

  fill(value) {
    const text = value === undefined ? "" : shown(value);
    if (this.input.value === text) return;
    this.input.value = text;
    if (this.input.localName === "textarea") {
      this.input.style.height = "auto";
      this.input.style.height = `${this.input.scrollHeight}px`;
    }
  }

  at() {
    return this.element;
  }
}

// Returns the field of one of a few values: all are shown, the chosen one is marked.
class ChoiceField {
  constructor(schema, name, names = {}) {
    this.name = schema.title ?? name;
    this.options = schema.enum.slice(0, MOST_CHOICES).map((value) => {
      const element = h("span", { class: "option" }, names[value] ?? shown(value));
      return { text: JSON.stringify(value), element };
    });
    this.other = h("span", { class: "option chosen", hidden: true });
    this.group = h("span", { class: "options", role: "img", "aria-label": `${this.name}: empty` },
      this.options.map(({ element }) => element), this.other);
    this.element = h("div", { class: "field" }, label(schema, name), this.group);
  }

  fill(value) {
    const text = JSON.stringify(value);
    const chosen = this.options.find((option) => option.text === text);
    for (const option of this.options) option.element.classList.toggle("chosen", option === chosen);
    const isOther = value !== undefined && chosen === undefined;
    show(this.other, isOther);
    this.other.textContent = isOther ? shown(value) : "";
    this.group.setAttribute("aria-label", `${this.name}: ${value === undefined ? "empty" : shown(value)}`);
  }

  at() {
    return this.element;
  }
}

class ObjectField {
  constructor(root, schema, name, depth) {
    this.make = (key, of) => field(root, of, key, depth + 1);
    this.rest = typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
    this.fields = new Map();
    this.element = depth === 0
      ? h("div", { class: "fields" })
      : h("fieldset", {}, h("legend", {}, schema.title ?? name));
    for (const [key, of] of Object.entries(schema.properties ?? {})) this.#add(key, of);
  }

  #add(key, of) {
    const made = this.make(key, of);
    this.fields.set(key, made);
    this.element.append(made.element);
    return made;
  }

  fill(value) {
    const isObject = value !== null && typeof value === "object";
    for (const key of isObject ? Object.keys(value) : []) {
      if (!this.fields.has(key)) this.#add(key, this.rest);
    }
    for (const [key, one] of this.fields) one.fill(isObject ? value[key] : undefined);
  }

  at([key, ...path]) {
    return this.fields.get(key)?.at(path) ?? null;
  }
}

class ListField {
  constructor(root, schema, name, depth) {
    const { prefixItems = [], items = {} } = schema;
    this.make = (i) => field(root, prefixItems[i] ?? items, String(i + 1), depth + 1);
    this.fields = [];
    this.element = h("fieldset", {}, h("legend", {}, schema.title ?? name));
    this.none = h("p", { class: "hint" }, "Entries appear here as they come.");
    this.element.append(this.none);
  }

  fill(value) {
    const entries = Array.isArray(value) ? value : [];
    while (this.fields.length < entries.length) {
      const made = this.make(this.fields.length);
      this.fields.push(made);
      this.element.append(made.element);
    }
    for (const gone of this.fields.splice(entries.length)) gone.element.remove();
    show(this.none, entries.length === 0);
    this.fields.forEach((one, i) => one.fill(entries[i]));
  }

  at([index, ...path]) {
    return this.fields[index]?.at(path) ?? this.element;
  }
}

// Returns a schema with its references followed and with its first alternative that is not null,
// because a form shows one shape. `type` is one word.
function unfold(root, schema) {
  let own = schema;
  for (let i = 0; i < MOST_STEPS && own !== null && typeof own === "object"; i++) {
    const others = own.anyOf ?? own.oneOf ?? (own.allOf?.length === 1 ? own.allOf : null);
    let next;
    if (typeof own.$ref === "string") next = pointed(root, own.$ref);
    else if (Array.isArray(others)) next = others.find((one) => one?.type !== "null") ?? others[0];
    else break;
    const { $ref, anyOf, oneOf, allOf, ...rest } = own;
    own = { ...next, ...rest };
  }
  if (own === null || typeof own !== "object") return {};
  if ("const" in own) own = { ...own, enum: [own.const] };
  const type = Array.isArray(own.type) ? own.type.find((one) => one !== "null") : own.type;
  return { ...own, type: type ?? (own.properties ? "object" : undefined) };
}

// Returns the value that a JSON pointer into the schema itself names. Nothing is fetched.
function pointed(root, reference) {
  if (!reference.startsWith("#")) return {};
  const parts = reference.slice(1).split("/").slice(1);
  const keys = parts.map((part) => decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~"));
  let found = root;
  for (const key of keys) found = Object.hasOwn(Object(found), key) ? found[key] : {};
  return found;
}
