// The page: sound or arrays in, plots and sound out. The stream itself is in worker.js, or live in the audio thread.

import { joined, size } from "./frames.js";
import { Plot, strip } from "./plots.js";
import { readNpy, writeNpy } from "./npy.js";

const at = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let numbers = 0, facts = null, run = null;

worker.onmessage = ({ data }) => {
  const { done, failed } = waiting.get(data.id);
  waiting.delete(data.id);
  data.error ? failed(new Error(data.error)) : done(data);
};
worker.onerror = (event) => say(`the worker failed: ${event.message}`, true);

function ask(kind, more = {}) {
  return new Promise((done, failed) => {
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

class Run {
  constructor() {
    this.results = Object.fromEntries(facts.outputs.map((o) => [o.name, []]));
    this.plots = { in: plots("in", facts.inputs), out: plots("out", facts.outputs) };
    this.stopped = false;
    this.frames = 0;
    this.spent = 0;
    this.queue = Promise.resolve();
  }

  async begin() {
    await ask("open");
    say("running");
    at("stop").disabled = false;
  }

  /** Chunks are taken in order, whatever the pace they come at. */
  push(chunks) {
    this.queue = this.queue.then(() => this.#take("push", chunks)).catch((error) => this.fail(error));
    return this.queue;
  }

  async end() {
    if (this.stopped) return;
    this.stopped = true;
    this.queue = this.queue.then(() => (this.live ? this.live.ended() : this.#take("flush")));
    try {
      await this.queue;
      say(`done: ${this.frames} frames in, ${this.spent.toFixed(0)} ms of work${this.#share()}`);
    } catch (error) { return this.fail(error); }
    at("stop").disabled = true;
    offer(this.results);
    document.body.dataset.state = "done";
  }

  fail(error) {
    this.stopped = true;
    at("stop").disabled = true;
    say(error.message, true);
    document.body.dataset.state = "failed";
  }

  async #take(kind, chunks) {
    this.show(chunks, await ask(kind, chunks ? { chunks } : {}));
  }

  /** What went in (nothing at the end), and what came out of it. */
  show(chunks, { made, held, ms }) {
    this.spent += ms;
    for (const i of chunks ? facts.inputs : []) {
      this.plots.in[i.name].add(chunks[i.name], i.axis);
      if (i === facts.inputs[0]) this.frames += chunks[i.name].shape[i.axis];
    }
    for (const o of facts.outputs) {
      if (!made[o.name]) continue;
      this.results[o.name].push(made[o.name]);
      this.plots.out[o.name].add(made[o.name], o.axis);
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
function offer(results) {
  window.results = {};
  for (const o of facts.outputs) {
    if (!results[o.name].length) continue;
    const whole = o.axis === null ? results[o.name].at(-1) : joined(results[o.name], o.axis);
    window.results[o.name] = { data: Array.from(whole.data, Number), shape: whole.shape };
    const box = run.plots.out[o.name].box;
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

// ---- sources

async function start(feed) {
  await run?.end();
  run = new Run();
  document.body.dataset.state = "running";
  try {
    await run.begin();
    await feed(run);
  } catch (error) { run.fail(error); }
}

const asSound = (samples, [port] = facts.inputs) => {
  return { [port.name]: { data: samples, shape: port.shape.map((n, a) => (a === port.axis ? samples.length : n)) } };
};

/** Through the model in the audio thread: the samples of a file, or what the microphone hears. */
async function live(run, sound) {
  if (sound && !sound.every(Number.isFinite)) throw new Error("the sound has a number that is not finite");
  const heard = sound ? null : await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const context = new AudioContext({ sampleRate: facts.sample_rate }), output = facts.outputs[0].name;
  const bytes = await (await fetch("stream.wasm")).arrayBuffer();
  await context.audioWorklet.addModule("worklet.js");
  const processorOptions = { bytes, facts, live: !sound };
  const node = new AudioWorkletNode(context, "stream", { outputChannelCount: [1], processorOptions });
  const speaker = new GainNode(context, { gain: Number(at("listen").checked) });
  at("listen").onchange = () => { speaker.gain.value = Number(at("listen").checked); };
  node.connect(speaker).connect(context.destination);
  let out = 0;
  const over = new Promise((done, failed) => {
    node.onprocessorerror = () => failed(new Error("the model failed in the audio thread"));
    node.port.onmessage = ({ data: { heard, made, ms, over, error } }) => {
      if (error) return failed(new Error(error));
      out += made.length;
      const held = { [output]: over ? 0 : run.frames + heard.length - out };
      run.show(asSound(heard), { made: asSound(made, facts.outputs), held, ms });
      if (over) done();
    };
  });
  over.catch((error) => run.fail(error));
  run.live = { ended: () => { node.port.postMessage({ end: true }); return over; } };
  const tail = facts.latency / facts.sample_rate + 0.3;  // seconds until the last sample is heard
  over.then(() => setTimeout(() => context.close(), 1000 * tail), () => context.close());
  if (sound) {
    node.port.postMessage({ sound });
    run.close = () => node.port.postMessage({ stop: true });
    return run.end();
  }
  context.createMediaStreamSource(heard).connect(node);
  run.close = async () => { await run.end(); heard.getTracks().forEach((t) => t.stop()); };
}

async function microphone(run) {
  const context = new AudioContext({ sampleRate: facts.sample_rate });
  const heard = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  await context.audioWorklet.addModule("capture.js");
  const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
  node.port.onmessage = ({ data }) => { if (!run.stopped) run.push(asSound(data)); };
  context.createMediaStreamSource(heard).connect(node);
  run.close = async () => { heard.getTracks().forEach((t) => t.stop()); await context.close(); };
}

/** Whole arrays, cut into pieces: as many frames as a tenth of a second has, or one pulse. */
async function pieces(run, arrays) {
  const [first] = facts.inputs;
  const units = Math.floor(arrays[first.name].shape[first.axis] / first.rate);
  const step = Math.max(Math.round((facts.sample_rate ?? 0) / first.rate / 10), facts.pulse);
  const { cut } = await import("./frames.js");
  const begun = performance.now();
  for (let n = 0; n < units && !run.stopped; n += step) {
    const till = Math.min(n + step, units), chunks = {};
    for (const i of facts.inputs) chunks[i.name] = cut(arrays[i.name], i.axis, n * i.rate, till * i.rate);
    await run.push(chunks);
    const due = facts.sample_rate && at("realtime").checked ? (till * first.rate * 1000) / facts.sample_rate : 0;
    const early = due - (performance.now() - begun);
    if (early > 0) await new Promise((go) => setTimeout(go, early));
  }
  await run.end();
}

async function fromFile(run, file) {
  const blob = await file.arrayBuffer();
  if (file.name.endsWith(".npy")) {
    if (facts.inputs.length > 1) throw new Error("this model has several inputs; a .npy file holds one array");
    return pieces(run, { [facts.inputs[0].name]: readNpy(blob, facts.inputs[0].dtype) });
  }
  if (!facts.sample_rate || !isSound(facts.inputs[0])) throw new Error("this model takes no sound: give a .npy file");
  const sound = await new OfflineAudioContext(1, 1, facts.sample_rate).decodeAudioData(blob);
  const mean = new Float32Array(sound.length);
  for (let c = 0; c < sound.numberOfChannels; c++) {
    sound.getChannelData(c).forEach((x, k) => { mean[k] += x / sound.numberOfChannels; });
  }
  return inTime() ? live(run, mean) : pieces(run, asSound(mean));
}

/** Does a file go through the audio thread? */
const inTime = () => facts.live && at("realtime").checked;

function noise(run) {
  const arrays = {};
  const units = facts.sample_rate ? Math.round(facts.sample_rate / facts.inputs[0].rate) : 20 * facts.pulse;
  for (const i of facts.inputs) {
    const shape = i.shape.map((n, a) => (a === i.axis ? units * i.rate : n));
    const data = Float32Array.from({ length: size(shape) }, () => (Math.random() - 0.5) * 0.2);
    if (i.dtype !== "float32") throw new Error(`there is no noise of type ${i.dtype}: give a .npy file`);
    arrays[i.name] = { data, shape };
  }
  return pieces(run, arrays);
}

at("microphone").onclick = () => start(facts.live ? live : microphone);
at("noise").onclick = () => start(noise);
at("file").onchange = () => {
  const [file] = at("file").files;
  if (file) start((run) => fromFile(run, file));
  at("file").value = "";  // the same file again is a change too
};
at("stop").onclick = async () => { await run?.close?.(); await run?.end(); };

try {
  ({ facts } = await ask("open"));
  const ms = (frames) => (facts.sample_rate ? ` (${((frames * facts.inputs[0].rate * 1000) / facts.sample_rate).toFixed(1)} ms)` : "");
  const late = Math.max(0, ...facts.outputs.filter((o) => o.frames).map((o) => (o.delay * facts.pulse) / o.frames));
  at("about").textContent = `Pulses of ${facts.pulse} frames${ms(facts.pulse)}, ${Math.ceil(late)} frames late${ms(late)}.`;
  at("microphone").disabled = !facts.sample_rate || !isSound(facts.inputs[0]) || facts.inputs.length > 1;
  at("file").disabled = at("noise").disabled = false;
  at("listen-label").hidden = !facts.live;
  if (facts.live) at("about").textContent += ` Live, in the audio thread, sound comes out ${facts.latency} samples${ms(facts.latency)} after it came in.`;
  strip(at("time"), facts, {});
  document.body.dataset.state = "ready";
} catch (error) {
  at("about").textContent = `The model could not be opened: ${error.message}`;
  document.body.dataset.state = "failed";
}
