// The chat: sending, stopping, editing, retrying and continuing.

import { Conversation, hasCaughtUp, newAnswer, newChoice, take } from "./conversation.js";
import { $, action, h, show, tell } from "./dom.js";
import { opened, saveJson, saveMarkdown } from "./files.js";
import { Images } from "./images.js";
import { ask, events, said } from "./stream.js";
import { AnswerView } from "./answer.js";
import { QuestionView } from "./question.js";

const NEAR = 80; // pixels from the end within which the view follows new text

export class Chat {
  #running = null; // the AbortController of the answer in progress
  #views = new Map();

  // settings: gives the body of a request. model: gives the model's name. refused: called with
  // the error of a request.
  constructor(settings, model, refused) {
    this.settings = settings;
    this.model = model;
    this.refused = refused;
    this.log = $("log");
    this.message = $("message");
    this.images = new Images((text) => tell($("problem"), text), () => this.#focus());
    this.conversation = new Conversation();
    this.#listen();
    this.#render();
    this.#showRunning(false);
  }

  ready() {
    tell($("problem"), "");
  }

  problem(error) {
    tell($("problem"), capital(said(error)) + ".");
  }

  // Called when the view is shown.
  shown() {
    this.#fit();
    this.#focus();
  }

  // -- actions of the user ------------------------------------------------------------------

  #listen() {
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    $("stop").addEventListener("click", () => this.#stop());
    $("new-chat").addEventListener("click", () => this.#clear());
    $("save-json").addEventListener("click", () => saveJson(this.conversation.messages));
    $("save-markdown").addEventListener("click", () => saveMarkdown(this.conversation.messages));
    $("open-chat").addEventListener("click", () => $("chat-file").click());
    $("chat-file").addEventListener("change", () => this.#open());
    this.message.addEventListener("input", () => this.#fit());
    this.message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#running !== null) this.#stop();
    });
  }

  #send() {
    const text = this.message.value.trim();
    if ((text === "" && this.images.isEmpty) || this.#running !== null) return;
    const request = this.#request();
    if (request === null) return;
    const images = this.images.take();
    this.message.value = "";
    this.#fit();
    this.conversation.add({ role: "user", text, images });
    this.#answer(request);
  }

  #stop() {
    this.#running?.abort();
    this.message.focus();
  }

  // Requests the answer again, with another seed unless the user chose one.
  #retry(answer) {
    const request = this.#request();
    if (request === null) return;
    this.conversation.cutAt(answer);
    this.#answer(request);
  }

  #edit(question, text) {
    const request = this.#request();
    if (request === null) return;
    this.conversation.cutAt(question);
    this.conversation.add({ role: "user", text, images: question.images ?? [] });
    this.#answer(request);
  }

  // Continues a cut answer: the same request with the same seed gives the same text.
  #resume(answer) {
    answer.state = "streaming";
    answer.error = "";
    answer.times = { first: null, last: null };
    this.#run(answer);
    this.#focus();
  }

  #giveResults() {
    const request = this.#request();
    if (request !== null) this.#answer(request);
  }

  #clear() {
    this.#stop();
    this.conversation.clear();
    this.images.clear();
    this.#render();
    this.message.focus();
  }

  async #open() {
    const [file] = $("chat-file").files;
    $("chat-file").value = "";
    if (file === undefined) return;
    tell($("problem"), "");
    try {
      const messages = await opened(file);
      this.#stop();
      this.conversation.replace(messages);
      this.#render();
    } catch (error) {
      tell($("problem"), `${capital(error.message)}.`);
    }
  }

  #request() {
    tell($("problem"), "");
    const request = this.settings.request();
    if (request === null) {
      tell($("problem"), "An option is not right: see Options.");
      $("options").open = true;
      this.settings.focusProblem();
    }
    return request;
  }

  // -- an answer ----------------------------------------------------------------------------

  #answer(request) {
    const answer = this.conversation.add(newAnswer(request));
    this.#render();
    this.#run(answer);
    this.#toEnd();
    this.#focus();
  }

  async #run(answer) {
    const controller = new AbortController();
    this.#running = controller;
    this.#showRunning(true);
    const view = this.#views.get(answer);
    view.update();
    const began = performance.now();
    try {
      await this.#read(answer, view, began, controller.signal);
      answer.state = "done";
    } catch (error) {
      const isStopped = controller.signal.aborted;
      const hasText = answer.choices.some((choice) => choice.text || choice.reasoning);
      answer.state = isStopped ? "stopped" : hasText ? "broken" : "failed";
      if (!isStopped) {
        answer.error = said(error);
        this.refused(error);
      }
    }
    this.#running = null;
    this.#showRunning(false);
    this.conversation.save();
    view.update();
    $("status").textContent = view.summary();
  }

  async #read(answer, view, began, signal) {
    const { system, ...request } = answer.request;
    const body = {
      ...request,
      model: this.model(),
      messages: this.conversation.before(answer, system),
      stream: true,
      stream_options: { include_usage: true },
    };
    const held = answer.choices;
    const again = held.map(newChoice);
    const response = await ask("v1/chat/completions", { body, signal });
    for await (const { choices, usage } of events(response)) {
      answer.usage = usage ?? answer.usage;
      for (const chunk of choices) {
        const { index } = chunk;
        take(again[index], chunk);
        if (answer.choices[index] === held[index] && hasCaughtUp(again[index], held[index])) {
          answer.choices = answer.choices.with(index, again[index]);
        }
      }
      answer.times.first ??= performance.now() - began;
      answer.times.last = performance.now() - began;
      this.conversation.save();
      view.changed();
    }
    answer.choices = again;
  }

  // -- display ------------------------------------------------------------------------------

  #render() {
    this.#views.clear();
    const last = this.conversation.messages.at(-1);
    for (const message of this.conversation.messages) {
      const view =
        message.role === "user"
          ? new QuestionView(message, (text) => this.#edit(message, text))
          : new AnswerView(message, {
              retry: () => this.#retry(message),
              resume: () => this.#resume(message),
              giveResults: () => this.#giveResults(),
              save: () => this.conversation.save(),
              changed: () => this.#follow(),
              isLast: message === last,
            });
      this.#views.set(message, view);
    }
    const views = [...this.#views.values()].map((view) => view.element);
    this.log.replaceChildren(...(views.length ? views : [this.#empty()]));
    for (const id of ["new-chat", "save-json", "save-markdown"]) show($(id), views.length > 0);
    this.#toEnd();
  }

  #empty() {
    const asked = ["Tell me a story about a fox.", "What is 2 plus 3?", "What is the capital of France?"];
    const use = (text) => () => {
      this.message.value = text;
      this.#fit();
      this.message.focus();
    };
    return h(
      "div",
      { class: "empty" },
      h("h2", {}, "Ask the model something"),
      h("p", {}, "Answers are shown while they are written. The conversation stays between this tab and ",
        "its server, and is forgotten when you close the tab."),
      h("p", { class: "row" }, asked.map((text) => action(text, use(text), { class: "action chip" }))),
    );
  }

  #showRunning(isRunning) {
    show($("send"), !isRunning);
    show($("stop"), isRunning);
    this.log.classList.toggle("running", isRunning);
    for (const button of this.log.querySelectorAll("button[data-asks]")) button.disabled = isRunning;
    if (isRunning) $("status").textContent = "The answer comes.";
  }

  // Does nothing on touch screens, where the focus would open a keyboard.
  #focus() {
    if (window.matchMedia("(hover: hover)").matches) this.message.focus();
  }

  #fit() {
    this.message.style.height = "auto";
    this.message.style.height = `${this.message.scrollHeight}px`;
  }

  #follow() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.#toEnd();
  }

  #toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
