// The dialog that asks for a key if the server requires one.

import { $, show, tell } from "./dom.js";
import { KEY, keep, recall } from "./kept.js";
import { ask, said } from "./stream.js";

const UNKNOWN = "This key is not known here.";

export class KeyDialog {
  // used: called when a key was accepted.
  constructor(used) {
    this.used = used;
    this.dialog = $("key-dialog");
    $("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#use();
    });
    $("key-later").addEventListener("click", () => this.dialog.close());
    $("key").addEventListener("click", () => this.open());
    show($("key"), recall(KEY) !== null);
  }

  open() {
    show($("key"), true);
    if (this.dialog.open) return;
    $("key-value").value = "";
    tell($("key-problem"), "");
    this.dialog.showModal();
  }

  close() {
    if (this.dialog.open) this.dialog.close();
  }

  async #use() {
    const value = $("key-value").value.trim();
    if (value === "") return tell($("key-problem"), "Type the key first.");
    if (!/^[\x21-\x7e]+$/.test(value)) return tell($("key-problem"), UNKNOWN); // a header cannot contain it
    const before = recall(KEY);
    keep(KEY, value);
    try {
      await ask("v1/models");
    } catch (error) {
      keep(KEY, before);
      const isWrong = error.status === 401;
      const text = isWrong ? UNKNOWN : `Not now: ${said(error)}.`;
      return tell($("key-problem"), text);
    }
    this.close();
    return this.used();
  }
}
