// The page: its two views, the choice of the model, light and dark, the key.

import { Chat } from "./chat.js";
import { $, h, show } from "./dom.js";
import { KeyDialog } from "./key.js";
import { MODEL, THEME, keep, recall } from "./kept.js";
import { Live } from "./live/live.js";
import { Settings } from "./settings.js";
import { ask } from "./stream.js";

const NEXT_THEME = { auto: "light", light: "dark", dark: "auto" };
const THEME_NAMES = { auto: "Auto", light: "Light", dark: "Dark" };

startTheme($("theme"));

const model = $("model");
const keyDialog = new KeyDialog(start);
const settings = new Settings($("settings"));
const chat = new Chat(settings, () => model.value, refused);
const live = new Live($("live-view"), () => model.value, refused);

let takingImages = new Set(); // names of models

model.addEventListener("change", () => {
  keep(MODEL, model.value);
  chat.images.setTaken(takingImages.has(model.value));
  live.restart();
});

// Called with every error of a request.
function refused(error) {
  if (error.status === 401) keyDialog.open();
}

async function start() {
  try {
    const { data } = await (await ask("v1/models")).json();
    model.replaceChildren(...data.map(({ id }) => h("option", { value: id }, id)));
    const before = recall(MODEL);
    if (data.some(({ id }) => id === before)) model.value = before;
    model.disabled = data.length < 2;
    takingImages = new Set(data.filter((one) => one.takes_images === true).map(({ id }) => id));
    chat.images.setTaken(takingImages.has(model.value));
    keyDialog.close();
    live.restart();
    chat.ready();
  } catch (error) {
    refused(error);
    if (error.status !== 401) chat.problem(error);
  }
}

function view() {
  const isLive = location.hash === "#live";
  show($("chat-view"), !isLive);
  show($("live-view"), isLive);
  for (const [id, isOn] of [["tab-chat", !isLive], ["tab-live", isLive]]) {
    if (isOn) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  document.title = isLive ? "pybatcher: live" : "pybatcher";
  live.setShown(isLive);
  if (!isLive) chat.shown();
}

window.addEventListener("hashchange", view);
const wide = window.matchMedia("(min-width: 70rem)");
const openWhereWide = () => ($("options").open = wide.matches);
wide.addEventListener("change", openWhereWide);
openWhereWide();
view();
start();

// Switches between light, dark and the colours of the system, which are the default.
function startTheme(button) {
  let theme = recall(THEME);
  if (!(theme in NEXT_THEME)) theme = "auto";
  const use = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = THEME_NAMES[theme];
    button.dataset.theme = theme;
    button.setAttribute("aria-label", `Colours: ${THEME_NAMES[theme]}`);
  };
  button.addEventListener("click", () => {
    theme = NEXT_THEME[theme];
    keep(THEME, theme);
    use();
  });
  use();
}
