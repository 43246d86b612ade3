// Moves the picture of time to another output frame. Everything it says is in the facts; without it the first is shown.
"use strict";
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => { d.open = true; }));
const all = JSON.parse(document.getElementById("facts").textContent);
for (const part of document.querySelectorAll(".time")) {
  const facts = all.plan.reading[+part.dataset.output], rate = all.stream.sample_rate;
  const lanes = [...part.querySelectorAll(".lane")], slider = part.querySelector("input[type=range]");
  const [low, high] = facts.range, told = part.querySelector(".told");
  const place = t => 1000 * (Math.min(Math.max(t, low), high) - low) / (high - low);
  const count = n => Number.isInteger(n) ? n.toLocaleString("en") : String(+n.toPrecision(3));
  const lasts = n => rate ? `${count(n)} input frames (${count(+(1000 * n / rate).toPrecision(4))} ms)` : `${count(n)} input frames`;
  const set = (rect, from, to) => {
    rect.setAttribute("x", place(from).toFixed(2));
    rect.setAttribute("width", Math.max(place(to) - place(from), to > from ? 2 : 0).toFixed(2));
  };
  let at = 0, on = lanes.length - 1;

  const says = i => {
    const layer = facts.layers[i], frame = facts.frames[at], read = frame.read[i];
    const first = layer.op === "input" ? `Of ${layer.node}` : `${layer.node} (${layer.op})`;
    if (!read) return `${first}: nothing of it is needed for output frame ${count(frame.frame)}.`;
    const [from, to] = [count(Math.floor(read[0])), count(Math.ceil(read[1]) - 1)];
    const time = from === to ? `input frame ${from}` : `input frames ${from} to ${to}`;
    const all = read[2] ? `, and by way of a state all before ${from === to ? "it" : "them"}` : "";
    const what = layer.op === "input" ? `needs ${time}` : i === lanes.length - 1 ? `is at the time of ${time}`
      : `needs what it gives at the time of ${time}`;
    const late = layer.late_input_frames ? `It is ${lasts(layer.late_input_frames)} behind the input` : "It is not behind the input";
    const own = layer.added_input_frames ? `, ${lasts(layer.added_input_frames)} of them its own` : "";
    return `${first}: output frame ${count(frame.frame)} ${what}${all}. ${late}${own}.`;
  };
  const draw = () => {
    const frame = facts.frames[at];
    lanes.forEach((lane, i) => {
      const layer = facts.layers[i], read = frame.read[i], end = frame.arrived - layer.late_input_frames;
      const [there, late, since, reads, mark] = lane.querySelectorAll("rect"), now = lane.querySelector("line");
      set(there, low, end);
      set(late, end, end + Math.max(layer.added_input_frames, 0));
      set(since, low, read && read[2] ? read[0] : low);
      set(reads, read ? read[0] : low, read ? read[1] : low);
      set(mark, frame.time[0], i === lanes.length - 1 ? frame.time[1] : frame.time[0]);
      for (const side of ["x1", "x2"]) now.setAttribute(side, place(frame.arrived).toFixed(2));
      lane.setAttribute("aria-label", says(i));
      lane.classList.toggle("on", i === on);
    });
    part.querySelector("output").textContent = count(frame.frame);
    part.querySelector(".arrived").textContent = lasts(frame.arrived);
    slider.setAttribute("aria-valuetext", `output frame ${frame.frame}`);
    told.textContent = says(on);
  };
  slider.addEventListener("input", () => { at = +slider.value; draw(); });
  lanes.forEach((lane, i) => {
    for (const event of ["mouseenter", "focus"]) lane.addEventListener(event, () => { on = i; draw(); });
    lane.addEventListener("keydown", event => {
      const to = { ArrowDown: i + 1, ArrowUp: i - 1 }[event.key], by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (to === undefined && by === undefined) return;
      event.preventDefault();
      if (to !== undefined) lanes[Math.min(Math.max(to, 0), lanes.length - 1)].focus();
      else { at = Math.min(Math.max(at + by, 0), facts.frames.length - 1); slider.value = at; draw(); }
    });
  });
  draw();
}
