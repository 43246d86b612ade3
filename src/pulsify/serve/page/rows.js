// The rows of the timeline for a model: created once per model, drawn after every change.

import {drawBars, drawCurves, drawSpectrum, drawWave, drawWords} from "./draw.js";

const NAMED = 8; // channels whose values are shown beside the row

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function row(title, subtitle, about, className, draw) {
  const canvas = element("canvas", {className});
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", about);
  const values = element("span", {className: "values"});
  const caption = element("figcaption", {}, element("b", {textContent: title}), subtitle, values);
  const figure = element("figure", {className: "row"}, caption, canvas);
  return {figure, canvas, values, draw};
}

/** Functions of a row: draw(canvas, session, view, colours, values); session may be null. */
export function rowsFor(model) {
  const out = [];
  const sound = (side, title) => {
    const wave = (canvas, s, view, look) => drawWave(canvas, s?.[side].wave ?? NOTHING, view, look, look[side]);
    const spectrum = (canvas, s, view, look) => drawSpectrum(canvas, s?.[side].spectrum ?? NOTHING, view, look);
    out.push(row(title, "waveform", `${title}: waveform over time`, "", wave));
    out.push(row(title, "spectrogram", `${title}: spectrogram over time`, "tall", spectrum));
  };
  const curves = (side, port, at) => {
    const lines = (canvas, s, view, colours, values) => {
      const found = s?.[side].curves[at];
      drawCurves(canvas, found ?? NOTHING, view, colours, colours[side]);
      if (found) tell(values, found, colours);
    };
    out.push(row(port.name, side === "in" ? "input" : "output", `${port.name}: its values over time`, "tall", lines));
  };
  if (model.sound.input) sound("in", "Input");
  else model.inputs.forEach((port, at) => curves("in", port, at));
  if (model.kind === "text") {
    const words = (canvas, s, view, colours) => drawWords(canvas, s?.words ?? [], view, colours);
    out.push(row("Words", "when output", "Words, at the time they were output", "words-row", words));
  } else if (model.sound.output) sound("out", "Output");
  else model.outputs.forEach((port, at) => (port.axis === null ? out.push(whole(port)) : curves("out", port, at)));
  return out;
}

/** The last values, in the colours of their lines. */
function tell(values, curves, colours) {
  if (curves.channels > NAMED) return;
  while (values.children.length < curves.channels) values.append(element("span"));
  for (let c = 0; c < curves.channels; c++) {
    values.children[c].textContent = Number.isFinite(curves.last(c)) ? curves.last(c).toPrecision(3) : "";
    values.children[c].style.color = colours.series[c % colours.series.length];
  }
}

/** A result about the whole stream: what it would be if the stream ended now. */
function whole(port) {
  const about = `${port.name}: of the whole stream`;
  return row(port.name, "whole stream so far", about, "", (canvas, s, view, colours, values) => {
    const found = s?.out.values[port.name] ?? [];
    drawBars(canvas, found, colours);
    values.textContent = found.slice(0, 4).map(v => v.toPrecision(3)).join(" ") + (found.length > 4 ? " …" : "");
  });
}

const NOTHING = {
  count: 0, end: 0, step: 0.01, size: 1, low: [0], high: [0], peak: 1,
  bands: 1, values: [0], columns: 0, channels: 1, rate: 1, range: [0, 1],
};
