// The view of a question, which the user can edit and send again.

import { action, h } from "./dom.js";
import { isImage, thumbnail } from "./images.js";

export class QuestionView {
  // edit: called with the new text.
  constructor(message, edit) {
    this.message = message;
    this.edit = edit;
    this.element = h("article", { class: "question", "aria-label": "You" });
    this.#read();
  }

  #read() {
    const { text, images = [], lost = 0 } = this.message;
    const shown = images.filter(isImage).map((url, i) => thumbnail(url, `Image ${i + 1}`));
    const start = action("Edit", () => this.#write(), { "data-asks": true });
    this.element.replaceChildren(...[
      shown.length ? h("div", { class: "images" }, shown) : null,
      lost ? h("p", { class: "note" }, `${lost} of its images were too large to be kept here.`) : null,
      text ? h("p", { class: "said" }, text) : null,
      h("div", { class: "row actions" }, start),
    ].filter((one) => one !== null));
    return start;
  }

  #write() {
    const area = h("textarea", { "aria-label": "Your message", rows: 1 });
    area.value = this.message.text;
    const leave = () => this.#read().focus();
    const send = () => {
      const text = area.value.trim();
      if (text !== "" || this.message.images?.length) this.edit(text);
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
