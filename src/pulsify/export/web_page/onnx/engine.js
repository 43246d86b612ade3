// What runs the step: onnxruntime-web. Opened once, for any number of streams in turn.

import * as ort from "./ort/ort.wasm.min.mjs";
import { opened } from "./stream.js";

ort.env.wasm.numThreads = 1;  // several need cross-origin isolation
ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
ort.env.logLevel = "error";

export async function engine(facts) {
  const session = await ort.InferenceSession.create(new URL("./stream.onnx", import.meta.url).href);
  return (statics) => opened(ort, session, facts, statics);
}
