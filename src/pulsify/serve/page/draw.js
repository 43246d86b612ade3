// Rows of the timeline, on canvases. They share a time axis; its right edge is now.

const FONT = '11px ui-monospace, "SF Mono", Menlo, Consolas, monospace';
const LINES = 8; // channels drawn as lines; more are drawn as a picture

/** The colours of the style sheet, which alone defines light and dark. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(`--${name}`).trim();
  const names = ["text", "muted", "line", "surface", "sunk", "in", "out", "held", "wait"];
  const out = Object.fromEntries(names.map(name => [name, colour(name)]));
  out.ramp = ramp(colour("ramp").split(" "));
  out.series = colour("series").split(" ");
  out.key = JSON.stringify(names.map(name => out[name])) + colour("ramp");
  return out;
}

/** 256 colours between those given, as bytes. */
function ramp(stops) {
  const parts = stops.map(hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
  const out = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (parts.length - 1), left = Math.min(Math.floor(at), parts.length - 2);
    for (let c = 0; c < 3; c++) out[3 * i + c] = parts[left][c] + (parts[left + 1][c] - parts[left][c]) * (at - left);
  }
  return out;
}

/** The canvas at the screen's own resolution, cleared, and its size in points. */
export function prepared(canvas) {
  const scale = globalThis.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  return {pen, width, height};
}

/** Seconds to points. view: from, to. */
const across = (view, width) => t => ((t - view.from) / (view.to - view.from)) * width;

function grid(pen, width, height, view, colours) {
  const x = across(view, width), span = view.to - view.from;
  const step = [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10].find(s => (s / span) * width > 55) ?? 20;
  pen.fillStyle = colours.line;
  const first = Math.max(0, Math.ceil(view.from / step));
  for (let i = first; i * step <= view.to; i++) pen.fillRect(Math.round(x(i * step)), 0, 1, height);
  return step;
}

export function drawWave(canvas, envelope, view, colours, colour) {
  const {pen, width, height} = prepared(canvas), x = across(view, width), middle = height / 2;
  grid(pen, width, height, view, colours);
  pen.fillStyle = colours.muted;
  pen.globalAlpha = 0.5;
  pen.fillRect(0, Math.floor(middle), width, 1);
  pen.globalAlpha = 1;
  const {step, size, low, high} = envelope, scale = (middle - 2) / Math.max(envelope.peak, 0.02);
  const last = Math.ceil(envelope.end / step), first = Math.max(0, last - size, Math.floor(view.from / step));
  pen.fillStyle = colour;
  for (let c = first; c < last; c++) {
    const top = middle - high[c % size] * scale, bottom = middle - low[c % size] * scale, left = x(c * step);
    pen.fillRect(left, top, Math.max(1, x((c + 1) * step) - left), Math.max(1, bottom - top));
  }
  edge(pen, x(envelope.end), height, colour, envelope.count);
}

/** The current end of a row. */
function edge(pen, x, height, colour, any) {
  if (!any) return;
  pen.fillStyle = colour;
  pen.globalAlpha = 0.9;
  pen.fillRect(x, 0, 1.5, height);
  pen.globalAlpha = 1;
}

/** Columns of bytes as a circular picture. New columns are painted, and all of them when colours change. */
class Picture {
  constructor(size, rows) {
    this.canvas = new OffscreenCanvas(Math.min(size, 4000), rows);
    this.size = this.canvas.width;
    this.rows = rows;
    this.painted = 0;
  }

  paint(columns, value, colours) {
    if (this.key !== colours.key) {
      this.key = colours.key;
      this.painted = 0;
    }
    this.painted = Math.max(this.painted, columns - this.size);
    if (this.painted >= columns) return;
    const pen = this.canvas.getContext("2d"), strip = pen.createImageData(1, this.rows);
    for (; this.painted < columns; this.painted++) {
      for (let r = 0; r < this.rows; r++) {
        const from = 3 * value(this.painted, r), to = 4 * (this.rows - 1 - r);
        for (let c = 0; c < 3; c++) strip.data[to + c] = colours.ramp[from + c];
        strip.data[to + 3] = 255;
      }
      pen.putImageData(strip, this.painted % this.size, 0);
    }
  }

  /** The columns from first to last, in at most two pieces. */
  draw(pen, first, last, x, height) {
    for (let at = first; at < last; ) {
      const count = Math.min(last - at, this.size - (at % this.size));
      pen.drawImage(this.canvas, at % this.size, 0, count, this.rows, x(at), 0, x(at + count) - x(at), height);
      at += count;
    }
  }
}

const pictures = new WeakMap();

function picture(series, size, rows) {
  if (!pictures.has(series)) pictures.set(series, new Picture(size, rows));
  return pictures.get(series);
}

export function drawSpectrum(canvas, spectrum, view, colours) {
  const {pen, width, height} = prepared(canvas), x = across(view, width);
  grid(pen, width, height, view, colours);
  const {size, bands, values, step, columns} = spectrum, image = picture(spectrum, size, bands);
  image.paint(columns, (column, band) => values[(column % size) * bands + band], colours);
  const first = Math.max(0, columns - image.size, Math.floor(view.from / step));
  image.draw(pen, first, columns, c => x(c * step), height);
  if (!columns) return;
  const said = `${+(spectrum.top / 1000).toFixed(1)} kHz`;
  pen.fillStyle = colours.surface;
  pen.globalAlpha = 0.8;
  pen.fillRect(0, 0, pen.measureText(said).width + 6, 15);
  pen.globalAlpha = 1;
  label(pen, said, 3, 11, colours);
}

/** Values as bars from zero. */
export function drawBars(canvas, values, colours) {
  const {pen, width, height} = prepared(canvas), each = Math.min(60, width / Math.max(1, values.length));
  const low = Math.min(0, ...values), high = Math.max(low + 1e-9, 0, ...values);
  const y = value => height - 3 - ((value - low) / (high - low)) * (height - 6);
  pen.fillStyle = colours.out;
  values.forEach((value, i) => {
    const top = Math.min(y(value), y(0)), tall = Math.abs(y(value) - y(0));
    pen.fillRect(i * each + each * 0.1, top, Math.max(1, each * 0.8), Math.max(1, tall));
  });
  pen.fillStyle = colours.muted;
  pen.fillRect(0, y(0), width, 1);
}

export function drawCurves(canvas, curves, view, colours, colour = colours.out) {
  if (curves.channels > LINES) return drawHeat(canvas, curves, view, colours);
  const {pen, width, height} = prepared(canvas), x = across(view, width), [low, high] = curves.range;
  grid(pen, width, height, view, colours);
  const y = value => height - 3 - ((value - low) / (high - low)) * (height - 6);
  const first = Math.max(0, curves.count - curves.size, Math.floor(view.from * curves.rate) - 1);
  const stride = Math.max(1, Math.floor((curves.count - first) / (2 * width)));
  pen.lineWidth = 2;
  pen.lineJoin = "round";
  for (let c = 0; c < curves.channels; c++) {
    pen.strokeStyle = colours.series[c % colours.series.length];
    pen.beginPath();
    for (let t = first - (first % stride); t < curves.count; t += stride) {
      pen.lineTo(x(t / curves.rate), y(curves.values[(t % curves.size) * curves.channels + c]));
    }
    pen.stroke();
  }
  label(pen, high.toPrecision(2), 4, 11, colours);
  label(pen, low.toPrecision(2), 4, height - 4, colours);
  edge(pen, x(curves.end), height, colour, curves.count);
}

function drawHeat(canvas, curves, view, colours) {
  const {pen, width, height} = prepared(canvas), x = across(view, width), [low, high] = curves.range;
  grid(pen, width, height, view, colours);
  const rows = Math.min(curves.channels, 256), image = picture(curves, Math.min(curves.size, 4000), rows);
  if (curves.shown !== `${low}/${high}`) image.painted = 0; // the scale has grown
  curves.shown = `${low}/${high}`;
  const place = (t, r) => (t % curves.size) * curves.channels + Math.floor((r * curves.channels) / rows);
  image.paint(curves.count, (t, r) => Math.round((255 * (curves.values[place(t, r)] - low)) / (high - low)), colours);
  const first = Math.max(0, curves.count - image.size, Math.floor(view.from * curves.rate));
  image.draw(pen, first, curves.count, t => x(t / curves.rate), height);
}

/** Words at the time they were output: [{at, text}]. Each is drawn left of its mark, as it was spoken before. */
export function drawWords(canvas, words, view, colours) {
  const {pen, width, height} = prepared(canvas), x = across(view, width);
  grid(pen, width, height, view, colours);
  pen.font = '14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
  const lane = (height - 8) / 2, free = [-Infinity, -Infinity]; // two lines, used in turn if words are close
  for (const {at, text} of words) {
    const right = x(at), long = pen.measureText(text).width;
    let row = free.findIndex(end => end < right - long - 8);
    if (row < 0) row = free.indexOf(Math.min(...free));
    free[row] = right;
    if (right < 0) continue;
    const y = 4 + row * lane;
    pen.fillStyle = colours.out;
    pen.fillRect(right, 0, 1.5, height);
    pen.fillStyle = colours.sunk;
    pen.fillRect(right - long - 9, y, long + 9, lane);
    pen.fillStyle = colours.text;
    pen.fillText(text, right - long - 5, y + lane / 2 + 5);
  }
}

export function drawAxis(canvas, view, colours) {
  const {pen, width, height} = prepared(canvas), x = across(view, width), step = grid(pen, width, 4, view, colours);
  pen.fillStyle = colours.muted;
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    if (t < -1e-9) continue;
    const said = `${+t.toFixed(2)} s`, left = x(t), long = pen.measureText(said).width;
    if (left + long / 2 < width && left - long / 2 > 0) pen.fillText(said, left - long / 2, height - 3);
    else if (t < 1e-9) pen.fillText(said, left + 1, height - 3);
  }
}

/** The last moments: pulses as boxes, and the progress of each. parts: [{from, to, kind}] in seconds. */
export function drawStrip(canvas, {pulse, now, parts, span}, colours) {
  const {pen, width, height} = prepared(canvas), view = {from: now - span, to: now}, x = across(view, width);
  const top = 4, tall = height - 22;
  pen.fillStyle = colours.sunk;
  pen.fillRect(0, top, width, tall);
  for (const {from, to, kind} of parts) {
    const left = Math.max(0, x(Math.max(0, from))), right = Math.min(width, x(to));
    if (right <= left) continue;
    pen.fillStyle = {out: colours.out, way: colours.wait, held: colours.held, fill: colours.in}[kind];
    pen.globalAlpha = kind === "out" ? 0.3 : 1; // the delay is the subject of this row
    pen.fillRect(left, top, right - left, tall);
    pen.globalAlpha = 1;
    if (kind === "out") pen.fillRect(left, top + tall - 3, right - left, 3);
    if (kind !== "out") hatch(pen, left, top, right - left, tall, colours.surface, kind);
  }
  pen.fillStyle = colours.surface;
  const wide = (pulse / span) * width;
  if (wide >= 3) {
    const first = Math.max(0, Math.ceil(view.from / pulse));
    for (let p = first; p * pulse <= now + 1e-9; p++) pen.fillRect(x(p * pulse) - 0.75, top, 1.5, tall);
  }
  pen.fillStyle = colours.muted;
  const said = seconds => (span < 2 ? `-${Math.round(seconds * 1000)} ms` : `-${+seconds.toFixed(1)} s`);
  const word = "now", end = width - pen.measureText(word).width - 2;
  pen.fillText(word, end, height - 4);
  for (const part of [0.75, 0.5, 0.25]) {
    const text = said(span * part), left = width * (1 - part) + 3;
    if (left + pen.measureText(text).width + 6 < end) pen.fillText(text, left, height - 4); // on a small screen
  }
}

/** Patterns distinguish the parts without colours. */
function hatch(pen, left, top, width, height, colour, kind) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.globalAlpha = 0.55;
  pen.lineWidth = 2;
  pen.beginPath();
  if (kind === "fill") {
    for (let y = top + 4; y < top + height; y += 7) pen.moveTo(left, y), pen.lineTo(left + width, y);
  } else {
    const lean = kind === "held" ? height : -height, from = Math.floor((left - height) / 8) * 8;
    for (let at = from; at < left + width + height; at += 8) pen.moveTo(at, top + height), pen.lineTo(at + lean, top);
  }
  pen.stroke();
  pen.restore();
}

function label(pen, text, x, y, colours) {
  pen.fillStyle = colours.muted;
  pen.fillText(text, x, y);
}
