"""A plan as text: what is made of every wire at a pulse, which frames are read for it, kept of it and waited for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from pulsify.analysis.facts import Layout, Static, Window, Wire
from pulsify.convert.pulses import Planned
from pulsify.core.reach import Reach
from pulsify.core.spec import lateness
from pulsify.emit.buffer import history_of, others
from pulsify.plan.context import Context, PlannedRead, Step

WHY = {
    "ahead": "reads ahead",
    "look": "looks ahead",
    "length": "until its frames are certain to exist",
    "carry": "sees every frame once",
    "start": "its first frames show later ones",
    "first": "is made of the first frames",
}


def plan_lines(planned: Planned) -> list[str]:
    """The plan of the pulses, and of the prologue in front of them."""
    lines = [*_lines(planned.ctx)]
    for out, _ in planned.outputs:
        when = f"delay {lateness(out, planned.ctx.phase)}" if out.axis is not None else "when the stream has ended"
        start = f", start-up {out.start_up}" if out.start_up else ""
        lines.append(f"output {out.name}: {when}{start}")
    if planned.opening is not None:
        lines += ["", "prologue", *(f"    {line}" for line in _lines(planned.opening[0]))]
    return lines


def _lines(ctx: Context) -> Iterator[str]:
    phase = f", phase {ctx.phase}" if ctx.phase else ""
    yield f"pulse {ctx.pulse}{phase}, granularity {math.lcm(*ctx.ask.ledger.denominators, 1)}"
    inputs = [s for s in ctx.steps if s.outputs[:1] and s.outputs[0] in ctx.ports]
    for step in inputs:
        yield from _step(ctx, step)
    for name, fact in ctx.ask.facts.items():
        if isinstance(fact, Wire) and fact.name == name and name not in ctx.stored:
            yield from _anew(ctx, fact)
    for step in ctx.steps:
        if step not in inputs:
            yield from _step(ctx, step)


def _anew(ctx: Context, wire: Wire) -> Iterator[str]:
    """A wire of which no frames are stored: made anew for every window that is read."""
    operator = _operator(ctx, wire.name)
    if wire.mirror is not None:
        mirror = wire.mirror
        before, after = f"{mirror.before} in front", f"{mirror.after} behind"
        yield f"{_shaped(wire)} = {operator}, shows frames of {mirror.source.name} again: {before}, {after}"
    elif wire.constant_frame is not None:
        yield f"{_shaped(wire)} = {operator}, the same at every frame"
    elif wire.end is None:
        yield f"{_shaped(wire)} = {operator}, by position"
    else:
        yield f"{_shaped(wire)} = {operator}, a copy, up to frame {wire.end} of a pulse"
        yield from (f"    {_frames(r, '')}" for r in ctx.formulas.get(wire.name, ()))


def _operator(ctx: Context, name: str) -> str:
    if "#" in name:
        return "zeros outside the stream" if name.endswith("#bounded") else "frames"
    node = ctx.ask.model.producers.get(name)
    return node.op if node is not None else "input"


def _step(ctx: Context, step: Step) -> Iterator[str]:
    if not step.outputs:
        return
    facts = [(name, ctx.ask.facts.get(name)) for name in step.outputs]
    names = ", ".join(_shaped(f) if isinstance(f, Wire) else name for name, f in facts)
    yield f"{names} = {_operator(ctx, step.outputs[0])} {_interval(step.window)}{_waits(ctx, step)}"
    yield from (f"    {_frames(r, f' {_interval(r.window)}')}" for r in step.reads)
    if step.exact:
        yield "    carries a state"
    for name in step.outputs:
        if isinstance(fact := ctx.ask.facts.get(name), Static):
            yield f"    {name} is right {_right(fact)}"
    for stored in step.stored:
        windows = ctx.demands.get(stored.name, ())
        if stored.known:
            yield f"    frames 0 ... {stored.known - 1} are the same in every stream"
        if stored.begun is not None:
            yield f"    frames {stored.known} ... {stored.window.start - 1} are made at pulse 0 alone"
        if (past := max(history_of(stored, windows), 0)) > 0:
            yield f"    keeps {past} past frame{'s' * (past > 1)}"
        if any(w.grows for w in others(stored, windows)):
            yield "    keeps all past frames"


def _shaped(wire: Wire) -> str:
    return f"{wire.name} [{', '.join(_sizes(wire.layout))}]"


def _sizes(layout: Layout) -> Iterator[str]:
    for axis, size in enumerate(layout.sizes):
        if axis == layout.axis:
            one, other = layout.outer[:2]
            yield "time" if not layout.folded else f"{one}*time" if one == other else "batch*time"
        else:
            yield str(size) if size >= 0 else "batch" if size == -1 else f"{-size}*batch"


def _right(value: Static) -> str:
    """When all is there that a value without time is made of."""
    last = "when the stream has ended" if value.late else ""
    first = [f"once {w.length.at(0)} frames have come" for w in value.early]
    return ", and ".join(filter(None, (last, *first)))


def _waits(ctx: Context, step: Step) -> str:
    trail = ctx.trails.get(step.outputs[0])
    if trail is None or trail.after is None or trail.end >= trail.p:
        return ""
    before = ctx.trails.get(trail.after)
    if before is not None and Fraction(trail.end, trail.p) >= Fraction(before.end, before.p):
        return ""
    return f", waits for {trail.after}: {WHY[trail.why]}"


def _interval(window: Window) -> str:
    return f"[{'all' if window.grows else window.start}, {window.end})"


def _frames(read: PlannedRead, window: str) -> str:
    parts = [] if read.reach.pointwise else [_reach(read.reach)]
    parts += [f"{read.fill} outside the stream"] if read.fill else []
    return f"{read.wire}{window}{': ' * bool(parts)}{', '.join(parts)}"


def _reach(reach: Reach) -> str:
    """Which frames output frame k reads."""
    k = "k" if reach.num == 1 else f"{reach.num}k"
    low, high = (f"{k}{n:+d}" if n else k for n in (reach.lo, reach.hi))
    span = low if low == high else f"{low} ... {high}"
    return span if reach.den == 1 else f"({span})/{reach.den}" if span != k else f"{span}/{reach.den}"
