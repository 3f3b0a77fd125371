/** How a total becomes another, cause by cause: the bars of a waterfall. */
import { formatCount, formatDuration } from "../format.js";
import { formatDifference } from "./values.js";

/** @typedef {{label: string, difference: number, detail?: string}} Cause */

/**
 * Returns the bars from one total to another: the causes, the largest first, and the smaller ones as one.
 * @param {{from: string, to: string, start: number, end: number, causes: Cause[], most: number}} whole the names of both
 *   totals and their times in ns; and how many causes have a bar of their own
 * @returns {import("./charts.js").Step[]}
 */
export function explainDifference({ from, to, start, end, causes, most }) {
  const ordered = [...causes].sort((one, other) => Math.abs(other.difference) - Math.abs(one.difference));
  const others = ordered.splice(most);
  if (others.length) {
    const difference = others.reduce((sum, one) => sum + one.difference, 0);
    ordered.push({ label: `${formatCount(others.length)} smaller causes`, difference });
  }
  let reached = start;
  const bars = ordered.map(({ label, difference, detail }) => {
    const begin = reached;
    reached += difference;
    /** @type {"more" | "less"} */
    const kind = difference > 0 ? "more" : "less";
    return { label, start: begin, end: reached, text: formatDifference(difference), kind, detail };
  });
  return [
    { label: from, start: 0, end: start, text: formatDuration(start), kind: "total" },
    ...bars,
    { label: to, start: 0, end, text: formatDuration(end), kind: "total" },
  ];
}
