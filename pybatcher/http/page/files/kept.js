// What the browser keeps: settings for good, a conversation and a key until the tab is closed.
// A browser that keeps nothing (a private window, a full store) is no error.

const PREFIX = "pybatcher.";

export const KEY = "key";
export const CONVERSATION = "conversation";
export const LIVE = "live";
export const SETTINGS = "settings";
export const THEME = "theme";
export const MODEL = "model";

const OF_TAB = new Set([KEY, CONVERSATION, LIVE]);

const store = (name) => (OF_TAB.has(name) ? sessionStorage : localStorage);

// Names are kept by the folder that the page is served from: two servers behind one host have
// nothing in common.
const full = (name) => PREFIX + new URL(".", document.baseURI).pathname + name;

export function recall(name) {
  try {
    return JSON.parse(store(name).getItem(full(name)));
  } catch {
    return null;
  }
}

// Returns whether there was room for it.
export function keep(name, value) {
  try {
    if (value === null) store(name).removeItem(full(name));
    else store(name).setItem(full(name), JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
