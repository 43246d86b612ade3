// A client of docs/serve.md: one stream over as many connections as needed. Input is kept until the server
// acknowledges it, output is counted, and after a lost connection the stream continues exactly. Independent of the page.

const KEPT = 48 << 20; // bytes of input that may wait for an acknowledgement
const AHEAD = 1 << 18; // bytes that may wait in the socket
const PIECE = 1 << 16; // bytes per message, if a chunk is larger
const PING = 2000;
const SILENCE = 9000; // milliseconds without an answer to a ping
const TRIES = [100, 300, 700, 1500, 3000, 5000]; // milliseconds between them; the last for ever
const WIDTH = {float64: 8, int64: 8, uint64: 8, float32: 4, int32: 4, uint32: 4}; // bytes per number
Object.assign(WIDTH, {float16: 2, int16: 2, uint16: 2, int8: 1, uint8: 1, bool: 1});

/** The layout of a port's frames in a message: [outer, frames, inner] of `width` bytes each. */
export function layout(port, sound) {
  if (sound) return {outer: 1, inner: 1, width: 4, dtype: "float32", channels: 1};
  const size = dims => dims.reduce((all, d) => all * (typeof d === "number" ? d : 1), 1);
  const axis = port.axis ?? port.dims.length;
  const outer = size(port.dims.slice(0, axis)), inner = size(port.dims.slice(axis + 1));
  return {outer, inner, width: WIDTH[port.dtype], dtype: port.dtype, channels: outer * inner};
}

export function headers(token) {
  return token ? {Authorization: `Bearer ${token}`} : {};
}

/** GET, as JSON or text; an Error with `status` if it is rejected. */
export async function get(path, token, as = "json") {
  const reply = await fetch(new URL(path, document.baseURI), {headers: headers(token), cache: "no-store"});
  if (!reply.ok) throw Object.assign(new Error(`${path}: ${reply.status}`), {status: reply.status});
  return reply[as]();
}

/** The figures of /metrics, by name and model. */
export async function load(token) {
  const out = {};
  for (const line of (await get("metrics", token, "text")).split("\n")) {
    const found = /^pulsify_(\w+)\{model="([^"]+)"\} (\S+)$/.exec(line);
    if (found) (out[found[1]] ??= {})[found[2]] = Number(found[3]);
  }
  return out;
}

export class Stream {
  // on: state(name, why), ready(facts), frames(output, bytes, layout), text(added, words), peek(message, chunks),
  // done(message), warning(message)
  // covered(frames): all output for so much of the input has arrived, or is in the next peek
  constructor(model, token, opening, on) {
    this.model = model;
    this.on = on;
    this.have = {};
    this.trips = []; // round trips in milliseconds
    this.resumed = 0;
    this.state = "connecting";
    this._access = token;
    this._opening = opening;
    this._token = null;
    this._kept = []; // chunks: input, start, frames, data
    this._bytes = 0;
    this._next = 0; // the first chunk to be sent
    this._given = model.inputs.map(() => 0);
    this._in = model.inputs.map(port => layout(port, opening.format));
    this._out = model.kind === "text" ? [] : model.outputs.map(port => layout(port, opening.output?.format));
    for (const port of model.outputs) if (port.axis !== null) this.have[port.name] = 0;
    this._failures = 0;
    this._online = () => this._timer && this._connect();
    addEventListener("online", this._online);
    this._connect();
  }

  // ---- calls

  /** Frames of an input, as a typed array; they are kept until the server has them in a snapshot. */
  send(array, frames, input = 0) {
    if (this._flushed || this.over) return;
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    const lay = this._in[input];
    const most = lay.outer === 1 ? Math.max(1, Math.floor(PIECE / (lay.inner * lay.width))) : frames;
    for (let at = 0; at < frames; at += most) {
      const count = Math.min(most, frames - at), size = lay.inner * lay.width;
      this._keep(input, count, lay.outer === 1 ? bytes.slice(at * size, (at + count) * size) : bytes.slice());
    }
    this._pump();
  }

  _keep(input, frames, data) {
    this._kept.push({input, start: this._given[input], frames, data});
    this._given[input] += frames;
    this._bytes += data.byteLength;
    while (this._bytes > KEPT && this._next > 0) this._forget();
    if (this._bytes > KEPT) this._end("failed", "too much input is waiting to be sent");
  }

  _forget() {
    this._bytes -= this._kept.shift().data.byteLength;
    this._next -= 1;
  }

  /** Input frames so far, and how many of them are not sent yet. */
  get given() {
    return this._given[0];
  }

  get unsent() {
    return this._kept.slice(this._next).reduce((sum, c) => sum + (c.input ? 0 : c.frames), 0);
  }

  flush() {
    this._flushed = true;
    this._say("ending");
    this._pump();
  }

  peek() {
    if (this._open && !this._flushed && !this._peeking) {
      this._peeking = true;
      this._before = this.given - this.unsent;
      this._ws.send('{"type": "peek"}');
    }
  }

  /** End the stream without waiting for its output. */
  abandon() {
    this._end("abandoned");
  }

  get over() {
    return ["done", "failed", "abandoned"].includes(this.state);
  }

  // ---- the connection

  _connect() {
    clearTimeout(this._timer);
    this._timer = null;
    const url = new URL(`v1/stream/${this.model.model}`, document.baseURI);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const shown = this._access ? [`pulsify.token.${base64url(this._access)}`] : [];
    const ws = new WebSocket(url, ["pulsify.v1", ...shown]);
    ws.binaryType = "arraybuffer";
    this._ws = ws;
    this._heard = performance.now();
    const opening = this._token ? {resume: this._token, have: this.have} : {...this._opening, resume: true};
    ws.onopen = () => ws.send(JSON.stringify({type: "open", ...opening}));
    ws.onmessage = ({data}) => this._received(data);
    ws.onclose = () => this._lost();
    clearInterval(this._watch);
    this._watch = setInterval(() => this._check(), PING);
  }

  /** A broken network closes no connection: only missing answers show it. */
  _check() {
    if (performance.now() - this._heard > SILENCE) this._lost();
    else if (this._open) this._ws.send(JSON.stringify({type: "ping", id: Math.round(performance.now() * 1000)}));
  }

  _drop() {
    clearInterval(this._watch);
    this._open = this._peeking = false;
    this._ahead = 0;
    const ws = this._ws;
    ws.onopen = ws.onmessage = ws.onclose = null;
    ws.close();
  }

  async _lost() {
    this._drop();
    if (this.over) return;
    if (this._token === null) {
      this._end("failed", await this._why());
      return;
    }
    this._say("lost");
    this._timer = setTimeout(() => this._connect(), TRIES[Math.min(this._failures++, TRIES.length - 1)]);
  }

  /** Browsers do not report why a websocket was rejected; HTTP does. */
  async _why() {
    try {
      await get("v1/models", this._access);
      await get("ready", this._access, "text");
      return "the server accepted no stream; it may be full, try again later";
    } catch (error) {
      if (error.status === 401) return "the server requires an access token";
      return error.status === 503 ? "the server accepts no streams at the moment; try again later" : "the server cannot be reached";
    }
  }

  _say(state, why = "") {
    if (this.over) return;
    this.state = state;
    this.on.state?.(state, why);
  }

  _end(state, why) {
    if (this.over) return;
    this._say(state, why);
    clearTimeout(this._timer);
    removeEventListener("online", this._online);
    this._kept = [];
    this._bytes = this._next = 0;
    this._drop();
  }

  // ---- messages from the server

  _received(data) {
    this._heard = performance.now();
    if (typeof data === "string") {
      const message = JSON.parse(data);
      this[`_on_${message.type}`]?.(message);
      return;
    }
    const several = this.model.outputs.length > 1;
    const at = several ? new DataView(data).getUint32(0, true) : 0;
    const body = several ? data.slice(4) : data;
    if (this._ahead > 0) {
      this._peeked.chunks.push([at, body]);
      if (--this._ahead === 0) this._tellPeek();
      return;
    }
    const lay = this._out[at], port = this.model.outputs[at];
    if (port.axis !== null) this.have[port.name] += body.byteLength / (lay.channels * lay.width);
    this.on.frames?.(at, body, lay);
  }

  _on_ready(message) {
    if (this._token !== null) this.resumed += 1;
    this._token = message.token;
    this._failures = 0;
    this._open = true;
    this._rewind(message.received);
    this.on.ready?.(message);
    this._say(this._flushed ? "ending" : "live");
    this._pump();
  }

  /** The server has so much of the input; everything after it is sent (again). */
  _rewind(received) {
    const has = this.model.inputs.map(port => received[port.name] ?? 0);
    this._next = this._kept.findIndex(c => c.start + c.frames > has[c.input]);
    if (this._next < 0) this._next = this._kept.length;
    const known = this._kept.slice(this._next).filter(c => c.start + c.frames <= has[c.input]);
    this._kept = this._kept.filter(c => !known.includes(c));
    for (const chunk of this._kept.slice(this._next)) {
      const more = has[chunk.input] - chunk.start;
      if (more <= 0) continue;
      chunk.data = without(chunk, this._in[chunk.input], more);
      chunk.start += more;
      chunk.frames -= more;
    }
    const starts = [...this._given];
    for (const chunk of this._kept.slice(this._next).reverse()) starts[chunk.input] = chunk.start;
    if (starts.some((start, input) => start > has[input])) this._end("failed", "the server lost more of the stream than this page has kept");
  }

  _pump() {
    if (!this._open) return;
    const several = this.model.inputs.length > 1;
    while (this._next < this._kept.length) {
      if (this._ws.bufferedAmount > AHEAD) {
        this._later ??= setTimeout(() => ((this._later = null), this._pump()), 10);
        return;
      }
      const {input, data} = this._kept[this._next++];
      this._ws.send(several ? headed(input, data) : data);
    }
    if (this._flushed && this._told !== this._ws) {
      this._told = this._ws;
      this._ws.send('{"type": "flush"}');
    }
  }

  _on_ack(message) {
    const has = this.model.inputs.map(port => message.received[port.name]);
    while (this._next > 0 && this._kept[0].start + this._kept[0].frames <= has[this._kept[0].input]) this._forget();
    this._ws.send(JSON.stringify({type: "ack", mark: message.mark}));
    this.on.covered?.(has[0]);
  }

  _on_text(message) {
    this.have.text += [...message.added].length; // the server counts characters, not UTF-16
    this.on.text?.(message.added, message.words ?? []);
  }

  _on_pong(message) {
    this.trips = [...this.trips.slice(-9), performance.now() - message.id / 1000];
  }

  _on_peek(message) {
    this._peeked = {message, chunks: []};
    this._ahead = message.messages ?? 0;
    if (!this._ahead) this._tellPeek();
  }

  _tellPeek() {
    this._peeking = false;
    if (!this._peeked.message.error) this.on.covered?.(this._before);
    this.on.peek?.(this._peeked.message, this._peeked.chunks);
  }

  _on_warning(message) {
    this.on.warning?.(message);
  }

  _on_error(message) {
    if (["going_away", "too_many_streams", "store_failed"].includes(message.code) && this._token !== null) this._lost();
    else this._end("failed", `${message.message} (${message.code})`);
  }

  _on_done(message) {
    if (message.words) this.on.text?.("", message.words);
    this.on.done?.(message);
    const ws = this._ws;
    ws.onclose = null; // the server closes and forgets the stream once it has the answer
    this._end("done");
  }
}

/** A chunk without its first frames. */
export function without(chunk, {outer, inner, width}, first) {
  const row = chunk.frames * inner * width, less = first * inner * width;
  const out = new Uint8Array(outer * (row - less));
  for (let o = 0; o < outer; o++) out.set(chunk.data.subarray(o * row + less, (o + 1) * row), o * (row - less));
  return out;
}

function headed(input, data) {
  const out = new Uint8Array(4 + data.byteLength);
  new DataView(out.buffer).setUint32(0, input, true);
  out.set(data, 4);
  return out;
}

function base64url(text) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
