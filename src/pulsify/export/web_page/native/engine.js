// What runs the step: the model's own WebAssembly. Compiled once, for any number of streams in turn.

import { opened } from "./stream.js";

export async function engine(facts) {
  const bytes = await (await fetch(new URL("./stream.wasm", import.meta.url))).arrayBuffer();
  const module = await WebAssembly.compile(bytes);
  return (statics) => opened(new WebAssembly.Instance(module), facts, statics);
}
