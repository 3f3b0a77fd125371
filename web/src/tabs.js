/**
 * The tabs of each kind of page. A tab is built when it is first opened.
 *
 * @typedef {object} Page
 * @property {import("./router.js").Router} router
 * @property {any} report meta of the block `report`
 *
 * @typedef {object} Tab
 * @property {string} name as in the address
 * @property {string} title
 * @property {(container: HTMLElement, page: Page) => void | Promise<void>} mount fills the container
 */
import { mountOverview } from "./overview.js";

/** @type {Record<string, Tab[]>} */
export const TABS = {
  report: [{ name: "overview", title: "Overview", mount: mountOverview }],
};
