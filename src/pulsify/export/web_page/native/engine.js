// What runs the step: the model's own WebAssembly. Compiled once, for any number of streams.

import { fetched } from "./host.js";
import { opened } from "./stream.js";

export async function engine(facts) {
  const module = await WebAssembly.compile(await (await fetched("stream.wasm")).arrayBuffer());
  return (statics) => opened(new WebAssembly.Instance(module), facts, statics);
}
