// Drawings: a wave or curves for a few numbers a frame, a picture for many; the strip of time.

import { own } from "./frames.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const FEW = 6, SHOWN = 4096;  // rows drawn as curves; frames that are kept for drawing
const HUES = [212, 28, 130, 340, 270, 180];

export class Plot {
  constructor(where, port) {
    this.box = document.createElement("figure");
    this.canvas = document.createElement("canvas");
    this.canvas.height = 110;
    this.canvas.setAttribute("role", "img");
    this.text = document.createElement("figcaption");
    this.box.append(this.canvas, this.text);
    where.append(this.box);
    this.port = port;
    this.rows = [];
    this.count = 0;
    this.#label();
  }

  /** Frames of a tensor, or one value that has none. */
  add({ data, shape }, axis) {
    const frames = axis === null ? 1 : shape[axis], inner = axis === null ? data.length : shape.slice(axis + 1).reduce((a, b) => a * b, 1);
    const outer = data.length / Math.max(frames * inner, 1);
    for (let t = 0; t < frames; t++) {
      const row = new Float32Array(outer * inner);
      for (let o = 0; o < outer; o++) for (let k = 0; k < inner; k++) row[o * inner + k] = Number(data[(o * frames + t) * inner + k]);
      this.rows.push(row);
    }
    this.count += frames;
    if (this.rows.length > SHOWN) this.rows.splice(0, this.rows.length - SHOWN);
    this.#label();
    this.due ??= requestAnimationFrame(() => { this.due = null; this.#draw(); });
  }

  #label() {
    const { name, dtype, shape, axis } = this.port;
    const shown = shape.map((n, a) => (a === axis ? "time" : n)).join(", ");
    this.text.textContent = `${name}: ${dtype} [${shown}], ${this.count} ${axis === null ? "values" : "frames"} `;
    this.canvas.setAttribute("aria-label", this.text.textContent);
  }

  #draw() {
    const { canvas, rows } = this;
    const width = (canvas.width = canvas.clientWidth), height = canvas.height, pen = canvas.getContext("2d");
    if (!rows.length || !rows[0].length) return;
    let low = Infinity, high = -Infinity;
    for (const row of rows) for (const x of row) { if (x < low) low = x; if (x > high) high = x; }
    const span = high - low || 1, many = rows[0].length;
    if (many <= FEW) {
      for (let k = 0; k < many; k++) {
        pen.strokeStyle = many === 1 ? colour("--accent") : `hsl(${HUES[k]} 70% 50%)`;
        pen.beginPath();
        rows.forEach((row, t) => pen.lineTo((t * width) / Math.max(rows.length - 1, 1), height - 4 - ((row[k] - low) / span) * (height - 8)));
        pen.stroke();
      }
      return;
    }
    for (let px = 0; px < width; px++) {
      const row = rows[Math.floor((px * rows.length) / width)];
      for (let k = 0; k < many; k++) {
        pen.fillStyle = `hsl(212 80% ${10 + (80 * (row[k] - low)) / span}%)`;
        const top = height - ((k + 1) * height) / many;
        pen.fillRect(px, top, 1, height / many + 1);
      }
    }
  }
}

/** One pulse, what the outputs are late, and what is held back just now. */
export function strip(canvas, facts, held) {
  const width = (canvas.width = canvas.clientWidth), pen = canvas.getContext("2d");
  const outputs = facts.outputs.filter((o) => o.frames);
  const late = Math.max(0, ...outputs.map((o) => o.late));
  const back = Math.max(0, ...outputs.map((o) => ((own(held, o.name) ?? 0) * facts.pulse) / o.frames));
  const whole = facts.pulse + late || 1, scale = (width - 2) / whole;
  pen.fillStyle = colour("--accent");
  pen.fillRect(1, 4, facts.pulse * scale, 14);
  pen.fillStyle = colour("--line");
  pen.fillRect(1 + facts.pulse * scale, 4, late * scale, 14);
  pen.fillStyle = colour("--dim");
  pen.fillRect(1, 22, Math.min(back, whole) * scale, 6);
  pen.font = "11px system-ui";
  pen.fillText(`pulse ${facts.pulse}`, 4, 42);
  if (late) pen.fillText(`delay ${Math.ceil(late)}`, Math.min(4 + facts.pulse * scale, width - 60), 42);
}
