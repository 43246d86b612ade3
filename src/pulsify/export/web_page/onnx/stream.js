// A stream on onnxruntime-web: the step with its states, which are tensors that are disposed once they are replaced.

import { Frames, zeros } from "./frames.js";

/** A new stream. session: opened once, used by any number of streams in turn. statics: inputs that stay the same. */
export function opened(ort, session, facts, statics = {}) {
  const tensor = (dtype, t) => new ort.Tensor(dtype, t.data, t.shape);
  let states = {};
  for (const s of facts.states) states[s.name] = tensor(s.dtype, zeros(s.dtype, s.shape));
  const fixed = {};
  for (const [name, s] of Object.entries(facts.statics)) fixed[name] = tensor(s.dtype, statics[name] ?? zeros(s.dtype, s.shape));

  async function step(inputs, total) {
    const feeds = { ...fixed, ...states };
    for (const i of facts.inputs) feeds[i.name] = tensor(i.dtype, inputs[i.name]);
    if (facts.length) {
      feeds[facts.length] = new ort.Tensor("int32", Int32Array.of(total ?? facts.unknown_length), [1, 1]);
    }
    const made = await session.run(feeds);
    const next = {}, out = {};
    for (const s of facts.states) next[s.name] = made[s.after];
    for (const o of facts.outputs) out[o.name] = { data: made[o.name].data.slice(), shape: [...made[o.name].dims] };
    const kept = new Set(Object.values(next));
    for (const t of [...Object.values(states), ...Object.values(made)]) if (!kept.has(t)) t.dispose();
    states = next;
    return out;
  }

  return new Frames(facts, step);
}
