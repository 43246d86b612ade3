"""The picture of time and the chain of delays, as markup. Without its script the picture shows the first frame."""

from __future__ import annotations

from pulsify.report.figures import Figures
from pulsify.report.markup import bar, frames, ms_text, name, number, table, tag, text

HINT = "Slide to another output frame. Point at a layer, or tab to it: arrow keys move between layers and frames."
KEY = (
    ("--there", "has come so far"),
    ("--reads", "needed for this output frame"),
    ("--since", "in it by way of a state"),
    ("--waits", "delay that this layer adds"),
    ("--ink", "the output frame"),
)


def time_section(facts: Figures) -> str:
    """For a chosen output frame what each layer reads, and how far each is when it comes out."""
    head = tag("h2", "What an output frame reads")
    found = facts["plan"]["reading"] if facts["plan"] else []
    if not found:
        return head + tag("p", "Nothing comes out before the stream has ended: an output is about all frames.")
    says = (
        "Time runs to the right, counted in input frames; layers run from the input at the top to the output. Blue is "
        "all that one output frame is made of. It comes out when the newest input frame is at the dashed line."
    )
    return head + tag("p", says) + "".join(_picture(facts, n, r) for n, r in enumerate(found))


def _picture(facts: Figures, at: int, r: Figures) -> str:
    first, many = r["frames"][0], len(facts["plan"]["reading"]) > 1
    title = tag("h3", f"Output <code>{text(r['output'])}</code>") if many else ""
    label = f"output frame of {r['output']}"
    said = text(label)
    arrived = frames(first["arrived"], "input frame") + _ms(facts, first["arrived"])
    controls = (
        tag("label", f"Output frame {tag('output', number(first['frame']))}", for_=f"frame-{at}")
        + f'<input type="range" id="frame-{at}" min="0" max="{len(r["frames"]) - 1}" value="0" aria-label="{said}">'
        + tag("span", f"comes out after {tag('span', text(arrived), class_='arrived')}")
    )
    lanes = "".join(_lane(r, n) for n in range(len(r["layers"])))
    since = any(x is not None and x[2] for f in r["frames"] for x in f["read"])
    adds = any(layer["added_input_frames"] > 0 for layer in r["layers"])
    none = {colour for colour, some in (("--since", since), ("--waits", adds)) if not some}
    told = [(colour, says) for colour, says in KEY if colour not in none]
    key = "".join(tag("li", f'<i style="background:var({colour})"></i>{says}') for colour, says in told)
    inside = (
        tag("div", controls, class_="controls")
        + tag("div", lanes + _axis(facts, r), role="group", aria_label=f"what {label} reads, by layer")
        + tag("p", "", class_="told small", aria_live="polite")
        + tag("ul", key, class_="key")
        + tag("p", HINT, class_="small soft hint")
    )
    return title + tag("div", inside, class_="panel time", data_output=at)


def _lane(r: Figures, n: int) -> str:
    layer, frame = r["layers"][n], r["frames"][0]
    low, high = r["range"]
    read, end = frame["read"][n], frame["arrived"] - layer["late_input_frames"]
    last = n == len(r["layers"]) - 1

    def rect(kind: str, start: float, stop: float, y: int, height: int) -> str:
        a, b = (1000 * (min(max(t, low), high) - low) / (high - low) for t in (start, stop))
        width = max(b - a, 2 if stop > start else 0)
        return tag("rect", "", x=round(a, 2), y=y, width=round(width, 2), height=height, class_=kind)

    reads, since = ((read[0], read[1]), read[0] if read[2] else low) if read else ((low, low), low)
    bars = rect("there", low, end, 2, 16) + rect("late", end, end + max(layer["added_input_frames"], 0), 2, 16)
    bars += rect("since", low, since, 5, 10)
    bars += rect("reads", *reads, 5, 10) + rect(
        "frame", frame["time"][0], frame["time"][1] if last else frame["time"][0], 5, 10
    )
    x = round(1000 * (frame["arrived"] - low) / (high - low), 2)
    bars += tag("line", "", x1=x, x2=x, y1=-3, y2=23, class_="now")
    own = layer["added_input_frames"]
    adds = tag("div", f"+{number(own)} late" if own > 0 else "", class_="adds some" if own > 0 else "adds")
    who = tag("div", f"{name(layer['node'], layer['op'])} {tag('span', text(layer['op']), class_='op')}", class_="who")
    picture = tag("svg", bars, viewBox="0 0 1000 20", preserveAspectRatio="none", aria_hidden="true")
    return tag("div", who + picture + adds, class_="lane", tabindex=0, role="img", aria_label=layer["node"])


def _axis(facts: Figures, r: Figures) -> str:
    low, high = r["range"]
    ticks = [low + (high - low) * k / 4 for k in range(5)]
    rate = facts["stream"]["sample_rate"]
    said = [_clock(t / rate, high / rate) if rate else number(round(t)) for t in ticks]
    spans = "".join(f'<span style="left:{25 * k}%">{text(s)}</span>' for k, s in enumerate(said))
    unit = "time" if rate else "input frames"
    return tag(
        "div", tag("div", unit) + tag("div", spans, class_="ticks") + tag("div", ""), class_="axis", aria_hidden="true"
    )


def _clock(seconds: float, most: float) -> str:
    return f"{seconds:.3g} s" if most >= 2 else f"{1000 * seconds:.3g} ms"


def _ms(facts: Figures, input_frames: float) -> str:
    rate = facts["stream"]["sample_rate"]
    return f" ({ms_text(1000 * input_frames / rate)})" if rate else ""


# ---- the chain


def delay_section(facts: Figures) -> str:
    """Where delay comes from, layer by layer."""
    if not facts["plan"] or not facts["plan"]["delays"]:
        return ""
    return tag("h2", "Where delay comes from") + "".join(_chain(facts, d) for d in facts["plan"]["delays"])


def _chain(facts: Figures, d: Figures) -> str:
    output, natural = tag("code", text(d["output"])), facts["stream"]["natural"]
    if not d["waits"]:
        says = f"Output {output} has no delay: no layer waits for anything that a pulse does not bring."
        if facts["stream"]["pulse"] > 1:
            says += " All that a frame waits for is the rest of its pulse."
        if facts["stream"]["pulse"] > facts["stream"]["granularity"] and natural["pulse"] == facts["stream"]["pulse"]:
            says += " With a shorter pulse layers would wait for each other, and frames come later."
        return tag("p", says)
    whole = sum(max(w["added_input_frames"], 0) for w in d["waits"])
    rows = [
        [
            text(frames(w["added"])),
            name(w["node"], w["op"]),
            text(w["op"]),
            text(w["says"]),
            bar([(max(w["added_input_frames"], 0), "b")], whole, f"{number(w['added_input_frames'])} input frames"),
            text(number(w["added_input_frames"]) + _ms(facts, w["added_input_frames"])),
        ]
        for w in d["waits"]
    ]
    total = number(d["delay_input_frames"]) + _ms(facts, d["delay_input_frames"])
    rows.append(["", tag("b", "in all"), "", "", "", tag("b", text(total))])
    says = f"Output {output} comes {tag('b', text(frames(d['delay_input_frames'], 'input frame')))} late"
    most = max(d["waits"], key=lambda w: float(w["added_input_frames"]))
    mainly = len(d["waits"]) > 1 and 2 * most["added_input_frames"] > d["delay_input_frames"]
    says += f", most of it at {name(most['node'], most['op'])}." if mainly else "."
    if natural["latency_frames"] is not None and natural["latency_frames"] < facts["stream"]["latency_frames"]:
        says += f" With a pulse of {frames(natural['pulse'])} it would be less late."
    heads = (">waits for", "at", "operator", "because it", "", ">input frames")
    return tag("p", says) + tag(
        "div", table(heads, rows, "From the input to the output", class_="wide"), class_="panel"
    )
