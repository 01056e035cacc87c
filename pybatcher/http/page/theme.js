// Light and dark: as the system has it, until somebody says otherwise.

import { THEME, keep, recall } from "./kept.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };

export function startTheme(button) {
  let theme = recall(THEME);
  if (!(theme in NEXT)) theme = "auto";
  const use = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
    button.dataset.theme = theme;
    button.setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    keep(THEME, theme);
    use();
  });
  use();
}
