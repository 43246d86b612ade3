// One run: input from its source through a stream, everything that is shown of it, and the latency measured.

import {Stream} from "./client.js";
import {Curves, Envelope, Spectrum} from "./series.js";
import {Player, TYPES, Tape} from "./sound.js";

const UNKNOWN = 25; // pulses per second, for a model whose rate is unknown
const LATELY = {frames: 5000, text: 30000}; // milliseconds over which latency is shown
const REMEMBERED = 60; // seconds of speech whose words may still come
const PEEK = 300;

/** Units of a model's time per second. */
export const clock = model => model.sample_rate ?? UNKNOWN * model.pulse;
const ratio = text => text.split("/").map(Number).reduce((a, b) => a / b);

export class Session {
  // listen(), peek(): the current choices. players: existing ones. on: state(name, why), text(added), ahead(text),
  // deaf(error), warning(message)
  constructor(model, source, token, {listen, peek, players, on}) {
    Object.assign(this, {model, source, listen, peek, on, _players: players});
    this.words = [];
    this.seen = []; // [when, milliseconds]
    this._sent = []; // [end in seconds, when]: when input was sent
    this._letters = []; // [letters, when]: text that arrived, not yet known as words
    this._until = 0; // seconds of output before the current message
    this._covered = 0; // seconds of input whose output is known to be complete
    this._makeSeries();
    const sound = model.sound.input ? {format: "float32", rate: source.rate} : {};
    const opening = model.sound.output ? {...sound, output: {format: "float32"}} : sound;
    this.stream = new Stream(model, token, opening, {
      state: (state, why) => this._state(state, why),
      ready: facts => (this.facts = facts),
      frames: (at, body, lay) => this._frames(at, body, lay),
      text: (added, words) => this._text(added, words),
      peek: (message, chunks) => this._peeked(message, chunks),
      warning: message => this.on.warning(message),
      covered: frames => (this._covered = Math.max(this._covered, frames / this._inRate)),
    });
    this._peeking = setInterval(() => this._peek(), PEEK);
    if (source.now) this._start();
  }

  _makeSeries() {
    const {model, source} = this;
    const sound = rate => ({wave: new Envelope(rate), spectrum: new Spectrum(rate), tape: new Tape(rate)});
    const curves = port => new Curves(port.name, channels(port), ratio(port.rate) * clock(model));
    this.in = model.sound.input ? sound(source.rate) : {curves: model.inputs.map(curves)};
    this.out = model.sound.output ? sound(model.sample_rate) : {curves: [], values: {}};
    if (model.kind === "text" || model.sound.output) return;
    this.out.curves = model.outputs.map(port => (port.axis === null ? null : curves(port)));
  }

  // ---- input

  _start() {
    const chunk = (array, frames, input) => this._chunk(array, frames, input);
    this._stopSource = this.source.start(chunk, () => this.stop());
  }

  _chunk(array, frames = array.length, input = 0) {
    if (this.in.wave) {
      this._hear("in", array);
    } else {
      const lay = this.stream._in[input];
      this.in.curves[input].add(array, lay);
    }
    this.stream.send(array, frames, input);
    if (input) return;
    this._sent.push([this.inSeconds, performance.now()]);
    if (this.model.kind === "text" && this._sent[0][0] < this.inSeconds - REMEMBERED) this._sent.shift();
  }

  _hear(side, samples) {
    const {wave, spectrum, tape} = this[side];
    wave.add(samples);
    spectrum.add(samples);
    tape.add(samples);
    if (this.listen() === side) this._player(side)?.push(samples);
  }

  _player(side) {
    const tape = this[side]?.tape;
    return tape && (this._players[side] ??= new Player(tape.rate, this.on.deaf));
  }

  /** Another choice of what to listen to. */
  relisten() {
    for (const [side, player] of Object.entries(this._players)) {
      if (side === this.listen()) continue;
      player.close();
      delete this._players[side];
    }
    if (!this.over) this._player(this.listen());
  }

  /** End of input: the remaining output follows. */
  stop() {
    if (this.stream._flushed || this.over) return;
    this._stopSource?.();
    this.stream.flush();
  }

  abandon() {
    this._stopSource?.();
    this.stream.abandon();
  }

  // ---- output

  _state(state, why) {
    if (state === "live" && !this._stopSource) this._start();
    if (["done", "failed", "abandoned"].includes(state)) {
      clearInterval(this._peeking);
      this._stopSource?.();
      this.source.close();
      for (const player of Object.values(this._players)) state === "done" ? player.end() : player.close();
    }
    this.on.state(state, why);
  }

  _frames(at, body, lay) {
    const port = this.model.outputs[at], array = TYPES[lay.dtype] && new TYPES[lay.dtype](body);
    if (this.out.wave) this._hear("out", array);
    else if (port.axis === null) this.out.values[port.name] = array && Array.from(array, Number);
    else if (array) this.out.curves[at].add(array, lay);
    if (at !== this._timed) return;
    this._saw(this._until);
    this._until = this.outSeconds;
  }

  /** The first output with a time axis. */
  get _timed() {
    return this.model.outputs.findIndex(port => port.axis !== null);
  }

  /** The age of the oldest of the frames that arrived. */
  _saw(start) {
    while (this._sent.length > 1 && this._sent[0][0] <= start) this._sent.shift();
    if (!this._sent.length || !this.source.live) return;
    const [end, when] = this._sent[0], now = performance.now();
    this._measured(now - when + (end - start) * 1000);
  }

  _measured(milliseconds) {
    const now = performance.now();
    this.seen.push([now, milliseconds]);
    while (this.seen[0][0] < now - LATELY[this.model.kind]) this.seen.shift();
  }

  /** added: text; words: those known to be complete, with the seconds of sound at which they begin and end. */
  _text(added, words) {
    if (added) {
      this._letters.push([letters(added), performance.now()]);
      this.words.push({at: this.inSeconds, text: added.trim()});
      if (this.words.length > 500) this.words.shift();
      this.on.ahead("");
      this.on.text(added);
    }
    for (const word of words) this._spoken(word);
  }

  /** The time from a word's end to its last letters. */
  _spoken({word, end}) {
    let left = letters(word), arrived = null;
    while (left > 0 && this._letters.length) {
      const first = this._letters[0], count = Math.min(left, first[0]);
      left -= count;
      first[0] -= count;
      arrived = first[1];
      if (!first[0]) this._letters.shift();
    }
    const sent = this._sent.find(each => each[0] >= end);
    if (arrived === null || !sent || !this.source.live) return;
    this._measured(arrived - sent[1] + (sent[0] - end) * 1000);
  }

  _peek() {
    const whole = this.model.outputs.some(port => port.axis === null);
    if (this.stream.state === "live" && (this.model.kind === "text" ? this.peek() : whole)) this.stream.peek();
  }

  _peeked(message, chunks) {
    if (this.model.kind === "text") {
      this.on.ahead(this.peek() && !message.error ? message.text : "");
      return;
    }
    for (const [at, body] of chunks) {
      const {name, axis, dtype} = this.model.outputs[at];
      if (axis === null && TYPES[dtype]) this.out.values[name] = Array.from(new TYPES[dtype](body), Number);
    }
  }

  // ---- progress

  get over() {
    return this.stream.over;
  }

  get done() {
    return this.stream.state === "done";
  }

  get inSeconds() {
    return this.stream ? this.stream.given / this._inRate : 0;
  }

  get _inRate() {
    return this.model.sound.input ? this.source.rate : ratio(this.model.inputs[0].rate) * clock(this.model);
  }

  /** Seconds of input whose output may be missing: known for frames, for text from the server's answers. */
  get heldSeconds() {
    if (this.done) return 0;
    return this.inSeconds - (this.outSeconds ?? Math.max(0, this._covered - this.latency));
  }

  /** Seconds of output that arrived; null for text until the end. */
  get outSeconds() {
    const port = this.model.outputs[this._timed];
    if (!port || this.model.kind === "text") return this.done ? this.inSeconds : null;
    const have = this.stream.have[port.name];  // frames that the start lacks are none that wait
    return have && (have / ratio(port.rate) + (this.model.start_up ?? 0)) / clock(this.model);
  }

  get pulse() {
    return this.model.pulse_seconds ?? this.model.pulse / clock(this.model);
  }

  get latency() {
    return this.facts?.latency_seconds ?? this.model.latency_seconds ?? this.model.latency / clock(this.model);
  }

  /** The parts of the strip, oldest first: output received, in transit, model delay, next pulse. */
  get parts() {
    const now = this.inSeconds, out = this.outSeconds;
    if (this.done) return [{from: 0, to: now, kind: "out"}];
    if (out === null) {
      const there = this._covered, known = now - this.heldSeconds;
      return [
        {from: 0, to: known, kind: "out"},
        {from: known, to: there, kind: "held"},
        {from: there, to: now, kind: "way"},
      ];
    }
    const whole = Math.max(out, Math.floor(now / this.pulse + 1e-6) * this.pulse);
    const due = Math.min(whole, Math.max(out, whole - (this.latency - this.pulse)));
    return [
      {from: 0, to: out, kind: "out"},
      {from: out, to: due, kind: "way"},
      {from: due, to: whole, kind: "held"},
      {from: whole, to: now, kind: "fill"},
    ];
  }
}

const letters = text => [...text].filter(each => each.trim()).length;

function channels(port) {
  return port.dims.reduce((all, d, i) => all * (i !== port.axis && typeof d === "number" ? d : 1), 1);
}
