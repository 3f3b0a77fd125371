/**
 * What part of a recording is shown: times, places on the axis, and marks on the ruler. No drawing.
 *
 * The axis has the recorded time; a gap in which nothing was recorded takes little room on it. A place is a number of ns
 * on the axis; without gaps it is the time.
 *
 * @typedef {{start: number, end: number}} Span
 */
import { valueAt } from "./arrays.js";

/** The room of a gap on the axis, as a part of the recorded time. */
const GAP_SHARE = 0.015;

/** The shortest span that is shown, in ns. */
const SHORTEST = 50;

export class Axis {
  /** @type {{time: number, place: number, scale: number}[]} */
  #pieces = [];

  /**
   * @param {Span} extent of the recording, in ns
   * @param {readonly (readonly [number, number])[]} gaps in which nothing was recorded, by start, disjoint
   */
  constructor(extent, gaps) {
    /** @type {Span[]} */
    this.gaps = gaps
      .map(([start, end]) => ({ start: Math.max(start, extent.start), end: Math.min(end, extent.end) }))
      .filter(({ start, end }) => end > start);
    const missing = this.gaps.reduce((sum, { start, end }) => sum + end - start, 0);
    const room = Math.max(1, (extent.end - extent.start - missing) * GAP_SHARE);
    let place = extent.start;
    let time = extent.start;
    for (const { start, end } of this.gaps) {
      this.#pieces.push({ time, place, scale: 1 });
      place += start - time;
      const shown = Math.min(room, end - start);
      this.#pieces.push({ time: start, place, scale: shown / (end - start) });
      place += shown;
      time = end;
    }
    this.#pieces.push({ time, place, scale: 1 });
    this.extent = extent;
    /** @type {Span} */
    this.limits = { start: extent.start, end: Math.max(extent.start + SHORTEST, place + extent.end - time) };
  }

  /** @param {number} time */
  toPlace(time) {
    const piece = this.#find("time", time);
    return piece.place + (time - piece.time) * piece.scale;
  }

  /** @param {number} place */
  toTime(place) {
    const piece = this.#find("place", place);
    return piece.time + (place - piece.place) / piece.scale;
  }

  /**
   * Replaces times by places.
   * @param {Float64Array} times
   */
  placeAll(times) {
    if (this.gaps.length > 0) {
      times.forEach((time, index) => (times[index] = this.toPlace(time)));
    }
  }

  /**
   * @param {"time" | "place"} key
   * @param {number} value
   */
  #find(key, value) {
    let [low, high] = [0, this.#pieces.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (valueAt(this.#pieces, middle)[key] <= value) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return valueAt(this.#pieces, low);
  }
}

/**
 * Moves a span into the limits, and makes it neither longer than these nor too short.
 * @param {Span} span
 * @param {Span} limits
 * @returns {Span}
 */
export function clampSpan({ start, end }, limits) {
  const length = Math.min(Math.max(end - start, SHORTEST), limits.end - limits.start);
  const middle = (start + end) / 2;
  const first = Math.min(Math.max(middle - length / 2, limits.start), limits.end - length);
  return { start: first, end: first + length };
}

/**
 * Makes a span longer or shorter around a place that stays where it is.
 * @param {Span} span
 * @param {number} factor of its length: less than 1 shows more detail
 * @param {number} place
 * @param {Span} limits
 */
export function zoomSpan({ start, end }, factor, place, limits) {
  const length = Math.min(Math.max((end - start) * factor, SHORTEST), limits.end - limits.start);
  const share = (place - start) / (end - start);
  const first = place - share * length;
  return clampSpan({ start: first, end: first + length }, limits);
}

/**
 * @param {Span} span
 * @param {number} distance in ns
 * @param {Span} limits
 */
export function panSpan({ start, end }, distance, limits) {
  return clampSpan({ start: start + distance, end: end + distance }, limits);
}

/**
 * Returns the span around something that is to be seen whole, with a margin.
 * @param {Span} span
 * @param {Span} limits
 */
export function fitSpan({ start, end }, limits) {
  const margin = Math.max((end - start) * 0.1, SHORTEST / 2);
  return clampSpan({ start: start - margin, end: end + margin }, limits);
}

/**
 * Returns the marks on a ruler: places with the time and its text, none in a gap.
 * @param {Axis} axis
 * @param {Span} span of places
 * @param {number} most how many marks there is room for
 * @returns {{place: number, time: number, text: string}[]}
 */
export function makeTicks(axis, span, most) {
  const step = chooseStep((span.end - span.start) / Math.max(1, most));
  const [first, last] = [axis.toTime(span.start), axis.toTime(span.end)];
  const ticks = [];
  let time = Math.ceil(first / step) * step;
  let gap = 0;
  while (time <= last) {
    const skipped = axis.gaps[gap];
    if (skipped !== undefined && skipped.end <= time) {
      gap += 1;
    } else if (skipped !== undefined && skipped.start < time) {
      time = Math.ceil(skipped.end / step) * step;
    } else {
      ticks.push({ place: axis.toPlace(time), time, text: formatTick(time, step) });
      time += step;
    }
  }
  return ticks;
}

/**
 * Returns the next of 1, 2, 5, 10, 20, ... ns.
 * @param {number} least
 */
export function chooseStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return /** @type {number} */ ([1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999999));
}

/**
 * Writes a time with as many digits as neighboring marks differ in: `1.25 s`, and where these are many, what follows the
 * last whole millisecond or microsecond: `+250 us`.
 * @param {number} time in ns
 * @param {number} step
 */
export function formatTick(time, step) {
  const large = step >= 1e6 ? 0 : step >= 1e3 ? 1e6 : 1e3;
  const rest = large === 0 ? 0 : ((time % large) + large) % large;
  if (rest > 0) {
    return large === 1e6 ? `+${trimZeros(rest / 1e3, step / 1e3)} us` : `+${rest.toFixed(0)} ns`;
  }
  return time === 0 ? "0" : `${trimZeros(time / 1e9, Math.max(step, large) / 1e9)} s`;
}

/**
 * @param {number} value
 * @param {number} step
 */
function trimZeros(value, step) {
  return value.toFixed(Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
}

/**
 * Writes a time to the nanosecond, in groups of three digits: `1.306 223 934 s`.
 * @param {number} time in ns
 */
export function formatTime(time) {
  const whole = Math.abs(Math.round(time));
  const digits = String(whole % 1e9).padStart(9, "0");
  const seconds = String(Math.floor(whole / 1e9));
  return `${time < 0 ? "-" : ""}${seconds}.${digits.slice(0, 3)} ${digits.slice(3, 6)} ${digits.slice(6)} s`;
}
