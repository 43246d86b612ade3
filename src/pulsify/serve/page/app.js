// The page: the choices, the run, and what is shown of it.

import {get, load} from "./client.js";
import {drawAxis, drawStrip, theme} from "./draw.js";
import {rowsFor} from "./rows.js";
import {Session, clock} from "./session.js";
import {Player, TYPES, decode, microphone, recording, waves} from "./sound.js";

const $ = id => document.getElementById(id);
const LOAD = 2000;
const STARTING = 1000; // milliseconds between questions while the server opens its models
const FRAME = 30; // milliseconds between two frames, at least: sound comes first
const SPAN = {wide: 8, narrow: 4}; // seconds shown
const WHOLE = 30; // seconds up to which all of a finished run is shown
const STATES = {
  connecting: "Connecting…",
  live: "Live",
  lost: "Connection lost, reconnecting…",
  ending: "Finishing…",
  done: "Done: all output received",
  failed: "Failed",
  abandoned: "Cancelled",
};

const HINT = $("hint").textContent;

let models = [], session = null, rows = [], colours = theme(), dirty = true, drawn = -FRAME, turns = 0, mayLeave = 0;
let sampleChosen = false;
let token = sessionStorage.getItem("pulsify.token") ?? "";

// ---- models

async function findModels() {
  let starting;
  try {
    ({models, starting} = await get("v1/models", token));
  } catch (error) {
    if (error.status === 401) askForToken();
    else say("failed", "The server does not respond");
    return;
  }
  sessionStorage.setItem("pulsify.token", token);
  $("access").hidden = true;
  $("controls").hidden = $("results").hidden = !models.length;
  if (starting?.length) {
    setTimeout(findModels, STARTING);
    if (!models.length) say("connecting", `Opening ${starting.join(", ")}…`);
  }
  if (same(models)) return;
  const wanted = chosen()?.model ?? new URLSearchParams(location.search).get("model");
  const option = each => new Option(`${each.model} (${gives(each)})`, each.model, false, each.model === wanted);
  $("model").replaceChildren(...models.map(option));
  if (!session && $("go").dataset.running !== "true") chooseModel();
}

/** Are these the models of the menu? */
const same = models => models.map(each => each.model).join() === [...$("model").options].map(each => each.value).join();

function askForToken() {
  const wrong = token !== "";
  say(wrong ? "failed" : "idle", "This server requires an access token");
  $("access").hidden = false;
  $("controls").hidden = $("results").hidden = true;
  put("token-wrong", wrong ? "The server rejected this token." : "");
  $("token").setAttribute("aria-invalid", wrong);
  $("token").select();
  $("token").focus();
}

function gives(model) {
  if (model.kind === "text") return "text";
  return model.sound.output ? "sound" : model.outputs.map(port => port.name).join(", ");
}

const chosen = () => models.find(each => each.model === $("model").value);

function chooseModel() {
  const model = chosen();
  if (!model) return;
  session = null;
  notice("");
  say("idle", "Ready");
  rows = rowsFor(model);
  $("rows").replaceChildren(...rows.map(each => each.figure));
  $("words").hidden = model.kind !== "text";
  $("tapes").hidden = true;
  $("transcript").textContent = $("ahead").textContent = "";
  $("hint").hidden = false;
  $("hint").textContent = HINT;
  const hears = model.sound.input, listen = $("listen");
  for (const id of ["sources", "speed-row", "listen-row"]) $(id).hidden = !hears;
  listen.options[2].hidden = listen.options[2].disabled = !model.sound.output;
  if (!model.sound.output && listen.value === "out") listen.value = "none";
  const pace = model.sample_rate ? "" : `, ${Math.round(clock(model) / model.pulse)} pulses per second`;
  $("waves-row").hidden = hears;
  put("waves-row", `This model takes no audio: the page sends slow test waves${pace}.`);
  const odd = hears ? undefined : model.inputs.find(port => !TYPES[port.dtype]);
  if (odd) notice(`The page cannot generate input of type ${odd.dtype} (${odd.name}).`);
  $("go").disabled = Boolean(odd);
  if (!sampleChosen) $("built-in").value = model.sound.output ? "noisy.wav" : "lights.wav";
  legend(model);
  vocabulary(model);
  chooseSource();
  showFigures();
  dirty = true;
}

function legend(model) {
  const [out, , held, fill] = $("legend").children;
  out.lastChild.textContent = model.kind === "text" ? "transcribed" : "output received";
  held.lastChild.textContent = model.kind === "text" ? "may be pending" : "model delay";
  fill.hidden = model.kind === "text";
  put("seen-label", model.kind === "text" ? "End of word to text" : "Measured latency");
}

/** A small one is listed: other words are not recognised. */
function vocabulary(model) {
  const words = model.vocabulary ?? [];
  $("vocabulary").hidden = !words.length;
  put("vocabulary", `This recogniser knows only these ${words.length} words: ${words.join(", ")}.`);
}

const source = () => document.querySelector("[name=source]:checked").value;

function chooseSource() {
  const hears = chosen()?.sound.input, what = source();
  $("built-in-row").hidden = !hears || what !== "built-in";
  $("file-row").hidden = !hears || what !== "file";
  $("speed-row").hidden = !hears || what === "microphone";
}

// ---- a run

async function openSource(model) {
  if (!model.sound.input) return waves(model, clock(model));
  const what = source(), fast = $("speed").value === "fast";
  if (what === "microphone") return microphone();
  if (what === "file" && !$("file").files.length) throw new Error("choose a file first");
  const own = () => get(`sounds/${$("built-in").value}`, "", "arrayBuffer");
  const data = await (what === "file" ? $("file").files[0].arrayBuffer() : own());
  return recording(await decode(data, model.sample_rate), fast, () => session?.stream.unsent ?? 0);
}

async function start() {
  const model = chosen();
  notice("");
  chooseModel();
  running(true);
  say("connecting", STATES.connecting);
  const deaf = error => notice(`Playback failed: ${error.message}`);
  const players = $("listen").value === "out" ? {out: new Player(model.sample_rate, deaf)} : {};
  const turn = ++turns;
  try {
    const opened = await openSource(model);
    if (turn !== turns) {
      opened.close(); // Stop was pressed in the meantime
      return;
    }
    session = new Session(model, opened, token, {
      listen: () => $("listen").value,
      peek: () => $("peek").checked,
      players,
      on: {
        state: changed,
        text: grow,
        ahead: text => put("ahead", text),
        warning: each => notice(sentence(each.message)),
        deaf,
      },
    });
  } catch (error) {
    players.out?.close();
    if (turn !== turns) return;
    running(false);
    say("failed", "Could not start");
    notice(sentence(error.message));
  }
}

function changed(state, why) {
  say(state, STATES[state]);
  if (state === "ending") {
    $("go").firstChild.textContent = "Cancel";
    mayLeave = performance.now() + 1000; // a second click on Stop does not cancel
  }
  if (["done", "failed", "abandoned"].includes(state)) {
    running(false);
    $("ahead").textContent = "";
    if (why) notice(sentence(why));
    if (state === "done") finish();
  }
  dirty = true;
}

function grow(added) {
  $("hint").hidden = true;
  $("transcript").append(added); // a text node of its own: a screen reader reads only what is new
}

function finish() {
  if (!$("transcript").textContent) put("hint", "No known word was recognised.");
  for (const side of ["in", "out"]) {
    const tape = session[side].tape, audio = $(`tape-${side}`), link = $(`save-${side}`);
    if (audio.src) URL.revokeObjectURL(audio.src);
    audio.removeAttribute("src");
    if (tape) audio.src = link.href = URL.createObjectURL(tape.file());
  }
  $("tape-out-row").hidden = !session.out.tape;
  $("tapes").hidden = !session.in.tape;
}

function running(yes) {
  const go = $("go");
  go.dataset.running = yes;
  go.firstChild.textContent = yes ? "Stop" : "Start";
  for (const each of document.querySelectorAll("#model, #sources input, #built-in, #file, #speed")) each.disabled = yes;
}

function press() {
  if ($("go").dataset.running !== "true") start();
  else if (!session) {
    turns += 1;
    running(false);
    say("idle", "Ready");
  } else if (!["ending", "connecting"].includes(session.stream.state)) session.stop();
  else if (performance.now() > mayLeave) session.abandon();
}

// ---- status and figures

function say(state, text) {
  $("status").dataset.state = state;
  if ($("status").textContent !== text) $("status").textContent = text;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

const sentence = text => text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");

function ms(seconds) {
  if (seconds >= 0.995) return `${seconds.toFixed(seconds >= 9.95 ? 0 : 1)} s`;
  return `${+(seconds * 1000).toFixed(seconds < 0.0295 ? 1 : 0)} ms`;
}

const put = (id, text) => $(id).textContent !== text && ($(id).textContent = text);

function showFigures() {
  const model = session?.model ?? chosen();
  if (!model) return;
  const latency = session?.latency ?? model.latency_seconds;
  put("f-model", latency === null ? `${model.latency} frames` : ms(latency));
  const seen = session?.seen.map(each => each[1]).sort((a, b) => a - b) ?? [];
  $("seen-row").hidden = model.kind === "text" && !seen.length;
  put("f-seen", seen.length ? ms(seen[seen.length >> 1] / 1000) : "–");
  put("f-worst", seen.length ? `maximum ${ms(seen.at(-1) / 1000)}` : "");
  const trips = [...(session?.stream.trips ?? [])].sort((a, b) => a - b);
  put("f-trip", trips.length ? ms(trips[trips.length >> 1] / 1000) : "–");
  put("f-lost", String(session?.stream.resumed ?? 0));
  const out = session?.outSeconds;
  const held = session && `${out === null ? "≤ " : ""}${ms(Math.max(0, session.heldSeconds))}`;
  put("f-held", session?.done ? "nothing" : (held ?? "–"));
  const counts = [session?.inSeconds, out].filter(each => each != null).map(each => `${each.toFixed(1)} s`);
  put("f-counts", counts.join(", ") || "–");
}

async function showLoad() {
  if (document.hidden || !models.length) return;
  try {
    const found = await load(token), name = chosen()?.model;
    put("f-streams", String(found.streams?.[name] ?? "–"));
    const duty = found.duty_ratio?.[name];
    put("f-busy", duty === undefined ? "–" : `${(duty * 100).toFixed(duty < 0.1 ? 1 : 0)} %`);
  } catch {
    put("f-busy", "–");
  }
}

function view(now, width) {
  const span = width < 640 ? SPAN.narrow : SPAN.wide;
  const shown = session?.over ? Math.max(Math.min(now, WHOLE), 1) : span;
  const to = Math.max(now, shown);
  return {from: to - shown, to};
}

function draw(when = 0) {
  requestAnimationFrame(draw);
  if (when - drawn < FRAME || (!dirty && !(session && !session.over))) return;
  drawn = when;
  dirty = false;
  const now = session?.inSeconds ?? 0, shown = view(now, innerWidth);
  for (const each of rows) each.draw(each.canvas, session, shown, colours, each.values);
  drawAxis($("axis"), shown, colours);
  const model = session?.model ?? chosen();
  if (model) strip(model, now);
  showFigures();
}

/** Narrow enough to see single pulses. */
function strip(model, now) {
  const pulse = session?.pulse ?? model.pulse_seconds ?? model.pulse / clock(model);
  const late = session?.latency ?? model.latency_seconds ?? pulse;
  const span = Math.max($("strip").clientWidth < 640 ? 0.4 : 0.8, 5 * late, 5 * pulse);
  const least = Math.max(now, span);
  drawStrip($("strip"), {pulse, now: least, parts: session?.parts ?? [], span}, colours);
  put("strip-span", `pulse ${ms(pulse)}, last ${ms(span)} shown`);
}

// ---- begin

function begin() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    token = decodeURIComponent(given[1]);
    history.replaceState(null, "", location.pathname + location.search); // the token must not stay visible
  }
  $("controls").onsubmit = event => {
    event.preventDefault();
    press();
  };
  $("model").onchange = chooseModel;
  for (const each of document.querySelectorAll("[name=source]")) {
    each.onchange = () => {
      if (source() === "microphone") $("listen").value = "none"; // feedback
      chooseSource();
    };
  }
  $("built-in").onchange = () => (sampleChosen = true);
  $("listen").onchange = () => session?.relisten();
  $("peek").onchange = () => ($("ahead").textContent = "");
  $("access").onsubmit = event => {
    event.preventDefault();
    token = $("token").value.trim();
    findModels();
  };
  const recolour = () => ((colours = theme()), (dirty = true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  new ResizeObserver(() => (dirty = true)).observe(document.body);
  setInterval(showLoad, LOAD);
  findModels().then(showLoad);
  draw();
}

begin();
