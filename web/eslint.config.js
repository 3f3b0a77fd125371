import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  { files: ["src/**"], languageOptions: { globals: globals.browser } },
  { files: ["test/**", "*.js"], languageOptions: { globals: globals.node } },
  {
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "Names come from programs: set textContent." },
        { property: "outerHTML", message: "Names come from programs: set textContent." },
        { property: "insertAdjacentHTML", message: "Names come from programs: set textContent." },
      ],
    },
  },
];
