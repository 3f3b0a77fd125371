/**
 * Light, dark, or as the system has it: `data-theme` of the document, remembered by the browser.
 * What draws by itself draws again at `themechange` of the window.
 */
import { createElement } from "./dom.js";

const KEY = "traceable-theme";
const THEMES = /** @type {const} */ ([["system", "Auto"], ["light", "Light"], ["dark", "Dark"]]);

/** The chosen theme, where the browser remembers none. */
let current = "system";

/** Returns the buttons that choose a theme, and applies the one that was chosen last. */
export function createThemeSwitch() {
  const buttons = THEMES.map(([theme, title]) =>
    createElement("button", { type: "button", click: () => apply(theme) }, title),
  );
  /** @param {string} chosen */
  const apply = (chosen) => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(THEMES[index]?.[0] === chosen)));
    remember(chosen);
    setTheme(chosen);
  };
  apply(recall());
  // Paper is white, whatever the screen is.
  addEventListener("beforeprint", () => setTheme("light"));
  addEventListener("afterprint", () => setTheme(recall()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
  return createElement("div", { class: "segmented theme", role: "group", "aria-label": "Theme" }, ...buttons);
}

/** @param {string} theme */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("themechange"));
}

// A browser may keep no data of pages that are opened from disk, and reports that as an exception.
function recall() {
  try {
    return localStorage.getItem(KEY) ?? current;
  } catch {
    return current;
  }
}

/** @param {string} theme */
function remember(theme) {
  current = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // The theme is applied, and forgotten with the page.
  }
}
