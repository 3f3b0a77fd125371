import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { decodeBlock } from "../src/blocks.js";

/**
 * @param {object} header
 * @param {Buffer[]} columns
 */
function encodeBlock(header, columns = []) {
  const text = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(4);
  size.writeUInt32LE(text.length);
  const padded = [Buffer.concat([size, text]), ...columns].map((part) =>
    Buffer.concat([part, Buffer.alloc((8 - (part.length % 8)) % 8)]),
  );
  return gzipSync(Buffer.concat(padded)).toString("base64");
}

test("columns are decoded by their type, at any length of the header", async () => {
  for (const name of ["", "a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"]) {
    const bytes = Buffer.from([1, 2, 255]);
    const floats = Buffer.from(new Float64Array([0.5, NaN]).buffer);
    const block = await decodeBlock(
      encodeBlock(
        {
          meta: { name },
          columns: [
            { name: "bytes", dtype: "uint8", length: 3, offset: 0, size: 3 },
            { name: "floats", dtype: "float64", length: 2, offset: 8, size: 16 },
          ],
        },
        [bytes, floats],
      ),
    );
    assert.deepEqual(block.meta, { name });
    assert.deepEqual([...(block.columns.bytes ?? [])], [1, 2, 255]);
    assert.deepEqual([...(block.columns.floats ?? [])], [0.5, NaN]);
  }
});

test("differences are added to the first value, beyond 32 bits", async () => {
  const differences = Buffer.from(new Int32Array([0, 5, -3, 2147483647]).buffer);
  const column = { name: "times", dtype: "delta32", length: 4, offset: 0, size: 16, start: 2 ** 40 };
  const { columns } = await decodeBlock(encodeBlock({ meta: null, columns: [column] }, [differences]));
  assert.deepEqual([...(columns.times ?? [])], [2 ** 40, 2 ** 40 + 5, 2 ** 40 + 2, 2 ** 40 + 2 + 2147483647]);
});

test("names of any characters are text of the header", async () => {
  const meta = ["</script>", "\u202e", "x".repeat(100_000), "\u0000"];
  assert.deepEqual((await decodeBlock(encodeBlock({ meta, columns: [] }))).meta, meta);
});
