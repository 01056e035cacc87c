// Ended requests, one per row, with the times of waiting, of the prompt and of the output.

import { h, show } from "../dom.js";
import { duration, whole } from "./figures.js";

const GOOD = new Set(["stop", "length", "tool_calls", "scored", "embedded"]);

export class Timelines {
  #rows = new Map();

  constructor() {
    this.list = h("ol", { class: "requests" });
    this.empty = h("p", { class: "empty" }, "Requests appear here when they have ended. Send one, from the chat or with");
    this.empty.append(h("code", {}, `curl ${new URL("v1/chat/completions", document.baseURI)} ` +
      "-d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'"));
    this.scale = h("p", { class: "scale figure" });
    this.element = h("section", { class: "timelines", "aria-labelledby": "requests-title" },
      h("div", { class: "row spread" },
        h("h2", { id: "requests-title" }, "Requests"),
        h("p", { class: "legends" }, legend("queued", "queued"), legend("prefill", "prefill"), legend("decode", "decode")),
        this.scale),
      this.empty, this.list);
  }

  // requests: the latest first. now: on their clock.
  draw(requests, now) {
    show(this.empty, requests.length === 0);
    const longest = Math.max(...requests.map(({ total }) => total), 0);
    this.scale.textContent = requests.length ? `full width: ${duration(longest)}` : "";
    const rows = requests.map((request) => {
      const key = `${request.id} ${request.when}`;
      const row = this.#rows.get(key) ?? makeRow(request);
      row.bar.style.width = `${longest > 0 ? Math.max((100 * request.total) / longest, 0.4) : 0}%`;
      row.ago.textContent = `${duration(Math.max(now - request.when, 0), 0)} ago`;
      return [key, row];
    });
    this.#rows = new Map(rows);
    const elements = rows.map(([, { element }]) => element);
    const isSame = elements.length === this.list.children.length &&
      elements.every((element, i) => element === this.list.children[i]);
    if (!isSame) this.list.replaceChildren(...elements);
  }
}

const legend = (kind, name) => h("span", { class: "legend" }, h("i", { class: kind }), name);

function makeRow(request) {
  const { id, reason, prompt, cached, generated, queued, ttft, total, itl, slowest, tokens, preemptions } = request;
  const first = ttft ?? total;
  const decode = h("span", { class: "decode" }, tokens.map((n) => tick(n, Math.max(...tokens))));
  const parts = [
    [h("span", { class: "queued" }), Math.min(queued, first)],
    [h("span", { class: "prefill" }), Math.max(first - queued, 0)],
    [decode, Math.max(total - first, 0)],
  ];
  for (const [part, seconds] of parts) part.style.width = `${total > 0 ? (100 * seconds) / total : 0}%`;
  const bar = h("span", { class: "bar-line" }, parts.map(([part]) => part));
  const ago = h("span", { class: "figure muted ago" });
  const figures = [
    ["queued", duration(queued)],
    ["TTFT", ttft === null ? "–" : duration(ttft)],
    ["ITL", itl === null ? "–" : duration(itl)],
    ["slowest", slowest === null ? "–" : duration(slowest)],
    ["total", duration(total)],
    ["prompt", `${whole(prompt)}${cached ? ` (${whole(cached)} cached)` : ""}`],
    ["tokens", whole(generated)],
    ...(preemptions ? [["preempted", whole(preemptions)]] : []),
  ];
  const element = h("li", { class: "request" },
    h("span", { class: "figure id" }, `#${id}`),
    h("span", { class: GOOD.has(reason) ? "reason" : "reason bad" }, reason),
    ago,
    h("span", { class: "room", role: "img", "aria-label": `Time line of request ${id}` }, bar),
    h("dl", {}, figures.map(([name, figure]) => h("div", {}, h("dt", {}, name), h("dd", { class: "figure" }, figure)))));
  return { element, bar, ago };
}

// Returns a part of the time line, which is stronger the more tokens arrived in it.
function tick(n, most) {
  const element = h("i", {});
  element.style.opacity = n === 0 ? 0 : (0.35 + (0.65 * n) / most).toFixed(2);
  return element;
}
