// A stream on the model's own WebAssembly: all of its states lie in the module's memory.
//
// The module gives input(i), output(i), fixed(i): where port i lies; reset(); step(length or -1): a whole pulse;
// push(frames): up to a pulse, how many frames came out; flush(): the rest.

import { ARRAYS, Frames, fixed, size } from "./frames.js";

/** A port's place in the module's memory, as an array. */
export const room = (made, at, dtype, count) => new ARRAYS[dtype](made.memory.buffer, at, count);

/** A new stream, with an instance of the module to itself. statics: inputs that stay the same, all of them. */
export function opened(instance, facts, statics = {}) {
  const made = instance.exports;
  made._initialize();
  fixed(facts, statics).forEach((t, k) => room(made, made.fixed(k), facts.statics[k].dtype, t.data.length).set(t.data));
  made.reset();
  const ins = facts.inputs.map((i, k) => room(made, made.input(k), i.dtype, size(i.shape)));
  const outs = facts.outputs.map((o, k) => room(made, made.output(k), o.dtype, size(o.shape)));

  async function step(inputs, total) {
    facts.inputs.forEach((i, k) => ins[k].set(inputs[i.name].data));
    made.step(total ?? -1);
    return Object.fromEntries(facts.outputs.map((o, k) => [o.name, { data: outs[k].slice(), shape: [...o.shape] }]));
  }

  return new Frames(facts, step);
}
