"""The report as one HTML file that needs nothing else: drawn from the facts, which it holds as JSON too."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files

from pulsify.report.figures import Figures, shape_text
from pulsify.report.markup import (
    bar,
    bytes_text,
    decades,
    details,
    error_text,
    frames,
    ms_text,
    name,
    number,
    percent,
    table,
    tag,
    text,
    us_text,
)
from pulsify.report.page_refused import refused
from pulsify.report.page_time import delay_section, time_section
from pulsify.report.render import binding_text, lengths_text, proof_text

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="facts">{facts}</script>
<script>
{js}</script>
</body>
</html>
"""
WORDS = (
    "A <b>frame</b> is one step in time of a value; here times count frames of the input {unit}. A <b>pulse</b> is how "
    "many of them every call takes. <b>Delay</b> is how long an output frame is held back because it reads frames that "
    "are still to come; <b>latency</b> is pulse and delay together. The <b>state</b> is what the stream remembers from "
    "one call to the next. <b>Batch</b> is the model as it was, run once on the whole input: what everything is "
    "compared with."
)
KEY = (
    '<ul class="key"><li><i style="background:var(--reads)"></i>pulse</li>'
    '<li><i style="background:var(--waits)"></i>delay</li></ul>'
)
TOP = 12  # rows of a table that are open; the rest is folded away


def page(facts: Figures) -> str:
    """The whole file."""
    sections: list[Callable[[Figures], str]] = [_head]
    if facts["refusal"] is not None:
        sections += [refused]
    else:
        sections += [_cards, _words, time_section, delay_section, _pulses, _cost, _states, _ports, _check]
    body = "\n".join(filter(None, (section(facts) for section in sections))) + _foot(facts)
    return PAGE.format(
        title=text(f"{facts['model']} as a stream"),
        css=_file("page.css"),
        js=_file("page.js") if facts["refusal"] is None and facts["plan"] else "",
        body=body,
        facts=json.dumps(facts, allow_nan=False).replace("</", "<\\/"),
    )


def _file(which: str) -> str:
    return (files("pulsify.report") / which).read_text("utf-8")


# ---- what it is


def _head(facts: Figures) -> str:
    said, kind, more = _verdict(facts)
    proof = "" if facts["refusal"] is not None else f"Certain for {proof_text(facts['stream']['proof'])}."
    return (
        tag("h1", text(facts["model"]))
        + tag("p", tag("span", text(said), class_=f"verdict {kind}"))
        + tag("p", text(more))
        + (details("For which lengths that is certain", tag("p", text(proof), class_="small")) if proof else "")
    )


def _verdict(facts: Figures) -> tuple[str, str, str]:
    if facts["refusal"] is not None:
        return (
            "Not streamable as it is",
            "bad",
            "No exact stream exists, or none is known. Where it stops, and ways out:",
        )
    stream, check = facts["stream"], facts["check"]
    if check and any(_wrong(row) for row in check["lengths"]):
        return (
            "The stream departs from the model",
            "bad",
            "Of what was compared, not all is within its limit: see below.",
        )
    if stream["exact_up_to"] is not None:
        most = frames(stream["exact_up_to"])
        return f"Exact up to {most}", "warn", "A longer stream forgets what the batch model still sees."
    if not stream["proof"]["proven"]:
        return "Exact where it was looked at", "warn", "Some of it was only sampled, not proven for every length."
    say = "Fed piece by piece, it gives what the model gives on the whole input, from the first frame to the last."
    return "Streams exactly", "good", say


def _wrong(row: Figures) -> bool:
    return row["limit"] is not None and (isinstance(row["error"], str) or row["error"] > row["limit"])


def _cards(facts: Figures) -> str:
    stream, rate = facts["stream"], facts["stream"]["sample_rate"]
    late = [o for o in stream["outputs"] if o["axis"] is not None]
    delay = max((o["delay_input_frames"] for o in late), default=None)
    cards = [("Pulse", frames(stream["pulse"]), "taken in at every call" + _in_ms(stream["pulse_ms"]))]
    if delay is not None:
        cards.append(("Delay", frames(delay) if delay else "none", _delay_note(late)))
        cards.append(("Latency at most", frames(stream["latency_frames"]), "pulse and delay" + _latency_ms(facts)))
    else:
        cards.append(("Delay", "at the end", "what comes out is about the whole stream"))
    cards.append(
        ("State", bytes_text(stream["state_bytes"]), f"remembered between calls, {len(stream['states'])} tensors")
    )
    if (us := _push_us(facts)) is not None:
        share = f": {percent(us / 10 / stream['pulse_ms'])} of its time" if rate else ""
        cards.append(("Work", us_text(us), f"a pulse, one thread here{share}"))
    if facts["check"] and facts["check"]["worst"]:
        worst = facts["check"]["worst"]
        cards.append(("Largest error", error_text(worst["error"]), f"relative; allowed {number(worst['tolerance'])}"))
    made = (
        tag(
            "li", "".join(tag("span", text(t), class_=c) for t, c in zip(card, ("label", "value", "note"), strict=True))
        )
        for card in cards
    )
    return tag("ul", "".join(made), class_="cards")


def _push_us(facts: Figures) -> float | None:
    """What a call takes as a whole; the nodes' sum leaves out what lies between them."""
    points = facts["pulses"]["sweep"] if facts["pulses"] else []
    return next((float(p["p50_us"]) for p in points if p["pulse"] == facts["stream"]["pulse"]), None)


def _in_ms(ms: float | None) -> str:
    return "" if ms is None else f" ({ms_text(ms)})"


def _delay_note(late: list[Figures]) -> str:
    worst = max(late, key=lambda o: float(o["delay_input_frames"]))
    if not worst["delay"]:
        return "a frame comes out with the call that completes it"
    return "held back until what it reads has come" + _in_ms(worst["delay_ms"])


def _latency_ms(facts: Figures) -> str:
    stream = facts["stream"]
    ms = [o["delay_ms"] for o in stream["outputs"] if o["delay_ms"] is not None]
    return _in_ms(stream["pulse_ms"] + max(ms)) if stream["pulse_ms"] is not None and ms else ""


def _words(facts: Figures) -> str:
    unit = tag("code", text(facts["stream"]["inputs"][0]["name"]))
    return details("What the words mean", tag("p", WORDS.format(unit=unit)))


# ---- pulse, work, state


def _pulses(facts: Figures) -> str:
    found = facts["pulses"]
    head = tag("h2", "How long a pulse?")
    if not found:
        return head + _left_out(facts, "pulses")
    points = found["sweep"]
    most, work = max(p["latency_frames"] for p in points), max(p["per_frame_us"] for p in points)
    state = max(p["state_bytes"] for p in points)
    rows = []
    for p in points:
        own = p["latency_frames"] - p["delay_frames"]
        latency = number(p["latency_frames"]) + _in_ms(p["latency_ms"])
        marks = [(found["choice"]["pulse"], "suggested"), (facts["stream"]["pulse"], "this report")]
        mark = "".join(tag("span", f" {says}", class_="small soft") for pulse, says in marks if pulse == p["pulse"])
        rows.append(
            [
                f"{number(p['pulse'])}{mark}",
                bar(
                    [(own, "a"), (p["delay_frames"], "b")],
                    most,
                    f"pulse {number(own)}, delay {number(p['delay_frames'])}",
                ),
                text(latency),
                bar([(p["per_frame_us"], "a")], work, f"{p['per_frame_us']:.3g} microseconds a frame"),
                number(p["per_frame_us"]),
                text(us_text(p["p50_us"])),
                bar([(p["state_bytes"], "a")], state, bytes_text(p["state_bytes"])),
                text(bytes_text(p["state_bytes"])),
            ]
        )
    heads = ("pulse", "latency", ">input frames", "work", ">µs a frame", ">a pulse", "state", ">bytes")
    says = "Longer pulses work less for each frame and come later. "
    choice = f"Suggested: {frames(found['choice']['pulse'])}, {found['choice']['why']}."
    out = table(heads, rows, "Measured here, one thread", class_="wide")
    left = [f"{number(o['pulse'])}: {o['reason']}" for o in found["left_out"]]
    more = details("Pulses that were left out", tag("p", text("; ".join(left)), class_="small soft")) if left else ""
    return head + tag("p", text(says + choice)) + tag("div", out + KEY, class_="panel") + more


def _cost(facts: Figures) -> str:
    found = facts["cost"]
    head = tag("h2", "What a pulse costs")
    if not found:
        return head + _left_out(facts, "cost")
    total = found["total_us"] or 1.0
    rows = [
        [
            text(o["op"]),
            number(o["nodes"]),
            _share(o["us"], total, o["op"]),
            f"{o['us']:.3g}",
            f"{100 * o['us'] / total:.1f} %",
        ]
        for o in found["operators"]
    ]
    heads = ("operator", ">nodes", "share", ">µs", ">of a pulse")
    us = _push_us(facts)
    whole = "" if us is None else f" A whole call takes {us_text(us)}: the rest lies between the nodes and around them."
    says = (
        f"{us_text(total)} inside the nodes for {frames(facts['stream']['pulse'])}, by ONNX Runtime's profiler on the "
        f"form that sessions run. What the profiler itself takes at every node has been taken off.{whole}"
    )
    nodes = [
        [name(n["node"], n["op"]), text(n["op"]), _share(n["us"], total, n["node"]), f"{n['us']:.3g}"]
        for n in found["nodes"][:40]
    ]
    dearest = details(
        f"The dearest nodes, {min(40, len(found['nodes']))} of {len(found['nodes'])}",
        table(("node", "operator", "share", ">µs"), nodes, "Microseconds of a pulse, by node", class_="wide"),
    )
    top = _folded(heads, rows, "Microseconds of a pulse, by operator")
    return head + tag("p", text(says)) + tag("div", top + dearest, class_="panel")


def _share(value: float, whole: float, of: str) -> str:
    return bar([(value, "a")], whole, f"{of}: {100 * value / whole:.1f} percent")


def _folded(heads: tuple[str, ...], rows: list[list[str]], caption: str) -> str:
    first = table(heads, rows[:TOP], caption, class_="wide")
    rest = rows[TOP:]
    return first + (details(f"{len(rest)} more", table(heads, rest, caption, class_="wide")) if rest else "")


def _states(facts: Figures) -> str:
    stream = facts["stream"]
    head = tag("h2", "What is remembered")
    states = sorted(stream["states"], key=lambda s: -int(s["bytes"]))
    if not states:
        return head + tag("p", "Nothing: every pulse stands for itself.")
    most = max(int(s["bytes"]) for s in states) or 1
    rows = [
        [
            name(s["node"]),
            text(shape_text(s["shape"])),
            bar([(s["bytes"], "a")], most, bytes_text(s["bytes"])),
            text(bytes_text(s["bytes"])),
        ]
        for s in states
    ]
    grows = any(0 in s["shape"] for s in states)
    says = f"{bytes_text(stream['state_bytes'])} a stream, the largest first."
    says += " What grows with the stream is counted as it starts: empty." if grows else ""
    out = _folded(("for node", "shape", "size", ">bytes"), rows, "States by size")
    return head + tag("p", text(says)) + tag("div", out, class_="panel")


# ---- ports, check


def _ports(facts: Figures) -> str:
    stream = facts["stream"]
    rows = [
        ["in", text(i["name"]), text(i["dtype"]), text(shape_text(i["shape"])), text(i["axis"]), text(i["rate"]), ""]
        for i in stream["inputs"]
    ]
    rows += [
        ["in", text(s["name"]), text(s["dtype"]), text(shape_text(s["shape"])), "given once", "", ""]
        for s in stream["statics"]
    ]
    for o in stream["outputs"]:
        row = ["out", text(o["name"]), text(o["dtype"]), text(shape_text(o["shape"]))]
        late = frames(o["delay"]) + _in_ms(o["delay_ms"]) if o["axis"] is not None and o["delay"] else "none"
        rows.append(
            [*row, *(["at the end", "", ""] if o["axis"] is None else [text(o["axis"]), text(o["rate"]), text(late)])]
        )
    heads = ("", "name", "type", "shape of a pulse", "time axis", ">rate", ">delay")
    says = (
        f"Streams of {lengths_text(stream['lengths'])} frames."
        if stream["lengths"]["every"] is None
        else (f"Lengths: {lengths_text(stream['lengths'])}.")
    )
    grain = stream["granularity"]
    says += f" Any pulse works that is a multiple of {grain}." if grain > 1 else " Any pulse works."
    out = table(heads, rows, "A rate is frames for each frame of the stream", class_="wide")
    bound = "".join(tag("p", text(f"Bound: {binding_text(b)}.")) for b in stream["bindings"])
    return tag("h2", "What goes in and out") + tag("p", text(says)) + bound + tag("div", out, class_="panel")


def _check(facts: Figures) -> str:
    found = facts["check"]
    head = tag("h2", "Compared with the batch model")
    if not found or not found["lengths"]:
        return head + _left_out(facts, "check")
    rows = []
    for r in found["lengths"]:
        wrong = _wrong(r)
        word = tag(
            "span", "wrong" if wrong else "equal" if r["error"] else "bit for bit", class_="bad" if wrong else "good"
        )
        size = decades(r["error"], r["limit"] or 1.0)
        error = error_text(r["error"])
        measured = bar([(size, "b" if wrong else "a")], 1.0, error)
        rows.append([number(r["length"]), number(r["runs"]), measured, text(error), word])
    says = (
        "Random inputs, pushed pulse by pulse and in random pieces. Errors are relative to the output's scale; "
        f"bars reach from 1e-9 to what is allowed, {number(found['lengths'][0]['limit'])}."
    )
    out = table((">frames", ">streams", "error", ">largest", ""), rows, "By length of the stream", class_="wide")
    worst = found["worst"] or {"notes": [], "fed": []}
    told = [*worst["notes"], *([f"The batch model was fed {', '.join(worst['fed'])}."] if worst["fed"] else [])]
    notes = "".join(tag("p", text(n), class_="small soft") for n in told)
    return head + tag("p", text(says)) + tag("div", out + notes, class_="panel") + _wires(found["wires"])


def _wires(wires: list[Figures]) -> str:
    if not wires:
        return ""
    step = 1000 / max(len(wires), 1)
    dots = "".join(
        f"M{round(step * (n + 0.5), 1)} {round(96 - 90 * decades(w['error'], w['limit'] or 1e-4), 1)}h0"
        for n, w in enumerate(wires)
    )
    worst = sorted(wires, key=lambda w: -(w["error"] if isinstance(w["error"], float) else 1e9))
    says = f"{len(wires)} wires in the model's order, largest error {error_text(worst[0]['error'])}"
    inner = tag("line", "", x1=0, x2=1000, y1=6, y2=6) + tag("path", "", d=dots)
    chart = tag(
        "svg", inner, viewBox="0 0 1000 100", preserveAspectRatio="none", class_="dots", role="img", aria_label=says
    )
    rows = [[name(w["wire"]), text(error_text(w["error"])), number(w["limit"])] for w in worst[:TOP]]
    more = details("The largest", table(("wire", ">error", ">allowed"), rows, "Wires by error"))
    note = "Every value inside the model, from input to output; the dashed line is what is allowed, the bottom 1e-9."
    return tag("h3", "Wire by wire") + tag("p", text(note), class_="soft") + tag("div", chart + more, class_="panel")


def _left_out(facts: Figures, section: str) -> str:
    return tag("p", text(f"Left out: {facts['left_out'].get(section, 'there is nothing to tell')}."), class_="soft")


def _foot(facts: Figures) -> str:
    return tag(
        "footer",
        tag(
            "p", text(f"Made by pulsify {facts['pulsify']}. All figures are in this file as JSON."), class_="small soft"
        ),
    )
