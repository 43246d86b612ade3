// What runs the step: onnxruntime-web. Opened once, for any number of streams.

import * as ort from "./ort/ort.wasm.min.mjs";
import { WHOLE } from "./host.js";
import { opened } from "./stream.js";

ort.env.wasm.numThreads = 1;  // several need cross-origin isolation
ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
ort.env.logLevel = "error";

export async function engine(facts) {
  const url = new URL("./stream.onnx", import.meta.url).href;
  const session = await ort.InferenceSession.create(url).catch((error) => {
    throw new Error(`stream.onnx or what runs it (ort/) does not load; if files are missing, ${WHOLE}. ${error.message}`);
  });
  return (statics) => opened(ort, session, facts, statics);
}
