/** The first screen: what was run, what it shows, and where the time goes. */
import { createElement } from "./dom.js";
import { formatCount, formatDuration } from "./format.js";
import { formatHash, formatPathKey } from "./router.js";
import { createTable } from "./table.js";

/**
 * @param {HTMLElement} container
 * @param {import("./tabs.js").Page} page
 */
export function mountOverview(container, { report }) {
  const table = createElement("div");
  container.replaceChildren(createElement("h2", {}, "Ranges"), table);
  createTable(table, {
    title: "ranges",
    rows: report.ranges,
    tree: { pathKey: "path" },
    columns: [
      {
        key: "name",
        title: "Range",
        align: "left",
        link: (row) => formatHash({ tab: "ranges", range: formatPathKey(row.path) }),
      },
      { key: "count", title: "Count", format: (value) => formatCount(value) },
      { key: "cpu_total_ns", title: "CPU total", format: formatDuration },
      { key: "cpu_p50_ns", title: "p50", format: formatDuration },
      { key: "cpu_p90_ns", title: "p90", format: formatDuration },
      { key: "cpu_p99_ns", title: "p99", format: formatDuration },
      { key: "gpu_busy_total_ns", title: "GPU busy", format: formatDuration },
    ],
  });
}
