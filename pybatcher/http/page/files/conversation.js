// A conversation: questions and answers, stored until the tab is closed.
//
// messages: {role: "user", text, images}, or {role: "assistant", request, choices, chosen, state, ...}.
//   images: data URIs. lost: the number of images that were too large to be stored.
//   request: the request body without its messages. It always has a seed, so that the same
//     request gives the same answer again, which is how a cut answer is continued.
//   choices: the n answers: {text, reasoning, calls, tokens, reason}.
//   state: "streaming", "done", "stopped", "broken" (the connection or the page ended), "failed".

import { CONVERSATION, keep, recall } from "./kept.js";

const PERIOD = 300; // ms between two writes while an answer arrives

export class Conversation {
  #timer = null;

  constructor() {
    const kept = recall(CONVERSATION);
    this.messages = Array.isArray(kept) ? kept : [];
    for (const message of this.messages) {
      if (message.state === "streaming") message.state = "broken";
    }
    window.addEventListener("pagehide", () => this.#write());
  }

  get isEmpty() {
    return this.messages.length === 0;
  }

  add(message) {
    this.messages.push(message);
    this.save();
    return message;
  }

  // Deletes a message and all later ones.
  cutAt(message) {
    const index = this.messages.indexOf(message);
    if (index >= 0) this.messages.splice(index);
    this.save();
  }

  clear() {
    this.replace([]);
  }

  replace(messages) {
    this.messages = messages;
    this.#write();
  }

  save() {
    this.#timer ??= setTimeout(() => this.#write(), PERIOD);
  }

  // Returns the messages before an answer in the form of the API.
  before(answer, system) {
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const message of this.messages) {
      if (message === answer) break;
      if (message.role === "user") messages.push({ role: "user", content: content(message) });
      else messages.push(...sent(message));
    }
    return messages;
  }

  #write() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.isEmpty) return keep(CONVERSATION, null);
    if (keep(CONVERSATION, this.messages)) return true;
    const lighter = this.messages.map(withoutTokens); // tokens take most of the space of a text
    return keep(CONVERSATION, lighter) || keep(CONVERSATION, lighter.map(withoutImages));
  }
}

// Returns the content of a question: its text, or its images and its text as parts.
function content({ text, images = [] }) {
  if (images.length === 0) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text === "" ? parts : [...parts, { type: "text", text }];
}

// Returns an answer as messages: itself, and the results of its tools.
function sent(answer) {
  const { text, calls } = answer.choices[answer.chosen];
  if (calls.length === 0) return [{ role: "assistant", content: text }];
  const own = { role: "assistant", content: text, tool_calls: calls.map(sentCall) };
  const results = calls.map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: call.result ?? "",
  }));
  return [own, ...results];
}

const sentCall = ({ id, name, text }) => ({
  id,
  type: "function",
  function: { name, arguments: text },
});

function withoutTokens(message) {
  if (message.role === "user") return message;
  const choices = message.choices.map((choice) => ({ ...choice, tokens: [] }));
  return { ...message, choices };
}

function withoutImages(message) {
  const { images = [], lost = 0 } = message;
  return images.length === 0 ? message : { ...message, images: [], lost: lost + images.length };
}

export function newAnswer(request) {
  return {
    role: "assistant",
    request,
    choices: Array.from({ length: request.n ?? 1 }, newChoice),
    chosen: 0,
    state: "streaming",
    error: "",
    usage: null,
    times: { first: null, last: null },
  };
}

export function newChoice() {
  return { text: "", reasoning: "", calls: [], tokens: [], reason: null };
}

// Adds the chunk of one choice. A token is [text, logprob, [[text, logprob], ...]].
export function take(choice, { delta, logprobs, finish_reason: reason }) {
  choice.text += delta.content ?? "";
  choice.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    choice.calls[index] ??= { id, name: "", text: "", result: "" };
    choice.calls[index].name += part.name ?? "";
    choice.calls[index].text += part.arguments ?? "";
  }
  for (const { token, logprob, top_logprobs: top } of logprobs?.content ?? []) {
    choice.tokens.push([token, logprob, (top ?? []).map((one) => [one.token, one.logprob])]);
  }
  choice.reason = reason ?? choice.reason;
}

// Returns true if `again` begins with the content of `held`, as it does with the same seed.
export function hasCaughtUp(again, held) {
  const isSame = held.text.startsWith(again.text) && held.reasoning.startsWith(again.reasoning);
  const size = (choice) => choice.text.length + choice.reasoning.length;
  return !isSame || size(again) >= size(held);
}
