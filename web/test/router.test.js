import assert from "node:assert/strict";
import { test } from "node:test";

import { formatHash, formatPathKey, formatSpan, parseHash, parsePathKey, parseSpan } from "../src/router.js";

const NAMES = ["forward", "a/b", "100 %", "x=1&y=2", "#t=5,6", "</script>", "\u202egnirts", "äöü 漢字", "%2F", ""];

test("a path survives an address", () => {
  for (const name of NAMES) {
    const key = formatPathKey(["step", name]);
    const route = parseHash(formatHash({ tab: "ranges", range: key, t: formatSpan(1, 2) }));
    assert.deepEqual(parsePathKey(route.range ?? ""), ["step", name]);
    assert.equal(route.tab, "ranges");
    assert.deepEqual(parseSpan(route.t), { start: 1, end: 2 });
  }
});

test("half a character does not stop an address from being made", () => {
  assert.deepEqual(parsePathKey(formatPathKey(["a\ud800b"])), ["a\ufffdb"]);
});

test("keys without a value, and those of other tabs, are kept as they are", () => {
  assert.deepEqual(parseHash("#tab=memory&by=range&=x&y"), { tab: "memory", by: "range" });
  assert.equal(formatHash({ tab: "memory", range: undefined, t: "" }), "#tab=memory");
  assert.deepEqual(parseHash("#range=%E0%A4%A"), { range: "%E0%A4%A" });
  assert.deepEqual(parsePathKey("%E0%A4%A"), ["%E0%A4%A"]);
});

test("a span is a moment or two times", () => {
  assert.deepEqual(parseSpan("60111430336"), { start: 60111430336, end: null });
  assert.deepEqual(parseSpan("-5,7"), { start: -5, end: 7 });
  for (const text of [undefined, "", "a", "1,", "1,2,3", "1.5"]) {
    assert.equal(parseSpan(text), null, String(text));
  }
});
