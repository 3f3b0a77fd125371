/**
 * The tabs of each kind of page. A tab is built when it is first opened.
 *
 * @typedef {object} Page
 * @property {import("./router.js").Router} router
 * @property {any} report meta of the block `report`
 * @property {(name: string) => boolean} hasTab
 *
 * @typedef {object} Tab
 * @property {string} name as in the address
 * @property {string} title
 * @property {(container: HTMLElement, page: Page) => void | Promise<void>} mount fills the container
 */
import { mountOverview } from "./overview.js";
import { mountAlignment, mountPartTable } from "./pages/alignment.js";
import { mountComparison, mountTables } from "./pages/comparison.js";
import { mountDiagnosis } from "./pages/diagnosis.js";
import { mountRanges } from "./pages/range.js";
import { mountApi, mountGaps, mountKernels, mountMemory, mountRequests, mountSteps, mountStreams } from "./pages/screens.js";
import { mountTimeline } from "./timeline/timeline.js";

/** @type {Record<string, Tab[]>} */
export const TABS = {
  report: [
    { name: "overview", title: "Overview", mount: mountOverview },
    { name: "timeline", title: "Timeline", mount: mountTimeline },
    { name: "ranges", title: "Ranges", mount: mountRanges },
    { name: "steps", title: "Steps", mount: mountSteps },
    { name: "gaps", title: "Gaps", mount: mountGaps },
    { name: "memory", title: "Memory", mount: mountMemory },
    { name: "kernels", title: "Kernels", mount: mountKernels },
    { name: "api", title: "API", mount: mountApi },
    { name: "streams", title: "Streams", mount: mountStreams },
    { name: "requests", title: "Requests", mount: mountRequests },
    { name: "diagnosis", title: "Diagnosis", mount: mountDiagnosis },
  ],
  comparison: [
    { name: "comparison", title: "Comparison", mount: mountComparison },
    { name: "kernels", title: "Kernels", mount: mountTables(["families", "kernels", "range_kernels"]) },
    { name: "copies", title: "Copies", mount: mountTables(["copies"]) },
    { name: "api", title: "API", mount: mountTables(["api"]) },
    { name: "gaps", title: "Gaps", mount: mountTables(["gaps"]) },
    { name: "findings", title: "Findings", mount: mountTables(["findings"]) },
  ],
  alignment: [
    { name: "alignment", title: "Alignment", mount: mountAlignment },
    { name: "kernels", title: "Kernels", mount: mountPartTable("kernels") },
    { name: "layers", title: "Layers", mount: mountPartTable("layers") },
    { name: "places", title: "Places", mount: mountPartTable("alignment") },
  ],
};
