// Conversations as files: JSON that the page can open again, and Markdown for people.

import { h } from "./dom.js";
import { newChoice } from "./conversation.js";
import { isImage } from "./images.js";

const FORMAT = "pybatcher conversation";
const VERSION = 1;
const MOST_BYTES = 32 * 2 ** 20;
const STATES = new Set(["done", "stopped", "broken", "failed"]);

export function saveJson(messages) {
  const text = JSON.stringify({ format: FORMAT, version: VERSION, messages }, null, 1);
  download(text, "json", "application/json");
}

export function saveMarkdown(messages) {
  const parts = messages.map((message) =>
    message.role === "user" ? `## You\n\n${asked(message)}` : `## The model\n\n${written(message)}`);
  download(parts.join("\n\n") + "\n", "md", "text/markdown");
}

function asked({ text, images = [] }) {
  const pictures = images.map((url, i) => `![Image ${i + 1}](${url})`);
  return [...pictures, text].filter(Boolean).join("\n\n");
}

function written({ choices, chosen }) {
  const { text, reasoning, calls } = choices[chosen];
  const quoted = reasoning.trim() && `> ${reasoning.trim().replaceAll("\n", "\n> ")}`;
  const called = calls.map((call) =>
    fenced("json", JSON.stringify({ name: call.name, arguments: call.text, result: call.result ?? "" }, null, 2)));
  return [quoted, text.trim(), ...called].filter(Boolean).join("\n\n");
}

function fenced(language, text) {
  const ticks = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
  return `${ticks}${language}\n${text}\n${ticks}`;
}

function download(text, ending, type) {
  const time = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: `conversation-${time}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// Returns the messages of a file that `saveJson` wrote. Throws an Error for any other file.
export async function opened(file) {
  if (file.size > MOST_BYTES) throw new Error("the file has more than 32 MiB");
  let told = null;
  try {
    told = JSON.parse(await file.text());
  } catch {
    throw new Error("the file is not JSON; open a conversation that was saved as JSON");
  }
  if (told?.format !== FORMAT || told.version !== VERSION || !Array.isArray(told.messages)) {
    throw new Error("the file is no conversation that was saved as JSON here");
  }
  return told.messages.map(checked);
}

// Returns a message with the fields of a conversation's messages, each of its type.
function checked(message, number) {
  if (message?.role === "user") {
    return { role: "user", text: String(message.text ?? ""), images: list(message.images).filter(isImage) };
  }
  const isAnswer = message?.role === "assistant" && isObject(message.request) && Array.isArray(message.choices);
  if (!isAnswer || message.choices.length === 0) throw new Error(`message ${number + 1} of the file is not known here`);
  const choices = message.choices.map(checkedChoice);
  const { prompt_tokens: prompt, completion_tokens: completion } = message.usage ?? {};
  return {
    role: "assistant",
    request: message.request,
    choices,
    chosen: choices[message.chosen] === undefined ? 0 : Number(message.chosen),
    state: STATES.has(message.state) ? message.state : "broken",
    error: String(message.error ?? ""),
    usage: isNumber(completion) ? { prompt_tokens: isNumber(prompt) ? prompt : 0, completion_tokens: completion } : null,
    times: { first: orNull(message.times?.first), last: orNull(message.times?.last) },
  };
}

function checkedChoice(choice) {
  const { text, reasoning, calls, tokens, reason } = isObject(choice) ? choice : {};
  return {
    ...newChoice(),
    text: String(text ?? ""),
    reasoning: String(reasoning ?? ""),
    calls: list(calls).filter(isObject).map((call) => ({
      id: String(call.id ?? ""),
      name: String(call.name ?? ""),
      text: String(call.text ?? ""),
      result: String(call.result ?? ""),
    })),
    tokens: list(tokens).filter(Array.isArray).map(([token, logprob, top]) => [
      String(token), Number(logprob), list(top).filter(Array.isArray).map(([other, p]) => [String(other), Number(p)]),
    ]),
    reason: typeof reason === "string" ? reason : null,
  };
}

const list = (value) => (Array.isArray(value) ? value : []);
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const orNull = (value) => (isNumber(value) ? value : null);
