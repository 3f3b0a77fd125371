/**
 * Where each track is: rows from top to bottom, under a heading for each process.
 *
 * @typedef {import("./model.js").Track} Track
 * @typedef {import("./model.js").Counter} Counter
 * @typedef {import("./model.js").TimelineModel} TimelineModel
 *
 * @typedef {object} Row
 * @property {string} group the key of its group
 * @property {Track | Counter | null} item null for a heading
 * @property {string} title
 * @property {string} detail what else distinguishes it
 * @property {number} top
 * @property {number} height
 * @property {number} laneHeight
 */

const HEADING = 24;
const PADDING = 3;
const COUNTER = 40;
const MOST = 420;

/** What a name of two lines takes, as `timeline.css` has it for narrow windows. */
const TWO_LINES = 26;

/** Height of a lane where there are few, by kind. */
const LANE_HEIGHT = /** @type {Record<string, number>} */ ({ calls: 15, marks: 13, copies: 16, os_calls: 13, runs: 10, gil: 12, samples: 12 });

const TITLES = /** @type {Record<string, string>} */ ({
  steps: "Steps",
  requests: "Requests",
  ranges: "ranges",
  tasks: "Tasks",
  calls: "CUDA API",
  kernels: "kernels",
  copies: "copies",
  marks: "Marks",
  operators: "operators",
  python: "Python",
  os_calls: "OS calls",
  samples: "samples",
  runs: "on a CPU",
  gil: "GIL",
});

/** The order of the kinds within a process; what is of one thread or stream stays together. */
const ORDER = ["steps", "kernels", "copies", "ranges", "operators", "python", "calls", "os_calls", "gil", "runs", "samples", "tasks", "marks"];

/** What threads of any program do: only of interest beside what else they did. */
const BACKGROUND = new Set(["os_calls", "runs", "samples"]);

/**
 * Returns whether a track shows no more than what threads of any program do.
 * @param {Track | Counter} item
 */
export function isBackground(item) {
  return BACKGROUND.has(item.kind);
}

/**
 * Returns the rows that are shown, and their height together.
 * @param {TimelineModel} model
 * @param {ReadonlySet<string>} collapsed keys of groups
 * @param {boolean} [isNarrow] whether the name of a track has two lines
 * @returns {{rows: Row[], height: number}}
 */
export function makeLayout(model, collapsed, isNarrow = false) {
  /** @type {Row[]} */
  const rows = [];
  let top = 0;
  /** @param {Omit<Row, "top">} row */
  const add = (row) => {
    rows.push({ ...row, top });
    top += row.height;
  };
  for (const group of listGroups(model)) {
    add({ group: group.key, item: null, title: group.title, detail: "", height: HEADING, laneHeight: 0 });
    for (const item of collapsed.has(group.key) ? [] : group.items) {
      const { height, laneHeight } = measureItem(item);
      add({ group: group.key, item, ...describeItem(model, item), height: Math.max(height, isNarrow ? TWO_LINES : 0), laneHeight });
    }
  }
  return { rows, height: top };
}

/**
 * Returns the tracks by process, those with more than their threads' background first.
 * @param {TimelineModel} model
 * @returns {{key: string, title: string, items: (Track | Counter)[]}[]}
 */
export function listGroups(model) {
  const requests = model.tracks.filter(({ kind }) => kind === "requests");
  const groups = requests.length > 0 ? [{ key: "requests", title: "Requests", items: /** @type {(Track | Counter)[]} */ (requests) }] : [];
  const processes = model.meta.processes.map((/** @type {any} */ process, /** @type {number} */ index) => {
    const tracks = model.tracks.filter((track) => track.process === index);
    const threads = new Set(tracks.filter((track) => !isBackground(track)).map(({ thread }) => thread));
    tracks.sort((one, other) => comparePlaces(one, other, threads));
    const items = [...tracks, ...model.counters.filter((counter) => counter.process === index)];
    return { key: `process-${index}`, title: describeProcess(process), items };
  });
  /** @param {{items: (Track | Counter)[]}} group */
  const hasMore = ({ items }) => items.some((item) => !isBackground(item));
  groups.push(...processes.filter(hasMore));
  groups.push(...processes.filter((/** @type {any} */ group) => group.items.length > 0 && !hasMore(group)));
  return groups;
}

/**
 * @param {Track} one
 * @param {Track} other
 * @param {ReadonlySet<number | undefined>} threads those that come first
 */
function comparePlaces(one, other, threads) {
  const keys = [one, other].map((track) => [
    track.kind === "steps" ? 0 : track.stream !== undefined ? 1 : track.thread !== undefined ? 2 : 3,
    track.device ?? 0,
    track.stream ?? 0,
    threads.has(track.thread) ? 0 : 1,
    track.thread ?? 0,
    ORDER.indexOf(track.kind),
  ]);
  const place = keys[0]?.findIndex((value, index) => value !== keys[1]?.[index]) ?? -1;
  return place < 0 ? 0 : Number(keys[0]?.[place]) - Number(keys[1]?.[place]);
}

/** @param {{pid: number, name: string, rank: number | null, side: string | null}} process */
export function describeProcess({ pid, name, rank, side }) {
  // Traces of torch call a process by its rank already.
  const hasRank = rank === null || name.startsWith(`rank ${rank}`);
  const parts = [side, hasRank ? null : `rank ${rank}`, name || null, `pid ${pid}`];
  return parts.filter((part) => part !== null).join(" · ");
}

/** @param {Track | Counter} item */
function measureItem(item) {
  if (item.kind === "counter") {
    return { height: COUNTER, laneHeight: 0 };
  }
  const { lanes } = /** @type {Track} */ (item);
  const laneHeight = Math.max(2, Math.min(LANE_HEIGHT[item.kind] ?? 18, Math.floor(MOST / Math.max(1, lanes.length))));
  return { height: lanes.length * laneHeight + 2 * PADDING, laneHeight };
}

/**
 * Returns what a track is called.
 * @param {TimelineModel} model
 * @param {Track | Counter} item
 */
export function describeItem(model, item) {
  if (item.kind === "counter") {
    const { domain, name } = /** @type {Counter} */ (item);
    return { title: model.getName(name), detail: domain >= 0 ? model.getName(domain) : "" };
  }
  const track = /** @type {Track} */ (item);
  const kind = TITLES[track.kind] ?? track.kind;
  const gpu = track.device === undefined ? "" : `GPU ${track.device}`;
  if (track.stream !== undefined) {
    return { title: `${gpu} stream ${track.stream}`.trim(), detail: kind };
  }
  if (track.thread !== undefined) {
    const { tid, name } = model.meta.threads[track.thread];
    return { title: name ? `${name} ${tid}` : `Thread ${tid}`, detail: kind };
  }
  return { title: kind, detail: gpu };
}

/**
 * Returns the row at a height, and the lane of its track; null for none.
 * @param {readonly Row[]} rows
 * @param {number} y
 */
export function findRow(rows, y) {
  const row = rows.find(({ top, height }) => y >= top && y < top + height);
  if (row === undefined) {
    return null;
  }
  const depth = row.laneHeight > 0 ? Math.floor((y - row.top - PADDING) / row.laneHeight) : -1;
  const lane = row.item !== null && "lanes" in row.item ? (row.item.lanes[depth] ?? null) : null;
  return { row, lane };
}

/**
 * Returns where in its row a lane begins.
 * @param {Row} row
 * @param {number} depth
 */
export function topOfLane(row, depth) {
  return row.top + PADDING + depth * row.laneHeight;
}
