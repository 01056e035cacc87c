// The view of a question, which the user can edit and send again.

import { action, h } from "./dom.js";

export class QuestionView {
  // edit: called with the new text.
  constructor(message, edit) {
    this.message = message;
    this.edit = edit;
    this.element = h("article", { class: "question", "aria-label": "You" });
    this.#read();
  }

  #read() {
    const start = action("Edit", () => this.#write(), { "data-asks": true });
    this.element.replaceChildren(
      h("p", { class: "said" }, this.message.text),
      h("div", { class: "row actions" }, start),
    );
    return start;
  }

  #write() {
    const area = h("textarea", { "aria-label": "Your message", rows: 1 });
    area.value = this.message.text;
    const leave = () => this.#read().focus();
    const send = () => {
      const text = area.value.trim();
      if (text !== "") this.edit(text);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    area.addEventListener("input", () => fit(area));
    this.element.replaceChildren(
      area,
      h("div", { class: "row actions" }, action("Send again", send), action("Cancel", leave)),
    );
    fit(area);
    area.focus();
  }
}

function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
