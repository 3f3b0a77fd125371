/** Numbers as text, with the rounding of `traceable/units.py`: `web/test/format_cases.json` holds for both. */

const TIME_UNITS = /** @type {const} */ ([["s", 1e9], ["ms", 1e6], ["us", 1e3]]);
const SIZE_UNITS = /** @type {const} */ ([["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]);

/** What stands for an absent value. */
export const ABSENT = "–";

/**
 * Writes a time with four digits.
 * @param {number | null | undefined} ns
 */
export function formatDuration(ns) {
  if (ns === null || ns === undefined) {
    return ABSENT;
  }
  for (const [unit, size] of TIME_UNITS) {
    // What would round up to 1000 of a unit is 1 of the next.
    if (Math.abs(ns) >= size * 0.99995) {
      const value = ns / size;
      const digits = 3 - Math.min(3, countDigits(value * 1.00005) - 1);
      return `${toFixed(value, digits)} ${unit}`;
    }
  }
  return `${toFixed(ns, 0)} ns`;
}

/**
 * Writes a whole number with its thousands separated.
 * @param {number | null | undefined} number
 * @param {string} [one] the noun that it counts
 * @param {string} [many] its plural, where it is not `one` and an s
 */
export function formatCount(number, one = "", many = "") {
  if (number === null || number === undefined) {
    return ABSENT;
  }
  const noun = number === 1 ? one : many || `${one}s`;
  return String(number).replace(/\B(?=(\d{3})+$)/g, " ") + (one ? ` ${noun}` : "");
}

/**
 * Writes a fraction in percent.
 * @param {number | null | undefined} part
 */
export function formatPercent(part) {
  return part === null || part === undefined ? ABSENT : `${toFixed(part * 100, 1)} %`;
}

/**
 * Writes a number of bytes with four digits.
 * @param {number | null | undefined} number
 */
export function formatBytes(number) {
  if (number === null || number === undefined) {
    return ABSENT;
  }
  for (const [unit, size] of SIZE_UNITS) {
    if (Math.abs(number) >= size) {
      const value = number / size;
      return `${toFixed(value, Math.max(0, 4 - countDigits(value)))} ${unit}`;
    }
  }
  return `${toFixed(number, 0)} B`;
}

/** @param {number} value */
function countDigits(value) {
  return String(Math.trunc(Math.abs(value))).length;
}

/**
 * Rounds as Python does, where a value that lies exactly between two goes to the even one.
 * @param {number} value
 * @param {number} digits
 */
function toFixed(value, digits) {
  const scaled = Math.abs(value) * 10 ** digits;
  const below = Math.floor(scaled);
  const isTie = scaled - below === 0.5 && (below + 0.5) / 10 ** digits === Math.abs(value);
  const text = isTie && below % 2 === 0 ? (below / 10 ** digits).toFixed(digits) : Math.abs(value).toFixed(digits);
  return value < 0 ? `-${text}` : text;
}
