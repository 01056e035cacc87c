// Reads incomplete JSON as far as it has arrived.

// Returns {value, path}: the value so far, and the keys and indexes of the place that is being
// written; path is null once the text is complete. `value` is undefined if nothing has arrived.
// Invalid JSON is read up to its first error.
export function readPartial(text) {
  const reader = new Reader(text);
  const value = reader.value();
  return { value, path: reader.isCut ? reader.path : null };
}

const MOST_DEEP = 200;
const WORDS = { true: true, false: false, null: null };
const ESCAPES = { n: "\n", t: "\t", r: "\r", b: "\b", f: "\f" };

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.path = [];
    this.isCut = false;
  }

  value() {
    this.space();
    const c = this.text[this.at];
    if (c === undefined) return this.cut(undefined);
    if (this.path.length > MOST_DEEP) return this.cut(undefined);
    if (c === "{") return this.object();
    if (c === "[") return this.array();
    if (c === '"') return this.string();
    return this.word();
  }

  object() {
    const found = {};
    this.at++;
    for (let isFirst = true; ; isFirst = false) {
      if (this.ends("}", isFirst)) return found;
      if (this.isCut) return found;
      if (this.text[this.at] !== '"') return this.cut(found);
      const key = this.string();
      this.space();
      if (this.isCut || this.text[this.at] !== ":") return this.cut(found);
      this.at++;
      this.path.push(key);
      const value = this.value();
      if (value !== undefined) {
        Object.defineProperty(found, key, { value, enumerable: true, configurable: true, writable: true });
      }
      if (this.isCut) return found;
      this.path.pop();
    }
  }

  array() {
    const found = [];
    this.at++;
    for (let isFirst = true; ; isFirst = false) {
      if (this.ends("]", isFirst)) return found;
      if (this.isCut) return found;
      this.path.push(found.length);
      const value = this.value();
      if (value !== undefined) found.push(value);
      if (this.isCut) return found;
      this.path.pop();
    }
  }

  // Returns whether an object or array ends here; otherwise skips the comma before its next entry.
  ends(bracket, isFirst) {
    this.space();
    const c = this.text[this.at];
    if (c === bracket) {
      this.at++;
      return true;
    }
    if (c === undefined) this.cut();
    else if (!isFirst) {
      if (c === ",") this.at++;
      else this.cut();
      this.space();
    }
    return false;
  }

  string() {
    let found = "";
    for (this.at++; ; this.at++) {
      const c = this.text[this.at];
      if (c === undefined) return this.cut(found);
      if (c === '"') {
        this.at++;
        return found;
      }
      if (c !== "\\") {
        found += c;
        continue;
      }
      const escaped = this.text[++this.at];
      if (escaped === undefined) return this.cut(found);
      if (escaped !== "u") {
        found += ESCAPES[escaped] ?? escaped;
        continue;
      }
      const digits = this.text.slice(this.at + 1, this.at + 5);
      if (!/^[0-9a-fA-F]{4}$/.test(digits)) return this.cut(found);
      found += String.fromCharCode(parseInt(digits, 16));
      this.at += 4;
    }
  }

  // Reads a number, true, false or null. At the end of the text it may be incomplete.
  word() {
    const [word] = /^[-+.\w]*/.exec(this.text.slice(this.at));
    this.at += word.length;
    const isAtEnd = this.at === this.text.length;
    if (word in WORDS) return WORDS[word];
    if (isAtEnd && this.path.length > 0) this.isCut = true;
    const number = word === "" ? NaN : Number(word);
    if (Number.isNaN(number)) return this.cut(undefined);
    return number;
  }

  space() {
    while (/\s/.test(this.text[this.at] ?? "")) this.at++;
  }

  cut(value) {
    this.isCut = true;
    return value;
  }
}
