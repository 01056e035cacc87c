// The images of the next message: chosen, dropped or pasted, shown small, and removed again.

import { $, h, show } from "./dom.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

export class Images {
  #images = []; // {name, url}, a data URI each
  #isTaken = false;

  // problem: called with a text. focus: gives the message the focus.
  constructor(problem, focus) {
    this.problem = problem;
    this.focus = focus;
    this.list = $("images");
    $("add-images").addEventListener("click", () => $("image-files").click());
    $("image-files").addEventListener("change", () => {
      const files = [...$("image-files").files];
      $("image-files").value = "";
      this.#add(files);
    });
    $("message").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (files.length === 0 || !this.#isTaken) return;
      event.preventDefault();
      this.#add(files);
    });
    this.#listenToDrops($("chat-view"));
    this.#render();
  }

  // Called when the model is known. isTaken: it takes images.
  setTaken(isTaken) {
    this.#isTaken = isTaken;
    show($("add-images"), isTaken);
    if (!isTaken) this.clear();
  }

  get isEmpty() {
    return this.#images.length === 0;
  }

  // Returns the data URIs, and forgets them.
  take() {
    const urls = this.#images.map(({ url }) => url);
    this.clear();
    return urls;
  }

  clear() {
    this.#images = [];
    this.#render();
  }

  #listenToDrops(place) {
    const hasFiles = (event) => this.#isTaken && event.dataTransfer.types.includes("Files");
    place.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      place.classList.add("dropping");
    });
    place.addEventListener("dragleave", () => place.classList.remove("dropping"));
    place.addEventListener("drop", (event) => {
      place.classList.remove("dropping");
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.#add([...event.dataTransfer.files]);
    });
  }

  async #add(files) {
    this.problem("");
    for (const file of files) {
      if (!KINDS.includes(file.type)) {
        this.problem(`${file.name} is no PNG, JPEG, WebP, GIF or BMP image.`);
        continue;
      }
      try {
        this.#images.push({ name: file.name, url: await dataUri(file) });
      } catch {
        this.problem(`${file.name} cannot be read.`);
      }
    }
    this.#render();
    this.focus();
  }

  #remove(image) {
    this.#images = this.#images.filter((one) => one !== image);
    this.#render();
    this.focus();
  }

  #render() {
    const items = this.#images.map((image) => {
      const name = `Remove ${image.name}`;
      const remove = h("button", { type: "button", title: name, "aria-label": name, onclick: () => this.#remove(image) }, "\u00d7");
      return h("li", {}, thumbnail(image.url, image.name), remove);
    });
    this.list.replaceChildren(...items);
    show(this.list, items.length > 0);
  }
}

export const thumbnail = (url, name) => h("img", { class: "thumbnail", src: url, alt: name });

// Returns true for a data URI of an image, the only kind that the page shows and sends.
export const isImage = (url) => typeof url === "string" && /^data:image\/[a-z0-9.+-]+;base64,/.test(url);

function dataUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
