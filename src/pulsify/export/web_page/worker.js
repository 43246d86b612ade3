// The model's own thread: one stream at a time. Messages come and are answered in order, each with its number.

import * as ort from "./ort/ort.wasm.min.mjs";
import { opened } from "./stream.js";

ort.env.wasm.numThreads = 1;  // several need cross-origin isolation
ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
ort.env.logLevel = "error";

let session = null, facts = null, stream = null, busy = Promise.resolve();

async function answer({ id, kind, chunks, statics }) {
  try {
    if (kind === "open") {
      facts ??= await (await fetch(new URL("./stream.json", import.meta.url))).json();
      session ??= await ort.InferenceSession.create(new URL("./stream.onnx", import.meta.url).href);
      stream = opened(ort, session, facts, statics);
      postMessage({ id, facts });
      return;
    }
    const start = performance.now();
    const made = kind === "push" ? await stream.push(chunks) : await stream.flush();
    postMessage({ id, made, held: stream.held(), ms: performance.now() - start });
  } catch (error) {
    postMessage({ id, error: String(error.message ?? error) });
  }
}

onmessage = ({ data }) => { busy = busy.then(() => answer(data)); };
