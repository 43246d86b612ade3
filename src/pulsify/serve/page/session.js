// One run: sound from its source through a stream, everything that is seen of it, and how late it was.

import {Stream} from "./client.js";
import {Curves, Envelope, Spectrum} from "./series.js";
import {Player, TYPES, Tape} from "./sound.js";

const NOBODY = 25; // pulses a second, for a model of which nobody said how fast its time is
const LATELY = 5000; // milliseconds over which latency is seen
const PEEK = 300;

/** Units of a model's time a second. */
export const clock = model => model.sample_rate ?? NOBODY * model.pulse;
const ratio = text => text.split("/").map(Number).reduce((a, b) => a / b);

export class Session {
  // listen(), peek(): what is chosen. players: those that were made already. on: state(name, why),
  // text(added), ahead(text), deaf(error), warning(message)
  constructor(model, source, token, {listen, peek, players, on}) {
    Object.assign(this, {model, source, listen, peek, on, _players: players});
    this.words = [];
    this.seen = []; // [when, milliseconds]
    this._sent = []; // [end in seconds, when]: what was said when
    this._until = 0; // seconds of output that were here before
    this._covered = 0; // seconds of input that the server is known to be through with
    this._makeSeries();
    const sound = model.sound.input ? {format: "float32", rate: source.rate} : {};
    const opening = model.sound.output ? {...sound, output: {format: "float32"}} : sound;
    this.stream = new Stream(model, token, opening, {
      state: (state, why) => this._state(state, why),
      ready: facts => (this.facts = facts),
      frames: (at, body, lay) => this._frames(at, body, lay),
      text: added => this._text(added),
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

  // ---- in

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
    if (!input) this._sent.push([this.inSeconds, performance.now()]);
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

  /** Somebody chose something else to listen to. */
  relisten() {
    for (const [side, player] of Object.entries(this._players)) {
      if (side === this.listen()) continue;
      player.close();
      delete this._players[side];
    }
    if (!this.over) this._player(this.listen());
  }

  /** No more goes in: the rest comes out. */
  stop() {
    if (this.stream._flushed || this.over) return;
    this._stopSource?.();
    this.stream.flush();
  }

  abandon() {
    this._stopSource?.();
    this.stream.abandon();
  }

  // ---- out

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

  /** The first output that has a time. */
  get _timed() {
    return this.model.outputs.findIndex(port => port.axis !== null);
  }

  /** How long ago the oldest of these frames was heard. */
  _saw(start) {
    while (this._sent.length > 1 && this._sent[0][0] <= start) this._sent.shift();
    if (!this._sent.length || !this.source.live) return;
    const [end, when] = this._sent[0], now = performance.now();
    this.seen.push([now, now - when + (end - start) * 1000]);
    while (this.seen[0][0] < now - LATELY) this.seen.shift();
  }

  _text(added) {
    this.words.push({at: this.inSeconds, text: added.trim()});
    if (this.words.length > 500) this.words.shift();
    this.on.ahead("");
    this.on.text(added);
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

  // ---- how it stands

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

  /** Up to where results may still be missing: of frames it is known, of a text the server's answers tell. */
  get heldSeconds() {
    if (this.done) return 0;
    return this.inSeconds - (this.outSeconds ?? Math.max(0, this._covered - this.latency));
  }

  /** Up to where in time results are here; of a text it is known at the end only. */
  get outSeconds() {
    const port = this.model.outputs[this._timed];
    if (!port || this.model.kind === "text") return this.done ? this.inSeconds : null;
    return this.stream.have[port.name] / (ratio(port.rate) * clock(this.model));
  }

  get pulse() {
    return this.model.pulse_seconds ?? this.model.pulse / clock(this.model);
  }

  get latency() {
    return this.facts?.latency_seconds ?? this.model.latency_seconds ?? this.model.latency / clock(this.model);
  }

  /** The parts of the strip, oldest first: what is out, on its way, held back by the model, not a whole pulse yet. */
  get parts() {
    const now = this.inSeconds, out = this.outSeconds;
    if (this.done) return [{from: 0, to: now, kind: "out"}];
    if (out === null) {
      const there = this._covered, told = now - this.heldSeconds;
      return [
        {from: 0, to: told, kind: "out"},
        {from: told, to: there, kind: "held"},
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

function channels(port) {
  return port.dims.reduce((all, d, i) => all * (i !== port.axis && typeof d === "number" ? d : 1), 1);
}
