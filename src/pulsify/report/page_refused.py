"""A refused model, as markup: the way to the node that refuses, why it does, and the ways out."""

from __future__ import annotations

from fractions import Fraction

from pulsify.report.figures import Figures
from pulsify.report.markup import bytes_text, error_text, frames, name, number, tag, text
from pulsify.report.render import KINDS

SHOWN = 5  # steps of a long way: so many at its end, and the first


def refused(facts: Figures) -> str:
    found = facts["refusal"]
    works = [w for w in found["ways"] if w["ok"]]
    fails = [w for w in found["ways"] if w["ok"] is False]
    others = [w for w in found["ways"] if w["ok"] is None]
    parts = [
        tag("h2", "Where it stops"),
        tag("p", text(_sentence(found))),
        _path(found),
        _reads(found),
        tag("h2", "Ways out"),
        tag("p", text(_tried(found["ways"]))),
        tag("div", "".join(map(_way, [*works, *others])), class_="ways"),
    ]
    if fails:
        parts += [tag("h3", "Tried, and of no help"), tag("div", "".join(map(_way, fails)), class_="ways")]
    return "".join(parts)


def _sentence(found: Figures) -> str:
    where = f"{found['op']} '{found['node']}'" if found["op"] else found["node"] or "The model"
    return f"{where}: {found['reason']}."


def _tried(ways: list[Figures]) -> str:
    tried = [w for w in ways if w["tried"]]
    works = sum(bool(w["ok"]) for w in tried)
    if not tried:
        return "These change the model, so they could not be tried here."
    return f"{works} of {len(tried)} that could be tried with this very file work." + (
        " They come first." if works else ""
    )


def _path(found: Figures) -> str:
    steps = found["path"]
    if not steps:
        return ""
    items = [_step(s, n == len(steps) - 1, found) for n, s in enumerate(steps)]
    if len(items) > SHOWN + 2:
        left = len(items) - SHOWN - 1
        items = [items[0], tag("li", text(f"{left} operators, all of which stream"), class_="soft"), *items[-SHOWN:]]
    return tag("ol", "".join(items), class_="path", aria_label="from the input to the node that refuses")


def _step(step: Figures, last: bool, found: Figures) -> str:
    if last and found["op"]:
        said = tag("span", text(found["op"]), class_="op bad") + " " + name(found["node"], found["op"])
        return tag("li", said + tag("div", text(found["reason"]), class_="small bad"), class_="stop")
    rate = f" {_pace(step)}" if step["rate"] is not None else ""
    who = f"{tag('span', text(step['op']), class_='op')} {name(step['node'], step['op'])}"
    return tag("li", who + tag("span", text(rate), class_="small soft"))


def _reads(found: Figures) -> str:
    reads = [r for r in found["reads"] if r["kind"] != "static"]
    if not reads:
        return ""
    rows = dict.fromkeys(f"{name(r['wire'])}: {text(_kind(r))}" for r in reads)
    return tag("p", "What it reads:", class_="soft") + tag("ul", "".join(tag("li", r) for r in rows), class_="small")


def _kind(read: Figures) -> str:
    if read["kind"] != "stream":
        return KINDS.get(read["kind"], str(read["kind"]))
    return f"a stream, {_pace(read)}"


def _pace(step: Figures) -> str:
    late = f", {frames(step['delay'])} late" if step["delay"] else ""
    rate = Fraction(step["rate"])
    made = "a frame" if rate.numerator == 1 else f"{rate.numerator} frames"
    return f"{made} for {f'every {rate.denominator}' if rate.denominator > 1 else 'each'} of the input{late}"


def _way(way: Figures) -> str:
    parts = [tag("h3", text(way["title"])), tag("p", text(way["says"]))]
    if way["code"]:
        parts.append(tag("pre", _coloured(way["code"])))
    if way["command"]:
        parts.append(tag("pre", text(way["command"])))
    return tag("div", "".join([*parts, _result(way)]), class_="panel")


def _coloured(code: str) -> str:
    kinds = {"+": "add", "-": "del"}
    lines = (tag("span", text(x), class_=kinds[x[0]]) if x[:1] in kinds else text(x) for x in code.splitlines())
    return "\n".join(lines)


def _result(way: Figures) -> str:
    if way["ok"]:
        return tag("p", f"{tag('b', 'Tried: it streams.', class_='good')} {text(_made(way['stream']))}", class_="small")
    if way["ok"] is False:
        return tag("p", f"{tag('b', 'Tried: refused.', class_='bad')} {text(way['result'])}", class_="small")
    if way["result"]:
        return tag("p", text(way["result"][0].upper() + way["result"][1:] + "."), class_="small soft")
    changes = "Changes the model: train it so, export it again. Not tried here." if way["code"] else ""
    return tag("p", changes, class_="small soft") if changes else ""


def _made(made: Figures) -> str:
    late = [d["delay"] for d in made["delays"] if d["delay"] is not None]
    said = [f"Pulses of {frames(made['pulse'])}"]
    if late:
        said.append(f"delay {frames(max(late))}" if max(late) else "no delay")
    else:
        said.append("comes out at the end")
    said.append(f"{bytes_text(made['state_bytes'])} of state" + (", growing" if made["grows"] else ""))
    if made["exact_up_to"] is not None:
        said.append(f"exact up to {number(made['exact_up_to'])} frames")
    if made["error"] is not None:
        said.append(f"compared with batch: largest error {error_text(made['error'])}")
    return ", ".join(said) + "."
