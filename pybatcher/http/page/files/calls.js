// Calls of tools that an answer makes, each with room for what the tool has given.

import { action, h, show } from "./dom.js";

export class CallsView {
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

// A call's arguments on lines of their own, once they are whole.
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
