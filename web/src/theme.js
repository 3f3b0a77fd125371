/** Light, dark, or as the system has it: `data-theme` of the document, remembered by the browser. */
import { createElement } from "./dom.js";

const KEY = "traceable-theme";
const THEMES = /** @type {const} */ ([["system", "Auto"], ["light", "Light"], ["dark", "Dark"]]);

/** Returns the buttons that choose a theme, and applies the one that was chosen last. */
export function createThemeSwitch() {
  const buttons = THEMES.map(([theme, title]) =>
    createElement("button", { type: "button", click: () => apply(theme) }, title),
  );
  /** @param {string} chosen */
  const apply = (chosen) => {
    document.documentElement.dataset.theme = chosen;
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(THEMES[index]?.[0] === chosen)));
    remember(chosen);
    dispatchEvent(new Event("themechange"));
  };
  apply(recall());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
  return createElement("div", { class: "segmented theme", role: "group", "aria-label": "Theme" }, ...buttons);
}

// A browser may keep no data of pages that are opened from disk, and reports that as an exception.
function recall() {
  try {
    return localStorage.getItem(KEY) ?? "system";
  } catch {
    return "system";
  }
}

/** @param {string} theme */
function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // The theme is applied, and not remembered.
  }
}
