// A stream on onnxruntime-web: the step with its states, which are tensors that are disposed once they are replaced.

import { Frames, fixed, zeros } from "./frames.js";

let busy = Promise.resolve();  // onnxruntime-web runs one step at a time: those of other streams wait

/** A new stream. session: opened once, for any number of streams. statics: inputs that stay the same, all of them. */
export function opened(ort, session, facts, statics = {}) {
  const tensor = (dtype, t) => new ort.Tensor(dtype, t.data, t.shape);
  const named = (ports, tensors) => ports.map((p, k) => [p.name, tensor(p.dtype, tensors[k])]);
  const still = named(facts.statics, fixed(facts, statics).map((t) => ({ data: t.data.slice(), shape: t.shape })));
  let states = new Map(named(facts.states, facts.states.map((s) => zeros(s.dtype, s.shape))));

  async function step(inputs, total) {
    const feeds = [...still, ...states, ...named(facts.inputs, facts.inputs.map((i) => inputs[i.name]))];
    if (facts.length) feeds.push([facts.length, new ort.Tensor("int32", Int32Array.of(total ?? facts.unknown_length), [1, 1])]);
    const turn = busy.then(() => session.run(Object.fromEntries(feeds)));
    busy = turn.catch(() => {});
    const made = await turn;
    const next = new Map(facts.states.map((s) => [s.name, made[s.after]]));
    const out = facts.outputs.map((o) => [o.name, { data: made[o.name].data.slice(), shape: [...made[o.name].dims] }]);
    const kept = new Set(next.values());
    for (const t of [...states.values(), ...Object.values(made)]) if (!kept.has(t)) t.dispose();
    states = next;
    return Object.fromEntries(out);
  }

  return new Frames(facts, step);
}
