// The model's own thread: one stream at a time. Messages come and are answered in order, each with its number.

import { engine } from "./engine.js";
import { fetched } from "./host.js";

let open = null, facts = null, stream = null, busy = Promise.resolve();

async function answer({ id, kind, chunks, statics }) {
  try {
    if (kind === "facts") {
      facts ??= await (await fetched("stream.json")).json();
      open ??= await engine(facts);
      return postMessage({ id, facts });
    }
    if (kind === "open") {
      stream = open(statics);
      return postMessage({ id });
    }
    const start = performance.now();
    const made = kind === "push" ? await stream.push(chunks) : await stream.flush();
    postMessage({ id, made, held: stream.held(), ms: performance.now() - start });
  } catch (error) {
    postMessage({ id, error: String(error.message ?? error) });
  }
}

onmessage = ({ data }) => { busy = busy.then(() => answer(data)); };
