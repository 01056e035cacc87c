// The text of an answer. With log-probabilities it is split into tokens, which are coloured while
// the pointer or the focus is on the text.

import { h, show } from "./dom.js";

const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  return p >= 9.95 ? `${p.toFixed(0)} %` : p >= 0.095 ? `${p.toFixed(1)} %` : "< 0.1 %";
};

export class TokensView {
  #choice = null;
  #nTokens = 0;
  #shown = ""; // the displayed text
  #at = -1; // the marked token

  constructor(hasTokens) {
    this.hasTokens = hasTokens;
    this.text = h("p", { class: "said" });
    this.detail = h("div", { class: "detail" });
    this.element = h("div", {}, this.text, this.detail);
    show(this.detail, false);
    if (hasTokens) this.#listen();
  }

  show(choice) {
    if (choice !== this.#choice || !choice.text.startsWith(this.#shown)) this.#clear(choice);
    if (this.hasTokens && choice.tokens.length > 0) this.#addTokens(choice);
    else this.text.append(choice.text.slice(this.#shown.length));
    this.#shown = choice.text;
  }

  #clear(choice) {
    this.#choice = choice;
    this.#nTokens = 0;
    this.#shown = "";
    this.#at = -1;
    this.text.replaceChildren();
  }

  // The text of tokens can differ from the text of the answer if several tokens form one
  // character. A token then has all text up to the complete character.
  #addTokens({ text, tokens }) {
    let at = this.#shown.length;
    for (; this.#nTokens < tokens.length; this.#nTokens++) {
      const [token, logprob] = tokens[this.#nTokens];
      const own = text.startsWith(token, at) ? token : "";
      at += own.length;
      const element = h("span", { class: "token", "data-index": this.#nTokens }, own);
      element.style.setProperty("--doubt-of", (1 - Math.exp(logprob)).toFixed(3));
      this.text.append(element);
    }
    if (at < text.length) this.text.append(text.slice(at));
  }

  // -- one token ------------------------------------------------------------------------------

  #listen() {
    const { text } = this;
    text.classList.add("tokens");
    text.tabIndex = 0;
    text.setAttribute("role", "group");
    text.setAttribute("aria-label", "Answer; arrows go from token to token");
    this.detail.setAttribute("aria-live", "polite");
    text.addEventListener("pointerover", ({ target }) => {
      if (target.dataset.index !== undefined) this.#look(Number(target.dataset.index));
    });
    text.addEventListener("pointerleave", () => this.#look(-1));
    text.addEventListener("blur", () => this.#look(-1));
    text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step === undefined || this.#nTokens === 0) return;
      event.preventDefault();
      this.#look(Math.min(Math.max(this.#at + step, 0), this.#nTokens - 1));
    });
  }

  #look(index) {
    this.text.querySelector(".looked-at")?.classList.remove("looked-at");
    this.#at = index;
    show(this.detail, index >= 0);
    if (index < 0) return;
    this.text.querySelector(`[data-index="${index}"]`)?.classList.add("looked-at");
    const [token, logprob, top] = this.#choice.tokens[index];
    const all = top.some(([other]) => other === token) ? top : [[token, logprob], ...top];
    this.detail.replaceChildren(...all.map((one) => row(one, one[0] === token)));
  }
}

// Returns one of the likeliest tokens, with a bar for its probability.
function row([token, logprob], isTaken) {
  const bar = h("span", { class: "bar-of" });
  bar.style.width = `${(100 * Math.exp(logprob)).toFixed(1)}%`;
  return h(
    "div",
    { class: isTaken ? "likely taken" : "likely" },
    h("code", {}, JSON.stringify(token).slice(1, -1).replaceAll(" ", "\u2423") || "\u00a0"),
    h("span", { class: "bar-room" }, bar),
    h("span", { class: "figure" }, percent(logprob)),
  );
}
