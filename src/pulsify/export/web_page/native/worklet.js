// The whole model in the audio thread: sound in, sound out, a block of the browser's (128 samples) at a time.
//
// Sound comes from what is connected (live), or as a message ({ sound }) that is taken at the pace of time.
// A step takes a pulse, so blocks wait for one: `latency` samples of silence go first, and then nothing is missing.

import { room } from "./stream.js";

const TOLD = 16;  // blocks between messages to the page

class Stream extends AudioWorkletProcessor {
  constructor({ processorOptions: { bytes, facts, live } }) {
    super();
    const { exports: made } = new WebAssembly.Instance(new WebAssembly.Module(bytes));
    made._initialize();
    made.reset();
    this.made = made;
    this.facts = facts;
    this.pulse = facts.pulse;
    this.received = 0;
    this.silence = facts.latency;
    this.live = live;
    this.in = room(made, made.input(0), "float32", facts.pulse);
    this.out = room(made, made.output(0), "float32", facts.room);
    this.sound = new Float32Array(0);  // that was sent and waits for its time
    this.played = new Float32Array(facts.latency + facts.room + facts.pulse + 4096);  // a ring: made, not yet heard
    this.first = this.count = 0;
    this.told = { heard: [], made: [], ms: 0, blocks: 0 };
    this.begun = this.ending = this.over = false;
    this.port.onmessage = ({ data }) => {
      if (data.sound) this.sound = data.sound;
      if (data.stop) this.sound = new Float32Array(0);
      if (data.end || data.stop) this.ending = true;
    };
  }

  process([channels], [[speaker]]) {
    const start = Date.now();
    if (!this.over) {
      const heard = this.live ? mean(channels) : this.sound.subarray(0, speaker.length);
      if (!this.live) this.sound = this.sound.subarray(heard.length);
      if (heard.length) this.take(heard.slice());
      if (this.ending && !this.over && (this.live || !this.sound.length)) this.end();
      else if (this.told.blocks >= TOLD) this.tell({});
    }
    if (this.begun) this.play(speaker);
    this.told.ms += Date.now() - start;
    return !(this.over && !this.count);
  }

  /** Through the model, in pieces of at most a pulse. */
  take(heard) {
    this.begun = true;
    this.told.heard.push(heard);
    this.told.blocks++;
    for (let at = 0; at < heard.length; at += this.pulse) {
      const piece = heard.subarray(at, at + this.pulse);
      this.in.set(piece);
      const count = this.made.push(piece.length);
      if (count < 0) return this.fail(`no stream may be longer than ${this.facts.most} frames: end this one, begin another`);
      this.received += piece.length;
      this.keep(count);
    }
  }

  end() {
    const count = this.made.flush();
    if (count < 0) return this.fail(`${this.received} frames are no length this model takes: ${this.facts.lengths}`);
    this.keep(count);
    this.over = true;
    this.tell({ over: true });
  }

  /** The first frames that lie in the model's output. */
  keep(count) {
    const made = this.out.slice(0, count), size = this.played.length;
    this.told.made.push(made);
    for (let k = 0; k < count; k++) this.played[(this.first + this.count + k) % size] = made[k];
    this.count += count;
  }

  play(speaker) {
    let k = Math.min(this.silence, speaker.length);
    this.silence -= k;
    for (; k < speaker.length && this.count; k++, this.count--) {
      speaker[k] = this.played[this.first];
      this.first = (this.first + 1) % this.played.length;
    }
  }

  tell(more) {
    const heard = joined(this.told.heard), made = joined(this.told.made);
    this.port.postMessage({ heard, made, ms: this.told.ms, ...more }, [heard.buffer, made.buffer]);
    this.told = { heard: [], made: [], ms: 0, blocks: 0 };
  }

  fail(error) {
    this.over = true;
    this.port.postMessage({ error });
  }
}

function mean(channels) {
  if (!channels.length) return new Float32Array(0);
  const out = new Float32Array(channels[0].length);
  for (const channel of channels) for (let k = 0; k < out.length; k++) out[k] += channel[k] / channels.length;
  return out;
}

function joined(parts) {
  const out = new Float32Array(parts.reduce((sum, p) => sum + p.length, 0));
  let at = 0;
  for (const p of parts) { out.set(p, at); at += p.length; }
  return out;
}

registerProcessor("stream", Stream);
