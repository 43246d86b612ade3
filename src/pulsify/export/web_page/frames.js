// Chunks of any size in, pulses for a step model, frames out: all of a stream that is not the model.
//
//   const stream = new Frames(facts, step)    facts: stream.json; step: async (inputs, length or null) => outputs
//   await stream.push({x: tensor})            the frames that are ready, by output: delays are left out
//   await stream.flush()                      the last ones, and outputs without frames; then the stream is over
//
// A tensor is {data, shape}: a typed array, row by row, and its sizes.

export const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array,
  uint16: Uint16Array, int32: Int32Array, int64: BigInt64Array, bool: Uint8Array,
};

const FUNCTIONS = {  // as numpy has them; numbers here are whole and far below 2^53
  add: (a, b) => a + b, multiply: (a, b) => a * b, floor_divide: (a, b) => Math.floor(a / b),
  mod: (a, b) => ((a % b) + b) % b, maximum: Math.max, minimum: Math.min, take: (list, at) => list[at],
  where: (c, a, b) => (c ? a : b), equal: (a, b) => a === b, less: (a, b) => a < b, greater: (a, b) => a > b,
  less_equal: (a, b) => a <= b, greater_equal: (a, b) => a >= b, logical_and: (a, b) => a && b,
  logical_or: (a, b) => a || b, float32: Math.fround, int64: Math.trunc,
};

export const size = (shape) => shape.reduce((a, b) => a * b, 1);
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

/** Tensors one behind the other along an axis. */
export function joined(parts, axis) {
  if (parts.length === 1) return parts[0];
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

export class Frames {
  constructor(facts, step) {
    this.facts = facts;
    this.step = step;
    this.inputs = facts.inputs;
    this.outputs = facts.outputs;
    this.waiting = {};
    this.fed = {};
    this.received = {};
    this.pulses = 0;
    this.over = false;
    for (const i of this.inputs) {
      this.waiting[i.name] = zeros(i.dtype, this.#shape(i, 0));
      this.fed[i.name] = zeros(i.dtype, this.#shape(i, i.frames));
      this.received[i.name] = 0;
    }
  }

  /** The frames that these complete, by output. Inputs may come at their own pace. A refused chunk takes nothing. */
  async push(chunks) {
    this.#open();
    for (const name of Object.keys(chunks)) {
      if (!this.inputs.some((i) => i.name === name)) throw new Error(`no input is called '${name}'`);
    }
    for (const i of this.inputs) this.#check(i, chunks[i.name]);
    const then = (i) => this.received[i.name] + (chunks[i.name] ? chunks[i.name].shape[i.axis] : 0);
    if (Math.min(...this.inputs.map((i) => Math.floor(then(i) / i.rate))) > this.facts.most) {
      throw new Error(`no stream may be longer than ${this.facts.most} frames: end this one, begin another`);
    }
    for (const i of this.inputs) {
      const chunk = chunks[i.name];
      if (!chunk) continue;
      this.received[i.name] += chunk.shape[i.axis];
      this.waiting[i.name] = joined([this.waiting[i.name], chunk], i.axis);
    }
    return this.#run(this.#whole(), null);
  }

  /** The rest. The model is told the length, and gets as many pulses of padding as its delays need. */
  async flush() {
    this.#open();
    const total = Math.min(...this.inputs.map((i) => Math.floor(this.received[i.name] / i.rate)));
    if (this.inputs.some((i) => this.received[i.name] !== total * i.rate)) {
      throw new Error(`the inputs have not the same length: ${JSON.stringify(this.received)}`);
    }
    if (total && !evaluated(this.facts.takes, total)) {
      throw new Error(`${total} frames are no length this model takes: ${this.facts.lengths}`);
    }
    const whole = this.#whole();
    const late = this.outputs.filter((o) => o.frames)
      .map((o) => Math.ceil((this.#count(o, total) + o.delay) / o.frames));
    const pulses = total ? whole + Math.max(1, Math.max(0, ...late) - this.pulses - whole) : 0;
    const made = await this.#run(pulses, total);
    this.over = true;
    return made;
  }

  /** Frames that went in and have not come out yet, by output: what is held back. */
  held() {
    const total = Math.min(...this.inputs.map((i) => Math.floor(this.received[i.name] / i.rate)));
    const out = {};
    for (const o of this.outputs) {
      if (o.frames) out[o.name] = this.#count(o, total) - Math.max(this.pulses * o.frames - o.delay, 0);
    }
    return out;
  }

  #open() {
    if (this.over) throw new Error("this stream has been flushed: open another one");
  }

  #check(i, chunk) {
    if (!chunk) return;
    const want = this.#shape(i, chunk.shape[i.axis]);
    if (chunk.shape.length !== want.length || want.some((n, a) => n !== chunk.shape[a]) || chunk.data.length !== size(want)) {
      throw new Error(`'${i.name}' takes [${i.shape.map((n, a) => (a === i.axis ? "time" : n))}], got [${chunk.shape}]`);
    }
    if (!(chunk.data instanceof ARRAYS[i.dtype])) throw new Error(`'${i.name}' takes ${i.dtype}`);
    if (i.dtype.startsWith("float") && !chunk.data.every(Number.isFinite)) {
      throw new Error(`'${i.name}' has a number that is not finite; nothing was taken`);
    }
  }

  async #run(pulses, total) {
    const parts = {};
    for (const o of this.outputs) parts[o.name] = [];
    for (let n = 0; n < pulses; n++) {
      const given = {};
      for (const i of this.inputs) given[i.name] = this.#next(i);
      const made = await this.step(given, total);
      for (const o of this.outputs) {
        if (o.axis === null) {
          parts[o.name] = total === null ? [] : [made[o.name]];
          continue;
        }
        const begin = this.pulses * o.frames - o.delay, end = total === null ? o.cap : this.#count(o, total);
        const till = end === null ? o.frames : Math.min(o.frames, end - begin);
        parts[o.name].push(cut(made[o.name], o.axis, Math.max(0, -begin), Math.max(till, 0)));
      }
      this.pulses++;
    }
    const out = {};
    for (const o of this.outputs) {
      if (parts[o.name].length) out[o.name] = o.axis === null ? parts[o.name][0] : joined(parts[o.name], o.axis);
      else if (o.axis !== null) out[o.name] = zeros(o.dtype, this.#shape(o, 0));
    }
    return out;
  }

  /** One pulse; behind the end zeros, or a whole number that was there: it may be an index. */
  #next(i) {
    const waiting = this.waiting[i.name], there = Math.min(waiting.shape[i.axis], i.frames);
    let head = cut(waiting, i.axis, 0, there);
    this.waiting[i.name] = cut(waiting, i.axis, there, waiting.shape[i.axis]);
    if (there < i.frames) {
      const from = there ? head : this.fed[i.name], count = from.shape[i.axis];
      const last = i.dtype.startsWith("float") ? zeros(i.dtype, this.#shape(i, 1)) : cut(from, i.axis, count - 1, count);
      head = joined([head, ...Array(i.frames - there).fill(last)], i.axis);
    }
    this.fed[i.name] = head;
    return head;
  }

  #whole() {
    return Math.min(...this.inputs.map((i) => Math.floor(this.waiting[i.name].shape[i.axis] / i.frames)));
  }

  #count(o, total) {
    return evaluated(o.count, total);
  }

  #shape(port, frames) {
    return port.shape.map((n, a) => (a === port.axis ? frames : n));
  }
}
