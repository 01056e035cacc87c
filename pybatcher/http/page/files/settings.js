// The options of a chat: sampling, and the structure of answers.

import { action, h, tell } from "./dom.js";
import { SETTINGS, keep, recall } from "./kept.js";

const EXAMPLE = {
  type: "object",
  properties: {
    title: { type: "string", maxLength: 40 },
    animal: { enum: ["fox", "owl", "bear", "hare"] },
    friendly: { type: "boolean" },
    legs: { enum: [2, 4] },
    friends: { type: "array", items: { type: "string", maxLength: 12 }, minItems: 1, maxItems: 3 },
  },
  required: ["title", "animal", "friendly", "legs", "friends"],
  additionalProperties: false,
};

// Each field has its name in a request, its label, and the range that a server accepts.
const NUMBERS = [
  { name: "temperature", label: "Temperature", usual: "the model's, else 0.7", min: 0, max: 100, step: "any", hint: "0: always the likeliest token" },
  { name: "max_tokens", label: "Max tokens", usual: "as many as fit", min: 1, step: 1 },
  { name: "n", label: "Answers side by side", usual: "1", min: 1, max: 8, step: 1 },
  { name: "seed", label: "Seed", usual: "new each time", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, hint: "same seed, same text" },
];
const MORE_NUMBERS = [
  { name: "top_p", label: "top_p", usual: "the model's, else 1", min: 0, max: 1, step: "any" },
  { name: "top_k", label: "top_k", usual: "the model's, else all", min: 0, step: 1 },
  { name: "min_p", label: "min_p", usual: "the model's, else 0.05", min: 0, max: 1, step: "any" },
  { name: "repetition_penalty", label: "Repetition penalty", usual: "the model's, else 1", min: 0, max: 100, step: "any" },
  { name: "presence_penalty", label: "Presence penalty", usual: "0", min: -100, max: 100, step: "any" },
  { name: "frequency_penalty", label: "Frequency penalty", usual: "0", min: -100, max: 100, step: "any" },
];

export class Settings {
  #inputs = new Map();
  #problems = new Map();

  constructor(place) {
    const kept = recall(SETTINGS) ?? {};
    place.append(
      this.#text("system", "System prompt", "You are a helpful assistant.", 2),
      h("fieldset", { class: "grid" }, h("legend", {}, "Sampling"), NUMBERS.map((one) => this.#number(one))),
      this.#flag("logprobs", "Show how likely each token was"),
      h("details", {}, h("summary", {}, "More sampling options"),
        h("div", { class: "grid" }, MORE_NUMBERS.map((one) => this.#number(one))),
        this.#text("stop", "Stop texts", "one a line", 2)),
      h("details", {}, h("summary", {}, "JSON schema"),
        this.#text("schema", "The answer is one instance of it", '{"type": "object", ...}', 8, "code"),
        h("div", { class: "row actions" },
          action("Use an example", () => this.#set("schema", JSON.stringify(EXAMPLE, null, 2))),
          action("Clear", () => this.#set("schema", "")))),
      h("details", {}, h("summary", {}, "Tools"),
        this.#text("tools", "Functions, as a JSON list", '[{"type": "function", ...}]', 6, "code")),
      action("Reset options", () => this.#reset()),
    );
    for (const [name, input] of this.#inputs) {
      if (name in kept) put(input, kept[name]);
      input.addEventListener("input", () => this.#changed());
      if (kept[name]) input.closest("details")?.setAttribute("open", "");
    }
    this.request();
  }

  // Returns the body of a request without its messages and its model, always with a seed;
  // `system` is the system prompt. null: an option is invalid, and its field shows why.
  request() {
    const body = {};
    let isRight = true;
    for (const [name, input] of this.#inputs) {
      const { value, problem } = read(name, input);
      const area = this.#problems.get(name);
      tell(area, problem ?? "");
      input.setAttribute("aria-invalid", problem !== undefined);
      if (problem !== undefined) isRight = false;
      else if (value !== undefined) Object.assign(body, value);
    }
    if (!isRight) return null;
    body.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
    return body;
  }

  focusProblem() {
    const wrong = [...this.#inputs.values()].find((input) => input.getAttribute("aria-invalid") === "true");
    wrong?.closest("details")?.setAttribute("open", "");
    wrong?.focus();
  }

  // -- fields -------------------------------------------------------------------------------

  #number({ name, label, usual, hint, ...range }) {
    return this.#field(name, label, h("input", { type: "number", placeholder: usual, ...range }), hint);
  }

  #text(name, label, placeholder, rows, kind = null) {
    return this.#field(name, label, h("textarea", { rows, placeholder, class: kind, spellcheck: kind ? "false" : null }));
  }

  #flag(name, label) {
    const input = h("input", { type: "checkbox", id: `option-${name}` });
    this.#inputs.set(name, input);
    this.#problems.set(name, h("p", {}));
    return h("label", { class: "flag" }, input, label);
  }

  #field(name, label, input, hint = null) {
    input.id = `option-${name}`;
    const problem = h("p", { class: "problem", id: `problem-${name}`, hidden: true });
    input.setAttribute("aria-describedby", problem.id);
    this.#inputs.set(name, input);
    this.#problems.set(name, problem);
    return h("div", { class: "option-field" }, h("label", { for: input.id }, label), input,
      hint && h("p", { class: "hint" }, hint), problem);
  }

  #set(name, value) {
    put(this.#inputs.get(name), value);
    this.#changed();
  }

  #reset() {
    for (const input of this.#inputs.values()) put(input, input.type === "checkbox" ? false : "");
    this.#changed();
  }

  #changed() {
    const values = [...this.#inputs].map(([name, input]) => [name, taken(input)]);
    keep(SETTINGS, Object.fromEntries(values.filter(([, value]) => value)));
    this.request();
  }
}

const taken = (input) => (input.type === "checkbox" ? input.checked : input.value);

function put(input, value) {
  if (input.type === "checkbox") input.checked = value === true;
  else input.value = value;
}

// Returns {value} as fields of a body, {problem}, or {} if the fields are empty.
function read(name, input) {
  if (input.type === "checkbox") return input.checked ? { value: { logprobs: true, top_logprobs: 5 } } : {};
  if (input.type === "number") return readNumber(name, input);
  const text = input.value.trim();
  if (text === "") return {};
  if (name === "system") return { value: { system: text } };
  if (name === "stop") return { value: { stop: input.value.split("\n").filter(Boolean) } };
  return readJson(name, text);
}

function readNumber(name, input) {
  const { validity, min, max, step } = input;
  if (validity.badInput) return { problem: "This is no number." };
  if (input.value === "") return {};
  if (validity.rangeUnderflow || validity.rangeOverflow) {
    return { problem: max === "" ? `At least ${min}.` : `From ${min} to ${max}.` };
  }
  if (validity.stepMismatch && step === "1") return { problem: "A whole number." };
  return { value: { [name]: input.valueAsNumber } };
}

function readJson(name, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { problem: `This is no JSON yet: ${error.message}` };
  }
  if (name === "tools") {
    return Array.isArray(value) ? { value: { tools: value } } : { problem: "A list of functions." };
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    return { problem: "A schema is an object." };
  }
  const described = { name: "answer", schema: value, strict: true };
  return { value: { response_format: { type: "json_schema", json_schema: described } } };
}
