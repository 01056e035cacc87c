// The view of the answers to one question: one answer, or several side by side.

import { action, h, show } from "./dom.js";
import { whole } from "./live/figures.js";
import { SchemaForm } from "./form.js";
import { MarkdownView } from "./markdown.js";
import { TokensView } from "./tokens.js";

const LEAST_FOR_RATE = 0.2; // seconds; a rate over less time is noise

const STATES = {
  stopped: "Stopped",
  broken: "The answer was cut",
  failed: "There is no answer",
};

export class AnswerView {
  #isWaiting = false; // for the next frame of the screen

  // actions: {retry, resume, giveResults, save, changed, isLast}.
  constructor(answer, actions) {
    this.answer = answer;
    this.actions = actions;
    const schema = answer.request.response_format?.json_schema?.schema ?? null;
    this.choices = answer.choices.map((_, i) => new ChoiceView(answer, i, schema, actions, () => this.#choose(i)));
    this.note = h("p", { class: "note" });
    this.figures = h("p", { class: "figures" });
    this.again = action("Retry", actions.retry, { "data-asks": true });
    this.resume = action("Continue", actions.resume, { "data-asks": true });
    const copy = action("Copy", () => this.#copy(copy));
    this.element = h(
      "article",
      { class: "answer", "aria-label": "The model" },
      h("div", { class: this.choices.length > 1 ? "choices several" : "choices" },
        this.choices.map((choice) => choice.element)),
      this.note,
      h("div", { class: "row actions" }, this.resume, this.again, copy, this.figures),
    );
    show(this.again, actions.isLast);
    this.update();
  }

  // Shows new text at the next frame of the screen.
  changed() {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    requestAnimationFrame(() => {
      this.#isWaiting = false;
      this.#show();
      this.actions.changed();
    });
  }

  update() {
    this.#show();
    const { state, error } = this.answer;
    const isCut = state === "broken" || state === "stopped";
    this.element.dataset.state = state;
    this.element.setAttribute("aria-busy", state === "streaming");
    this.note.textContent = state in STATES ? `${[STATES[state], error].filter(Boolean).join(": ")}.` : "";
    show(this.note, this.note.textContent !== "");
    show(this.resume, isCut && this.actions.isLast);
    this.figures.textContent = this.#figures().join(" · ");
  }

  // Returns the end of the answer in words, for screen readers.
  summary() {
    const { state, usage } = this.answer;
    if (state !== "done") return this.note.textContent;
    return usage === null ? "The answer is complete." : `The answer is complete: ${usage.completion_tokens} tokens.`;
  }

  #show() {
    const { choices, chosen, state } = this.answer;
    this.choices.forEach((view, i) => view.show(choices[i], i === chosen, state !== "streaming"));
  }

  #figures() {
    const { usage, times, request, state } = this.answer;
    if (state === "streaming") return [];
    const figures = [];
    if (usage !== null) {
      const seconds = (times.last - times.first) / 1000;
      figures.push(`${whole(usage.completion_tokens)} tokens`);
      if (seconds >= LEAST_FOR_RATE) figures.push(`${whole((usage.completion_tokens - 1) / seconds)} tokens/s`);
    }
    if (times.first !== null) figures.push(`first token ${Math.round(times.first)} ms`);
    figures.push(`seed ${request.seed}`);
    return figures;
  }

  #choose(index) {
    this.answer.chosen = index;
    this.#show();
    this.actions.save();
  }

  async #copy(button) {
    const { text } = this.answer.choices[this.answer.chosen];
    const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    button.textContent = isCopied ? "Copied" : "Not allowed here";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
}

// The view of one of the n answers.
class ChoiceView {
  constructor({ request, choices }, index, schema, actions, choose) {
    const name = `Answer ${index + 1}`;
    const isPlain = request.logprobs === true || schema !== null;
    this.said = isPlain ? new TokensView(request.logprobs === true) : new MarkdownView();
    this.form = schema === null ? null : new SchemaForm(schema, name);
    this.reasoning = h("p", { class: "said" });
    this.thought = h("details", { class: "thought", open: true }, h("summary", {}, "Reasoning"), this.reasoning);
    this.calls = new CallsView(actions);
    this.pick = action("Select", choose);
    this.reason = h("span", { class: "reason" });
    const text = this.form === null
      ? h("div", {}, this.said.element)
      : h("details", { class: "raw" }, h("summary", {}, "As JSON"), this.said.element);
    this.element = h(
      "section",
      { class: "choice", "aria-label": name },
      this.thought,
      this.form?.element,
      text,
      this.calls.element,
      choices.length > 1 ? h("div", { class: "row actions" }, this.pick, this.reason) : null,
    );
  }

  show(choice, isChosen, isEnded) {
    show(this.thought, choice.reasoning !== "");
    if (this.reasoning.textContent !== choice.reasoning) this.reasoning.textContent = choice.reasoning;
    this.said.show(choice, isEnded || choice.reason !== null);
    this.form?.fill(choice.text, choice.reason !== null);
    this.calls.show(choice);
    this.element.classList.toggle("chosen", isChosen);
    this.pick.setAttribute("aria-pressed", isChosen);
    this.pick.textContent = isChosen ? "Selected" : "Select";
    this.reason.textContent = choice.reason === "length" ? "cut at its length" : "";
  }
}

// The tool calls of an answer, each with a field for the result of the tool.
class CallsView {
  #cards = [];

  // actions: {giveResults, save, isLast}.
  constructor(actions) {
    this.actions = actions;
    this.list = h("div", { class: "calls" });
    this.send = action("Send the results", actions.giveResults, { "data-asks": true });
    this.element = h("div", {}, this.list, h("div", { class: "row actions" }, this.send));
  }

  show({ calls, reason }) {
    show(this.element, calls.length > 0);
    calls.forEach((call, i) => {
      this.#cards[i] ??= this.#card(i);
      const { name, text, result } = this.#cards[i];
      name.textContent = call.name;
      text.textContent = readable(call.text);
      result.oninput = () => {
        call.result = result.value;
        this.actions.save();
      };
      if (document.activeElement !== result) result.value = call.result ?? "";
      show(result.parentElement, reason !== null);
    });
    show(this.send, reason !== null && this.actions.isLast);
  }

  #card(index) {
    const card = {
      name: h("strong", {}),
      text: h("pre", {}),
      result: h("textarea", { rows: 1 }),
    };
    this.list.append(
      h(
        "section",
        { class: "call", "aria-label": `Call ${index + 1}` },
        h("p", {}, h("span", { class: "tag" }, "Calls"), " ", card.name),
        card.text,
        h("label", {}, "Result", card.result),
      ),
    );
    return card;
  }
}

// Returns a call's arguments as indented JSON once they are complete.
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
