// Recent data by time: envelopes of sound, spectra, curves. Nothing is drawn here.

const STEP = 0.01; // seconds per column of a spectrum
const FINE = 0.004; // seconds per column of an envelope

/** Least and greatest sample of each column. */
export class Envelope {
  constructor(rate, seconds = 60) {
    this.rate = rate;
    this.step = FINE;
    this.size = Math.ceil(seconds / FINE);
    this.low = new Float32Array(this.size);
    this.high = new Float32Array(this.size);
    this.count = 0; // samples
    this.peak = 0.02;
  }

  add(samples) {
    for (const x of samples) {
      const column = Math.floor(this.count / this.rate / FINE), at = column % this.size;
      if (column !== this._column) {
        this._column = column;
        this.low[at] = this.high[at] = x;
      } else if (x < this.low[at]) this.low[at] = x;
      else if (x > this.high[at]) this.high[at] = x;
      const size = Math.abs(x);
      if (size > this.peak) this.peak = size;
      this.count += 1;
    }
  }

  get end() {
    return this.count / this.rate;
  }
}

/** Columns of loudness by pitch, 0 to 255, on a mel scale up to `top` Hz. */
export class Spectrum {
  constructor(rate, seconds = 60, bands = 96) {
    this.rate = rate;
    this.step = STEP;
    this.bands = bands;
    this.size = Math.ceil(seconds / STEP);
    this.values = new Uint8Array(this.size * bands);
    this.count = this.columns = 0;
    this.top = Math.min(8000, rate / 2);
    this.points = 2 ** Math.max(6, Math.round(Math.log2(rate * 0.03)));
    this._held = new Float32Array(this.points); // the last samples, in a circular buffer
    const hann = (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / this.points);
    this._window = Float32Array.from({length: this.points}, hann);
    this._edges = mel(bands, this.top).map(hz => (hz * this.points) / rate);
    this._re = new Float64Array(this.points);
    this._im = new Float64Array(this.points);
  }

  add(samples) {
    for (const x of samples) {
      this._held[this.count++ % this.points] = x;
      if (this.count >= (this.columns + 1) * STEP * this.rate) this._column();
    }
  }

  _column() {
    const n = this.points;
    for (let i = 0; i < n; i++) {
      this._re[i] = this._held[(this.count + i) % n] * this._window[i];
      this._im[i] = 0;
    }
    fft(this._re, this._im);
    const at = (this.columns % this.size) * this.bands;
    for (let b = 0; b < this.bands; b++) {
      const from = this._edges[b], to = Math.max(this._edges[b + 1], from + 1);
      let power = 0;
      for (let k = Math.floor(from); k < to; k++) power = Math.max(power, this._re[k] ** 2 + this._im[k] ** 2);
      const decibel = 10 * Math.log10(power / (n * n) * 16 + 1e-12); // 0 dB: a sine of amplitude 1
      this.values[at + b] = Math.max(0, Math.min(255, ((decibel + 90) / 75) * 255));
    }
    this.columns += 1;
  }

  get end() {
    return this.columns * STEP;
  }
}

/** Frames of an output that is neither sound nor text: channels side by side. */
export class Curves {
  constructor(name, channels, rate, seconds = 60) {
    this.name = name;
    this.channels = channels;
    this.rate = rate; // frames per second
    this.size = Math.max(2, Math.min(Math.ceil(seconds * rate), 1 << 16));
    this.values = new Float32Array(this.size * channels);
    this.count = 0;
    this.low = Infinity;
    this.high = -Infinity;
  }

  /** An array [outer, frames, inner]. */
  add(array, {outer, inner}) {
    const frames = array.length / (outer * inner);
    for (let t = 0; t < frames; t++, this.count++) {
      const to = (this.count % this.size) * this.channels;
      for (let c = 0; c < this.channels; c++) {
        const value = Number(array[(Math.floor(c / inner) * frames + t) * inner + (c % inner)]);
        this.values[to + c] = value;
        if (value < this.low) this.low = value;
        if (value > this.high) this.high = value;
      }
    }
  }

  get end() {
    return this.count / this.rate;
  }

  last(channel) {
    return this.count ? this.values[((this.count - 1) % this.size) * this.channels + channel] : NaN;
  }

  /** The range of the axis: 0 to 1 for probabilities. */
  get range() {
    if (this.low > this.high) return [0, 1];
    if (this.low >= -0.001 && this.high <= 1.001) return [0, 1];
    const room = (this.high - this.low || 1) * 0.05;
    return [this.low - room, this.high + room];
  }
}

function mel(bands, top) {
  const last = Math.log(1 + top / 700);
  return Array.from({length: bands + 1}, (_, i) => 700 * (Math.exp((last * i) / bands) - 1));
}

/** In place, of a power of two. */
export function fft(re, im) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let half = 1; half < n; half *= 2) {
    for (let k = 0; k < half; k++) {
      const angle = (-Math.PI * k) / half, c = Math.cos(angle), s = Math.sin(angle);
      for (let i = k; i < n; i += 2 * half) {
        const j = i + half, a = re[j] * c - im[j] * s, b = re[j] * s + im[j] * c;
        re[j] = re[i] - a;
        im[j] = im[i] - b;
        re[i] += a;
        im[i] += b;
      }
    }
  }
}
