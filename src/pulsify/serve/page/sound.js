// Sources (microphone, files, test frames) and sinks (players, recordings).

import {layout} from "./client.js";

const CHUNK = 0.02; // seconds per message
const BEFORE = 0.08; // seconds of sound buffered before a player starts

// ---- sources: start(onChunk, onEnd) -> stop(). A chunk is a Float32Array, one channel, at `rate`

/** The microphone without the browser's voice processing, which would change the model's input. */
export async function microphone() {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new Error("browsers allow the microphone only at localhost or over https (--tls-cert)");
  }
  const wanted = {channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false};
  // set up before the microphone opens, so that its first moments are not lost
  const context = await opened(new AudioContext({latencyHint: "interactive"}));
  const media = await navigator.mediaDevices.getUserMedia({audio: wanted}).catch(error => {
    context.close();
    const why = {NotAllowedError: "access to the microphone was denied", NotFoundError: "no microphone was found"};
    throw new Error(why[error.name] ?? `the microphone cannot be opened (${error.name})`);
  });
  const rate = context.sampleRate;
  return {
    rate,
    live: true,
    now: true, // recording starts before the stream is ready
    start(onChunk, onEnd) {
      const processorOptions = {size: Math.round(rate * CHUNK)};
      const tap = new AudioWorkletNode(context, "tap", {numberOfOutputs: 0, processorOptions});
      tap.port.onmessage = ({data}) => onChunk(data);
      const source = context.createMediaStreamSource(media);
      source.connect(tap);
      for (const track of media.getAudioTracks()) track.onended = onEnd;
      return () => {
        tap.port.onmessage = null;
        this.close();
      };
    },
    close() {
      for (const track of media.getTracks()) track.stop();
      if (context.state !== "closed") context.close();
    },
  };
}

/** A recording, in real time or as fast as possible. `ahead`: how much is waiting to be sent. */
export function recording({samples, rate}, fast, ahead = () => 0) {
  return {
    rate,
    live: !fast,
    seconds: samples.length / rate,
    start(onChunk, onEnd) {
      const size = Math.round(rate * CHUNK) * (fast ? 10 : 1), began = performance.now();
      let at = 0;
      const timer = setInterval(() => {
        const due = fast ? at + 5 * size : ((performance.now() - began) / 1000) * rate;
        while (at < samples.length && at < due && !(fast && ahead() > rate)) {
          onChunk(samples.subarray(at, (at += size)));
        }
        if (at >= samples.length) {
          clearInterval(timer);
          onEnd();
        }
      }, fast ? 5 : 10);
      return () => clearInterval(timer);
    },
    close() {},
  };
}

/** Frames for a model whose input is not audio: slow waves, different in each channel. */
export function waves(model, rate) {
  const chunk = model.pulse, lays = model.inputs.map(port => layout(port));
  return {
    rate,
    live: true,
    start(onChunk) {
      const began = performance.now();
      let at = 0;
      const timer = setInterval(() => {
        const due = ((performance.now() - began) / 1000) * rate;
        for (; at + chunk <= due; at += chunk) {
          model.inputs.forEach((port, i) => onChunk(...wave(port, lays[i], at, chunk, rate), i));
        }
      }, 10);
      return () => clearInterval(timer);
    },
    close() {},
  };
}

function wave(port, {outer, inner, dtype}, at, chunk, rate) {
  const [over, under] = port.rate.split("/").map(Number), each = over / (under ?? 1);
  const first = Math.ceil(at * each), frames = Math.ceil((at + chunk) * each) - first;
  const array = new TYPES[dtype](outer * frames * inner), big = dtype.endsWith("int64");
  for (let o = 0; o < outer; o++) {
    for (let t = 0; t < frames; t++) {
      for (let i = 0; i < inner; i++) {
        const channel = o * inner + i, seconds = (first + t) / each / rate;
        const value = 0.5 * Math.sin(2 * Math.PI * seconds * (0.2 + 0.13 * (channel % 7)) + channel);
        array[(o * frames + t) * inner + i] = big ? BigInt(Math.round(value)) : value;
      }
    }
  }
  return [array, frames];
}

export const TYPES = {
  float64: Float64Array, float32: Float32Array, float16: globalThis.Float16Array,
  int64: BigInt64Array, int32: Int32Array, int16: Int16Array, int8: Int8Array,
  uint64: BigUint64Array, uint32: Uint32Array, uint16: Uint16Array, uint8: Uint8Array, bool: Uint8Array,
};

// ---- files

/** Samples of a file, one channel. A .wav is read exactly; other files are decoded by the browser at the given rate. */
export async function decode(buffer, wanted) {
  const read = wav(buffer);
  if (read) return read;
  try {
    const audio = await new OfflineAudioContext(1, 1, wanted).decodeAudioData(buffer);
    const channels = Array.from({length: audio.numberOfChannels}, (_, i) => audio.getChannelData(i));
    return {samples: mixed(channels), rate: audio.sampleRate};
  } catch {
    throw new Error("this browser cannot decode any audio in this file");
  }
}

function mixed(channels) {
  if (channels.length === 1) return channels[0];
  const out = new Float32Array(channels[0].length);
  for (let i = 0; i < out.length; i++) {
    let sum = 0;
    for (const channel of channels) sum += channel[i];
    out[i] = sum / channels.length;
  }
  return out;
}

/** A RIFF file of 16, 24 or 32 bits or float32; null for any other. */
export function wav(buffer) {
  const view = new DataView(buffer);
  const name = at => (at + 4 <= view.byteLength ? String.fromCharCode(...new Uint8Array(buffer, at, 4)) : "");
  if (name(0) !== "RIFF" || name(8) !== "WAVE") return null;
  let format = null;
  for (let at = 12; at + 8 <= view.byteLength; ) {
    const size = view.getUint32(at + 4, true), start = at + 8;
    if (name(at) === "fmt " && size >= 16) {
      const code = view.getUint16(start, true);
      format = {
        code: code === 0xfffe && size >= 40 ? view.getUint16(start + 24, true) : code,
        channels: view.getUint16(start + 2, true),
        rate: view.getUint32(start + 4, true),
        bits: view.getUint16(start + 14, true),
      };
    } else if (name(at) === "data" && format) {
      return samplesOf(view, start, Math.min(size, view.byteLength - start), format);
    }
    at = start + size + (size & 1);
  }
  return null;
}

function samplesOf(view, start, size, {code, channels, rate, bits}) {
  const read = {
    "1/16": at => view.getInt16(at, true) / 32768,
    "1/24": at => ((view.getUint8(at + 2) << 24) | (view.getUint16(at, true) << 8)) / 2147483648,
    "1/32": at => view.getInt32(at, true) / 2147483648,
    "3/32": at => view.getFloat32(at, true),
  }[`${code}/${bits}`];
  if (!read || !channels || !rate) return null;
  const width = bits / 8, length = Math.floor(size / (width * channels)), rows = [];
  for (let c = 0; c < channels; c++) {
    const row = new Float32Array(length);
    for (let i = 0, at = start + c * width; i < length; i++, at += channels * width) row[i] = read(at);
    rows.push(row);
  }
  return {samples: mixed(rows), rate};
}

// ---- recordings and players

/** The newest samples, up to so many seconds. */
export class Tape {
  constructor(rate, most = 300) {
    this.rate = rate;
    this.length = 0;
    this._most = most * rate;
    this._chunks = [];
  }

  add(samples) {
    this._chunks.push(samples);
    this.length += samples.length;
    while (this.length - this._chunks[0].length > this._most) this.length -= this._chunks.shift().length;
  }

  /** A .wav file of float32, without rounding. */
  file() {
    const head = new DataView(new ArrayBuffer(44)), bytes = this.length * 4;
    const text = (at, word) => [...word].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
    text(0, "RIFF");
    head.setUint32(4, 36 + bytes, true);
    text(8, "WAVEfmt ");
    head.setUint32(16, 16, true);
    head.setUint16(20, 3, true);
    head.setUint16(22, 1, true);
    head.setUint32(24, this.rate, true);
    head.setUint32(28, this.rate * 4, true);
    head.setUint16(32, 4, true);
    head.setUint16(34, 32, true);
    text(36, "data");
    head.setUint32(40, bytes, true);
    return new Blob([head, ...this._chunks], {type: "audio/wav"});
  }
}

/** Plays chunks without gaps while they arrive in time. Create it in a click handler: phones require that. */
export class Player {
  constructor(rate, onError) {
    this._line = [];
    this._opening = this._open(rate).catch(onError);
  }

  async _open(rate) {
    this._context = await opened(new AudioContext({sampleRate: rate, latencyHint: "interactive"}));
    const options = {numberOfInputs: 0, outputChannelCount: [1], processorOptions: {before: Math.round(rate * BEFORE)}};
    this._node = new AudioWorkletNode(this._context, "player", options);
    this._node.port.onmessage = () => this.close();
    this._node.connect(this._context.destination);
    for (const each of this._line) this._node.port.postMessage(each);
  }

  push(samples) {
    this._node ? this._node.port.postMessage(samples) : this._line.push(samples);
  }

  /** End of the sound: the remaining chunks are played. */
  end() {
    this.push("end");
  }

  async close() {
    await this._opening;
    if (this._context && this._context.state !== "closed") await this._context.close();
  }
}

async function opened(context) {
  const running = context.resume(); // immediately, within the click
  await context.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
  await running;
  return context;
}
