// Chunks of any size in, pulses for a step model, frames out: all of a stream that is not the model.
//
//   const stream = new Frames(facts, step)    facts: stream.json; step: async (inputs, length or null) => outputs
//   await stream.push({x: tensor})            the frames that are ready, by output: delays are left out
//   await stream.flush()                      the last ones, and outputs without frames; then the stream is over
//
// Calls queue: each begins when the one before it is over, whether or not it was awaited. A call that is refused
// takes nothing, and the next one is as if it had not been.
//
// A tensor is {data, shape}: a typed array, row by row, and its sizes. Names are any text, so tensors are kept in maps.

import { given, left, place, until } from "./framing.js";

const NEVER = Number.MAX_SAFE_INTEGER;  // the end of a stream that has not ended

export const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array,
  uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
};

const FUNCTIONS = {  // as numpy has them; numbers here are whole and far below 2^53
  add: (a, b) => a + b, multiply: (a, b) => a * b, floor_divide: (a, b) => Math.floor(a / b),
  mod: (a, b) => ((a % b) + b) % b, maximum: Math.max, minimum: Math.min, take: (list, at) => list[at],
  where: (c, a, b) => (c ? a : b), equal: (a, b) => a === b, less: (a, b) => a < b, greater: (a, b) => a > b,
  less_equal: (a, b) => a <= b, greater_equal: (a, b) => a >= b, logical_and: (a, b) => a && b,
  logical_or: (a, b) => a || b, float32: Math.fround, int64: Math.trunc,
};

export const size = (shape) => shape.reduce((a, b) => a * b, 1);
/** What an object holds itself: every object has a `constructor` and a `__proto__` from elsewhere. */
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
/** A port in words: 'x' takes float32 [1, 3, time]. */
export const wanted = ({ name, dtype, shape, axis }) => `'${name}' takes ${dtype} [${shape.map((n, a) => (a === axis ? "time" : n)).join(", ")}]`;
export const zeros = (dtype, shape) => ({ data: new ARRAYS[dtype](size(shape)), shape });

/** ["floor_divide", ["add", "S", 3], 4], S being the stream's length. */
export function evaluated(e, total) {
  if (Array.isArray(e) && typeof e[0] === "string") {
    const found = FUNCTIONS[e[0]](...e.slice(1).map((a) => evaluated(a, total)));
    // products of float32 are rounded where the model's runtime rounds them
    return e[0] === "multiply" && e.slice(1).every((a) => Array.isArray(a) && a[0] === "float32") ? Math.fround(found) : found;
  }
  return e === "S" ? total : e;
}

/** Frames [from, to) along an axis, as a tensor of its own. */
export function cut(tensor, axis, from, to) {
  const { data, shape } = tensor;
  const count = shape[axis], inner = size(shape.slice(axis + 1)), outer = size(shape.slice(0, axis));
  const frames = Math.max(to - from, 0);
  const out = new data.constructor(outer * frames * inner);
  for (let o = 0; o < outer && frames; o++) {
    const begin = (o * count + from) * inner;
    out.set(data.subarray(begin, begin + frames * inner), o * frames * inner);
  }
  return { data: out, shape: shape.map((n, a) => (a === axis ? frames : n)) };
}

/** Tensors one behind the other along an axis; where only one has frames, that one itself. */
export function joined(all, axis) {
  const parts = all.filter((p) => p.shape[axis]);
  if (parts.length <= 1) return parts[0] ?? all[0];
  const shape = parts[0].shape.slice();
  const inner = size(shape.slice(axis + 1)), outer = size(shape.slice(0, axis));
  shape[axis] = parts.reduce((sum, p) => sum + p.shape[axis], 0);
  const out = new parts[0].data.constructor(size(shape));
  let at = 0;
  for (let o = 0; o < outer; o++) {
    for (const p of parts) {
      const own = p.shape[axis] * inner;
      out.set(p.data.subarray(o * own, (o + 1) * own), at);
      at += own;
    }
  }
  return { data: out, shape };
}

function check(port, tensor) {
  const { data, shape } = tensor;
  if (!ArrayBuffer.isView(data) || !Array.isArray(shape)) throw new Error(`${wanted(port)}, given as {data: a typed array, shape}`);
  const fits = shape.length === port.shape.length && shape.every((n, a) => a === port.axis || n === port.shape[a]);
  if (!fits) throw new Error(`${wanted(port)}, got [${shape.join(", ")}]`);
  if (data.length !== size(shape)) throw new Error(`${wanted(port)}: [${shape.join(", ")}] needs ${size(shape)} numbers, there are ${data.length}`);
  if (!(data instanceof ARRAYS[port.dtype])) throw new Error(`${wanted(port)}, got a ${data.constructor.name}`);
  if (port.dtype.startsWith("float") && !data.every(Number.isFinite)) {
    throw new Error(`'${port.name}' has a number that is not finite; nothing was taken`);
  }
}

function refuseUnknown(tensors, ports, what) {
  for (const name of Object.keys(tensors)) {
    if (!ports.some((p) => p.name === name)) throw new Error(`no ${what} is called '${name}'`);
  }
}

/** The static inputs as the model has them, one by one: all of them are there, and fit. */
export function fixed(facts, statics) {
  refuseUnknown(statics, facts.statics, "static input");
  const missing = facts.statics.filter((s) => !own(statics, s.name));
  if (missing.length) {
    throw new Error(`static inputs are missing: ${missing.map(wanted).join("; ")}. Open the stream with them: opened({name: {data, shape}})`);
  }
  return facts.statics.map((s) => {
    check(s, statics[s.name]);
    return statics[s.name];
  });
}

export class Frames {
  constructor(facts, step) {
    this.facts = facts;
    this.step = step;
    this.inputs = facts.inputs;
    this.outputs = facts.outputs;
    this.waiting = new Map();
    this.fed = new Map();
    this.received = new Map();
    this.pulses = 0;
    this.over = false;
    this.broken = null;
    this.queue = Promise.resolve();
    for (const i of this.inputs) {
      this.waiting.set(i.name, zeros(i.dtype, this.#shape(i, i.ahead)));  // in front of the stream, at a phase
      this.fed.set(i.name, zeros(i.dtype, this.#shape(i, i.frames)));
      this.received.set(i.name, 0);
    }
  }

  /** The frames that these complete, by output. Inputs may come at their own pace. A refused chunk takes nothing. */
  async push(chunks) {
    refuseUnknown(chunks, this.inputs, "input");
    const taken = new Map();  // copies: its turn may come when the caller has written over them
    for (const i of this.inputs) {
      const chunk = own(chunks, i.name);
      if (!chunk) continue;
      check(i, chunk);
      taken.set(i.name, { data: chunk.data.slice(), shape: chunk.shape.slice() });
    }
    return this.#turn(() => this.#take(taken));
  }

  /** The rest. The model is told the length, and gets as many pulses of padding as its delays need. */
  async flush() {
    return this.#turn(() => this.#end());
  }

  /** Frames that went in and have not come out yet, by output: what is held back. */
  held() {
    const total = this.#total(), timed = this.outputs.filter((o) => o.frames);
    return Object.fromEntries(timed.map((o) => {
      const count = this.#count(o, total);
      return [o.name, count - given(this.pulses, o.frames, o.delay, count)];
    }));
  }

  /** After all calls before it, however those ended. */
  #turn(work) {
    const made = this.queue.then(work);
    this.queue = made.catch(() => {});
    return made;
  }

  #take(chunks) {
    this.#open();
    const then = (i) => this.received.get(i.name) + (chunks.get(i.name)?.shape[i.axis] ?? 0);
    if (Math.min(...this.inputs.map((i) => Math.floor(then(i) / i.rate))) > this.facts.most) {
      throw new Error(`no stream may be longer than ${this.facts.most} frames: end this one, begin another`);
    }
    for (const i of this.inputs) {
      const chunk = chunks.get(i.name);
      if (!chunk) continue;
      this.received.set(i.name, then(i));
      this.waiting.set(i.name, joined([this.waiting.get(i.name), chunk], i.axis));
    }
    return this.#run(this.#whole(), null);
  }

  async #end() {
    this.#open();
    const total = this.#total();
    if (this.inputs.some((i) => this.received.get(i.name) !== total * i.rate)) {
      const each = this.inputs.map((i) => `'${i.name}' ${this.received.get(i.name)}${i.rate === 1 ? "" : `, ${i.rate} a frame`}`);
      throw new Error(`the inputs have not the same length: ${each.join("; ")}`);
    }
    if (total && !evaluated(this.facts.takes, total)) {
      throw new Error(`${total} frames are no length this model takes: ${this.facts.lengths}`);
    }
    const needed = this.outputs.filter((o) => o.frames).map((o) => until(this.#count(o, total), o.frames, o.delay));
    const made = await this.#run(total ? left(this.pulses, Math.max(0, ...needed)) : 0, total);
    this.over = true;
    return made;
  }

  #open() {
    if (this.broken) throw new Error(`this stream broke off (${this.broken}): open another one`);
    if (this.over) throw new Error("this stream has been flushed: open another one");
  }

  async #run(pulses, total) {
    const parts = new Map(this.outputs.map((o) => [o.name, []]));
    for (let n = 0; n < pulses; n++) {
      const made = await this.#stepped(total);
      for (const o of this.outputs) {
        if (o.axis === null) {
          parts.set(o.name, total === null ? [] : [made[o.name]]);
          continue;
        }
        const end = total === null ? o.cap ?? NEVER : this.#count(o, total);
        const [from, to] = [0, end].map((frame) => place(frame, this.pulses, o.frames, o.delay, o.frames));
        parts.get(o.name).push(cut(made[o.name], o.axis, from, to));
      }
      this.pulses++;
    }
    const out = [];
    for (const o of this.outputs) {
      const found = parts.get(o.name);
      if (found.length) out.push([o.name, o.axis === null ? found[0] : joined(found, o.axis)]);
      else if (o.axis !== null) out.push([o.name, zeros(o.dtype, this.#shape(o, 0))]);
    }
    return Object.fromEntries(out);
  }

  /** A step that fails leaves states that nobody knows, and frames that nobody got: nothing right can follow. */
  async #stepped(total) {
    try {
      return await this.step(Object.fromEntries(this.inputs.map((i) => [i.name, this.#next(i)])), total);
    } catch (error) {
      this.broken = error.message ?? error;
      throw error;
    }
  }

  /** One pulse; behind the end zeros, or a whole number that was there: it may be an index. */
  #next(i) {
    const waiting = this.waiting.get(i.name), there = Math.min(waiting.shape[i.axis], i.frames);
    let head = cut(waiting, i.axis, 0, there);
    this.waiting.set(i.name, cut(waiting, i.axis, there, waiting.shape[i.axis]));
    if (!this.pulses && i.ahead && !i.dtype.startsWith("float")) {  // whole numbers may be indices: the first one
      const first = cut(head, i.axis, i.ahead, i.ahead + 1);
      head = joined([...Array(i.ahead).fill(first), cut(head, i.axis, i.ahead, there)], i.axis);
    }
    if (there < i.frames) {
      const from = there ? head : this.fed.get(i.name), count = from.shape[i.axis];
      const last = i.dtype.startsWith("float") ? zeros(i.dtype, this.#shape(i, 1)) : cut(from, i.axis, count - 1, count);
      head = joined([head, ...Array(i.frames - there).fill(last)], i.axis);
    }
    this.fed.set(i.name, head);
    return head;
  }

  #whole() {
    return Math.min(...this.inputs.map((i) => Math.floor(this.waiting.get(i.name).shape[i.axis] / i.frames)));
  }

  /** Frames that all inputs have. */
  #total() {
    return Math.min(...this.inputs.map((i) => Math.floor(this.received.get(i.name) / i.rate)));
  }

  #count(o, total) {
    return evaluated(o.count, total);
  }

  #shape(port, frames) {
    return port.shape.map((n, a) => (a === port.axis ? frames : n));
  }
}
