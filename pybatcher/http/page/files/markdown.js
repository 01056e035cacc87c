// The text of an answer as Markdown. The parser returns tokens, and elements are made of them here,
// so that no text is ever parsed as HTML. HTML in an answer is shown as text, images are links.

import { action, h } from "./dom.js";
import MarkdownIt from "./vendor/markdown-it.js";

const MOST = 50_000; // characters of one block; a longer one is shown as plain text
const SURE = 16; // characters of a block that are no beginning of a further list item, as "12" is
const SHARE = 5; // a block that takes a millisecond to draw is drawn again after so many
const DEFINITION = /^ {0,3}\[[^\]\n]{1,999}\]:/m; // of the address of a link
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const TAGS = new Set([
  ...["p", "blockquote", "ul", "ol", "li", "hr", "br"],
  ...["table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s"],
]);

const parser = new MarkdownIt({ html: false, linkify: false, breaks: true, maxNesting: 40 });

// While an answer arrives, all blocks but the last are final: only the last one is parsed and drawn
// again, so that a long answer costs no more than a short one.
export class MarkdownView {
  #choice = null;
  #source = "";
  #settled = 0; // characters of the source whose elements are final
  #tail = []; // elements of the last block
  #isEnded = false;
  #next = 0; // the time before which an unfinished answer is not drawn

  constructor() {
    this.element = h("div", { class: "markdown" });
  }

  // isEnded: no more text arrives.
  show(choice, isEnded) {
    const { text } = choice;
    if (choice !== this.#choice || !text.startsWith(this.#source)) this.#clear(choice);
    const began = performance.now();
    const isSame = text.length === this.#source.length && isEnded === this.#isEnded;
    if (isSame || (!isEnded && began < this.#next)) return;
    this.#source = text;
    this.#isEnded = isEnded;
    this.#draw(text.slice(this.#settled));
    // The address of a link can be defined in another block than the link, and is then known only now.
    if (isEnded && this.#settled > 0 && DEFINITION.test(text)) {
      this.#settled = 0;
      this.element.replaceChildren();
      this.#draw(text, true);
    }
    const now = performance.now();
    this.#next = now + SHARE * (now - began);
  }

  #clear(choice) {
    this.#choice = choice;
    this.#source = "";
    this.#settled = 0;
    this.#tail = [];
    this.element.replaceChildren();
  }

  #draw(source, isWhole = false) {
    for (const element of this.#tail) element.remove();
    const tokens = parsed(source);
    const last = tokens?.findLastIndex(({ level, nesting }) => level === 0 && nesting >= 0) ?? 0;
    const start = startOf(source, tokens?.[last]);
    const isSure = source.length - start >= SURE && !isWhole;
    if (last > 0 && isSure) {
      this.#settled += start;
      this.element.append(built(tokens.slice(0, last)));
    }
    const isPlain = tokens === null || (isSure && source.length - start > MOST);
    const tail = isPlain ? h("p", { class: "said" }, source.slice(start)) : built(tokens.slice(isSure ? last : 0));
    this.#tail = isPlain ? [tail] : [...tail.childNodes];
    this.element.append(tail);
  }
}

// Returns the tokens of a text, or null for one that is too deep for the parser.
function parsed(source) {
  try {
    return parser.parse(source, {});
  } catch {
    return null;
  }
}

// Returns the index of the character at which a block begins.
function startOf(source, token) {
  let at = 0;
  for (let line = token?.map?.[0] ?? 0; line > 0; line--) {
    const end = /\r\n?|\n/g;
    end.lastIndex = at;
    if (end.exec(source) === null) return at;
    at = end.lastIndex;
  }
  return at;
}

function built(tokens) {
  const root = document.createDocumentFragment();
  const open = [root];
  for (const token of tokens) {
    if (token.hidden) continue;
    if (token.nesting < 0) open.pop();
    else {
      const element = made(token);
      open.at(-1).append(element);
      if (token.nesting > 0) open.push(element);
    }
  }
  return root;
}

function made(token) {
  const { type, tag, content, children, nesting } = token;
  if (type === "inline") return built(children);
  if (type === "fence" || type === "code_block") return block(content, token.info.trim().split(/\s/)[0]);
  if (type === "code_inline") return h("code", {}, content);
  if (type === "link_open") return link(token.attrGet("href"), []);
  if (type === "image") return link(token.attrGet("src"), [`Image: ${content || token.attrGet("src")}`]);
  if (type === "softbreak") return h("br");
  if (type === "heading_open") return h(`h${Math.min(Number(tag.slice(1)) + 2, 6)}`);
  if (!TAGS.has(tag)) return nesting > 0 ? h("span") : document.createTextNode(content);
  const start = tag === "ol" ? token.attrGet("start") : null;
  const align = /^text-align:(left|center|right)$/.exec(token.attrGet("style") ?? "")?.[1];
  return h(tag, { start, class: align === undefined ? null : `at-${align}` });
}

// Returns a link that opens another tab, or plain text for an address that is not of the web.
function link(address, content) {
  if (!URL.canParse(address) || !SCHEMES.has(new URL(address).protocol)) return h("span", {}, content);
  const properties = { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" };
  return h("a", properties, content);
}

function block(content, language) {
  const copy = action("Copy code", async () => {
    const isCopied = await navigator.clipboard?.writeText(content).then(() => true, () => false);
    copy.textContent = isCopied ? "Copied" : "Not allowed here";
    setTimeout(() => (copy.textContent = "Copy code"), 1500);
  });
  return h("div", { class: "code" },
    h("div", { class: "row spread" }, h("span", { class: "language" }, language.slice(0, 40)), copy),
    h("pre", { tabindex: 0 }, h("code", {}, content)));
}
