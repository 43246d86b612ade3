// The page: sound or arrays in, plots and sound out. The stream itself is in worker.js, or live in the audio thread.

import { cut, joined, own, size, wanted } from "./frames.js";
import { WHOLE, fetched } from "./host.js";
import { Plot, strip } from "./plots.js";
import { readNpy, writeNpy } from "./npy.js";

const at = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let numbers = 0, facts = null, run = null, broken = null;

worker.onmessage = ({ data }) => {
  const { done, failed } = waiting.get(data.id);
  waiting.delete(data.id);
  data.error ? failed(new Error(data.error)) : done(data);
};
worker.onerror = ({ message }) => {  // without a message: it did not load
  broken = new Error(message ? `the worker failed: ${message}` : `worker.js, or a file that it needs, does not load: ${WHOLE}`);
  for (const { failed } of waiting.values()) failed(broken);
  waiting.clear();
};

function ask(kind, more = {}) {
  return new Promise((done, failed) => {
    if (broken) return failed(broken);
    waiting.set(++numbers, { done, failed });
    worker.postMessage({ id: numbers, kind, ...more });
  });
}

function say(text, bad = false) {
  at("status").textContent = text;
  at("status").classList.toggle("error", bad);
}

// ---- one run: a source of chunks through the stream

const isSound = (port) => port.shape.every((n, a) => a === port.axis || n === 1) && port.dtype === "float32";
const rateOf = (o) => { const [a, b = 1] = o.rate.split("/").map(Number); return (facts.sample_rate * a) / b / facts.inputs[0].rate; };

/** A promise, and what keeps it. */
function signal() {
  let set;
  const given = new Promise((done) => { set = done; });
  return { given, set };
}

/** From the start of a source to its end: all that belongs to it is closed before another one begins. */
class Run {
  constructor() {
    this.results = Object.fromEntries(facts.outputs.map((o) => [o.name, []]));
    this.stopping = signal();  // no more of the source; what it gave is computed to the end
    this.dropping = signal();  // another source was started: nothing of this one is wanted
    this.stopped = this.dropped = false;
    this.closing = [];
    this.live = false;
    this.frames = 0;
    this.spent = 0;
    this.queue = Promise.resolve();
  }

  /** feed: an async function of the run, which is over when its source is, or soon after the run is stopped. */
  begin(feed, before) {
    this.over = Promise.resolve(before?.drop()).then(() => this.dropped || this.#go(feed));
  }

  stop() {
    this.stopped = true;
    this.stopping.set();
    return this.over;
  }

  drop() {
    this.dropped = true;
    this.dropping.set();
    return this.stop();
  }

  async #go(feed) {
    this.plots = { in: plots("in", facts.inputs), out: plots("out", facts.outputs) };
    window.results = undefined;
    document.body.dataset.state = "running";
    say("running");
    at("stop").disabled = false;
    let state = "done";
    try {
      await ask("open", { statics: await given() });
      if (!this.stopped) await feed(this);
      await this.queue;
      if (!this.live && !this.dropped) await this.#take("flush");
      if (!this.dropped) offer(this);
      say(`done: ${this.frames} frames in, ${this.spent.toFixed(0)} ms of work${this.#share()}`);
    } catch (error) {
      say(error.message, true);
      state = "failed";
    }
    at("stop").disabled = true;
    for (const close of this.closing) close();
    if (!this.dropped) document.body.dataset.state = state;
  }

  /** Chunks are taken in order, whatever the pace they come at; the first that fails fails the run. */
  push(chunks) {
    this.queue = this.queue.then(() => this.dropped || this.#take("push", chunks));
    this.queue.catch(() => this.stop());
    return this.queue;
  }

  async #take(kind, chunks) {
    this.show(chunks, await ask(kind, chunks ? { chunks } : {}));
  }

  /** What went in (nothing at the end), and what came out of it. */
  show(chunks, { made, held, ms }) {
    if (this.dropped) return;
    this.spent += ms;
    for (const i of chunks ? facts.inputs : []) {
      this.plots.in[i.name].add(chunks[i.name], i.axis);
      if (i === facts.inputs[0]) this.frames += chunks[i.name].shape[i.axis];
    }
    for (const o of facts.outputs) {
      const part = own(made, o.name);
      if (!part) continue;
      this.results[o.name].push(part);
      this.plots.out[o.name].add(part, o.axis);
    }
    strip(at("time"), facts, held);
    if (chunks) say(`${this.frames} frames in, held back ${Object.values(held).join(", ") || 0}${this.#share()}`);
  }

  #share() {
    if (!facts.sample_rate || !this.frames) return "";
    return `, ${((this.spent / 10 / this.frames) * facts.sample_rate).toFixed(1)} % of real time`;
  }
}

function plots(where, ports) {
  at(where).replaceChildren();
  return Object.fromEntries(ports.map((port) => [port.name, new Plot(at(where), port)]));
}

/** What came out, to be heard and kept. The whole of it is also at `window.results`, for those who test. */
function offer({ results, plots }) {
  const all = [];
  for (const o of facts.outputs) {
    if (!results[o.name].length) continue;
    const whole = o.axis === null ? results[o.name].at(-1) : joined(results[o.name], o.axis);
    all.push([o.name, { data: Array.from(whole.data, Number), shape: whole.shape }]);
    const box = plots.out[o.name].box;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([writeNpy(whole, o.dtype)]));
    link.download = `${o.name}.npy`;
    link.textContent = `keep ${o.name}.npy`;
    box.append(link);
    if (o.axis !== null && facts.sample_rate && isSound(o) && Number.isInteger(rateOf(o)) && whole.data.length) {
      const sound = document.createElement("audio");
      sound.controls = true;
      sound.src = URL.createObjectURL(new Blob([wav(whole.data, rateOf(o))], { type: "audio/wav" }));
      sound.setAttribute("aria-label", `listen to ${o.name}`);
      box.append(sound);
    }
  }
  window.results = Object.fromEntries(all);
}

function wav(samples, rate) {
  const out = new DataView(new ArrayBuffer(44 + 4 * samples.length));
  const text = (where, what) => [...what].forEach((c, k) => out.setUint8(where + k, c.charCodeAt(0)));
  text(0, "RIFF"); out.setUint32(4, 36 + 4 * samples.length, true); text(8, "WAVEfmt ");
  out.setUint32(16, 16, true); out.setUint16(20, 3, true); out.setUint16(22, 1, true); out.setUint32(24, rate, true);
  out.setUint32(28, 4 * rate, true); out.setUint16(32, 4, true); out.setUint16(34, 32, true); text(36, "data");
  out.setUint32(40, 4 * samples.length, true);
  samples.forEach((x, k) => out.setFloat32(44 + 4 * k, x, true));
  return out.buffer;
}

// ---- files

const bytes = (file) => file.arrayBuffer().catch(() => {
  throw new Error(`${file.name} cannot be read; if it was written again since you chose it, choose it again`);
});

// ---- static inputs: a .npy file for each

/** A field for each, and what they hold, by name. */
function askStatics() {
  at("statics").hidden = !facts.statics.length;
  for (const s of facts.statics) {
    const label = document.createElement("label"), field = document.createElement("input");
    field.type = "file";
    field.accept = ".npy";
    label.append(`${wanted(s)}, the same all the time: a .npy file `, field);
    at("statics").append(label);
  }
}

async function given() {
  const fields = [...at("statics").querySelectorAll("input")], found = [];
  for (const [k, s] of facts.statics.entries()) {
    const [file] = fields[k].files;
    if (!file) throw new Error(`a static input is missing: ${wanted(s)}, give a .npy file above`);
    found.push([s.name, readNpy(await bytes(file), s)]);
  }
  return Object.fromEntries(found);
}

// ---- sources

function start(feed) {
  const before = run;
  run = new Run();
  run.begin(feed, before);
}

const asSound = (samples, [port] = facts.inputs) => {
  return { [port.name]: { data: samples, shape: port.shape.map((n, a) => (a === port.axis ? samples.length : n)) } };
};

/** What hears the microphone, or null if the run is stopped while the browser asks for it. */
async function listening(run) {
  if (!navigator.mediaDevices) throw new Error("browsers have a microphone only for pages of https or localhost");
  const asked = navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  run.closing.push(() => asked.then((heard) => heard.getTracks().forEach((t) => t.stop()), () => {}));
  return Promise.race([asked, run.stopping.given.then(() => null)]);
}

/** Through the model in the audio thread: the samples of a file, or what the microphone hears. */
async function live(run, sound) {
  if (sound && !sound.every(Number.isFinite)) throw new Error("the sound has a number that is not finite");
  run.live = true;
  const heard = sound ? null : await listening(run);
  if (!sound && !heard) return;
  const context = new AudioContext({ sampleRate: facts.sample_rate });
  let tail = 0;  // seconds until the last sample is heard
  run.closing.push(() => setTimeout(() => context.close(), run.dropped ? 0 : 1000 * tail));
  const code = await (await fetched("stream.wasm")).arrayBuffer();
  await context.audioWorklet.addModule("worklet.js");
  const processorOptions = { bytes: code, facts, live: !sound };
  const node = new AudioWorkletNode(context, "stream", { outputChannelCount: [1], processorOptions });
  const speaker = new GainNode(context, { gain: Number(at("listen").checked) });
  at("listen").onchange = () => { speaker.gain.value = Number(at("listen").checked); };
  node.connect(speaker).connect(context.destination);
  const over = told(run, node);
  if (sound) node.port.postMessage({ sound, end: true });
  else context.createMediaStreamSource(heard).connect(node);
  await Promise.race([over, run.stopping.given]);
  node.port.postMessage({ stop: true });
  await Promise.race([over, run.dropping.given]);
  tail = facts.latency / facts.sample_rate + 0.3;
}

/** What the audio thread tells is shown; over when it is. */
async function told(run, node) {
  const [output] = facts.outputs;
  let out = 0;
  return new Promise((done, failed) => {
    node.onprocessorerror = () => failed(new Error("the model failed in the audio thread"));
    node.port.onmessage = ({ data: { heard, made, ms, over, error } }) => {
      if (error) return failed(new Error(error));
      out += made.length;
      const held = { [output.name]: over ? 0 : run.frames + heard.length - out };
      run.show(asSound(heard), { made: asSound(made, facts.outputs), held, ms });
      if (over) done();
    };
  });
}

async function microphone(run) {
  const heard = await listening(run);
  if (!heard) return;
  const context = new AudioContext({ sampleRate: facts.sample_rate });
  run.closing.push(() => context.close());
  await context.audioWorklet.addModule("capture.js");
  const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
  node.port.onmessage = ({ data }) => { if (!run.stopped) run.push(asSound(data)); };
  context.createMediaStreamSource(heard).connect(node);
  await run.stopping.given;
}

/** Whole arrays, cut into pieces: as many frames as a tenth of a second has, or one pulse. */
async function pieces(run, arrays) {
  const [first] = facts.inputs;
  const units = Math.floor(arrays[first.name].shape[first.axis] / first.rate);
  const step = Math.max(Math.round((facts.sample_rate ?? 0) / first.rate / 10), facts.pulse);
  const begun = performance.now();
  for (let n = 0; n < units && !run.stopped; n += step) {
    const till = Math.min(n + step, units);
    await run.push(Object.fromEntries(facts.inputs.map((i) => [i.name, cut(arrays[i.name], i.axis, n * i.rate, till * i.rate)])));
    const due = facts.sample_rate && at("realtime").checked ? (till * first.rate * 1000) / facts.sample_rate : 0;
    const early = due - (performance.now() - begun);
    if (early > 0) await Promise.race([new Promise((go) => setTimeout(go, early)), run.stopping.given]);
  }
}

async function fromFile(run, file) {
  const blob = await bytes(file);
  const [port, ...others] = facts.inputs;
  if (others.length) {
    throw new Error(`this model has several inputs (${facts.inputs.map(wanted).join("; ")}), a file holds one: push them in code, docs/export.md`);
  }
  if (file.name.toLowerCase().endsWith(".npy")) return pieces(run, { [port.name]: readNpy(blob, port) });
  if (!isSound(port)) throw new Error(`${wanted(port)}, which is no sound: give a .npy file`);
  if (!facts.sample_rate) {
    throw new Error("nobody said how many samples a second this model takes: convert it with --sample-rate and export again, or give a .npy file");
  }
  const sound = await new OfflineAudioContext(1, 1, facts.sample_rate).decodeAudioData(blob).catch(() => {
    throw new Error(`${file.name} is no sound that this browser decodes: give a .wav or a .npy file`);
  });
  const mean = new Float32Array(sound.length);
  for (let c = 0; c < sound.numberOfChannels; c++) {
    sound.getChannelData(c).forEach((x, k) => { mean[k] += x / sound.numberOfChannels; });
  }
  return inTime() ? live(run, mean) : pieces(run, asSound(mean));
}

/** Does a file go through the audio thread? */
const inTime = () => facts.live && at("realtime").checked;

function noise(run) {
  const arrays = [];
  const units = facts.sample_rate ? Math.round(facts.sample_rate / facts.inputs[0].rate) : 20 * facts.pulse;
  for (const i of facts.inputs) {
    const shape = i.shape.map((n, a) => (a === i.axis ? units * i.rate : n));
    if (i.dtype !== "float32") throw new Error(`there is no noise of type ${i.dtype}: give a .npy file`);
    const data = Float32Array.from({ length: size(shape) }, () => (Math.random() - 0.5) * 0.2);
    arrays.push([i.name, { data, shape }]);
  }
  return pieces(run, Object.fromEntries(arrays));
}

at("microphone").onclick = () => start(facts.live ? live : microphone);
at("noise").onclick = () => start(noise);
at("file").onchange = () => {
  const [file] = at("file").files;
  if (file) start((run) => fromFile(run, file));
  at("file").value = "";  // the same file again is a change too
};
at("stop").onclick = () => run?.stop();

try {
  ({ facts } = await ask("facts"));
  const ms = (frames) => (facts.sample_rate ? ` (${((frames * facts.inputs[0].rate * 1000) / facts.sample_rate).toFixed(1)} ms)` : "");
  const late = Math.max(0, ...facts.outputs.filter((o) => o.frames).map((o) => o.late));
  at("about").textContent = `Pulses of ${facts.pulse} frames${ms(facts.pulse)}, ${Math.ceil(late)} frames late${ms(late)}.`;
  at("microphone").disabled = !facts.sample_rate || !isSound(facts.inputs[0]) || facts.inputs.length > 1;
  at("file").disabled = at("noise").disabled = false;
  at("listen-label").hidden = !facts.live;
  if (facts.live) at("about").textContent += ` Live, in the audio thread, sound comes out ${facts.latency} samples${ms(facts.latency)} after it came in.`;
  askStatics();
  strip(at("time"), facts, {});
  document.body.dataset.state = "ready";
} catch (error) {
  at("about").textContent = `The model could not be opened: ${error.message}`;
  document.body.dataset.state = "failed";
}
