// Storage in the browser: settings permanently, a conversation and a key until the tab is closed.
// A browser that stores nothing (a private window, a full store) is not an error.

const PREFIX = "pybatcher.";

export const KEY = "key";
export const CONVERSATION = "conversation";
export const SETTINGS = "settings";
export const THEME = "theme";
export const MODEL = "model";

const OF_TAB = new Set([KEY, CONVERSATION]);

const store = (name) => (OF_TAB.has(name) ? sessionStorage : localStorage);

// Names include the folder that the page is served from, so that two servers behind one host
// share nothing.
const full = (name) => PREFIX + new URL(".", document.baseURI).pathname + name;

export function recall(name) {
  try {
    return JSON.parse(store(name).getItem(full(name)));
  } catch {
    return null;
  }
}

// Returns whether the value was stored.
export function keep(name, value) {
  try {
    if (value === null) store(name).removeItem(full(name));
    else store(name).setItem(full(name), JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
