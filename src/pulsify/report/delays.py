"""Where delay comes from: the chain of wires from an input to an output, each with what it adds. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pulsify.convert.facts import Prefix, Wire
from pulsify.core.spec import Output
from pulsify.report.figures import Figures, plain

if TYPE_CHECKING:
    from pulsify.convert.context import Context
    from pulsify.convert.convert import Planned
    from pulsify.convert.trail import Trail

WHY = {
    "ahead": "reads ahead",
    "look": "looks ahead, every frame at others",
    "length": "cannot know earlier whether a frame exists",
    "carry": "carries a state: takes a frame at its own pulse",
    "start": "shows later frames at the stream's start",
    "first": "needs the first frames of the stream",
    "given": "is given out with its own pulse",
}


@dataclass(frozen=True)
class Step:
    """One wire of the chain. added, late: in units of the stream's length; late is the sum up to here.

    rate: of the frames that `added` is told in: of those it reads if these are whole ones, else of its own.
    """

    wire: str
    node: str
    op: str
    why: str
    rate: Fraction
    added: Fraction
    late: Fraction
    moves: bool = False  # frames are only counted otherwise (a pad, a cut): what it adds belongs to what follows


def chain(ctx: Context, name: str, out: Output) -> list[Step]:
    """From the input on, wire by wire, what the output waits for. What they add is the output's delay."""
    wires: list[tuple[str, Trail]] = []
    at: str | None = source_wire(ctx, name)
    while at is not None and (trail := ctx.trails.get(at)) is not None:
        wires.append((at, trail))
        at = trail.after
    steps, so_far, before = list[Step](), Fraction(0), None
    for wire, trail in reversed(wires):
        late, own = lateness(ctx, trail), Fraction(trail.p, ctx.pulse)
        node, op = made_by(ctx, wire, trail)
        rate = before if before is not None and ((late - so_far) * before).denominator == 1 else own
        steps.append(Step(wire, node, op, trail.why, rate, late - so_far, late, moves(trail)))
        so_far, before = late, own
    late = Fraction(out.delay) / out.rate if out.rate else Fraction(0)
    if late != so_far:
        steps.append(Step(out.name, out.name, "output", "given", out.rate, late - so_far, late))
    return steps


def lateness(ctx: Context, trail: Trail) -> Fraction:
    """How late a wire's frames are, in units of the stream's length."""
    return Fraction(trail.p - trail.end, trail.p) * ctx.pulse if trail.p else Fraction(0)


def source_wire(ctx: Context, name: str) -> str | None:
    """The wire that an output is given out of."""
    fact = ctx.ask.facts.get(name)
    fact = fact.wire if isinstance(fact, Prefix) else fact
    return fact.name if isinstance(fact, Wire) else None


def made_by(ctx: Context, wire: str, trail: Trail) -> tuple[str, str]:
    """The node that makes a wire, and what it is."""
    node = ctx.ask.model.producers.get(wire.partition("#")[0])
    if node is None:
        return wire, "input"
    return node.name, "attention" if trail.why == "look" else node.op


def moves(trail: Trail) -> bool:
    """Is every frame a frame of another wire, at another place?"""
    spans = [s for look in trail.looks for s in look.spans]
    return bool(spans) and all(a == b for a, b in spans) and not any(look.since for look in trail.looks)


def waits(steps: list[Step]) -> list[Step]:
    """Those that add something. A pad or a cut is told with the operator that follows: alone it may take away."""
    found, held = list[Step](), Fraction(0)
    for n, step in enumerate(steps):
        held += step.added
        if step.moves and n + 1 < len(steps):
            continue
        if held:
            found.append(Step(step.wire, step.node, step.op, step.why, step.rate, held, step.late))
        held = Fraction(0)
    return found


def first_rate_of(ctx: Context) -> Fraction:
    """Frames of the first input per unit of the stream's length: what times are told in."""
    return Fraction(next(iter(ctx.ask.traces.tracer.time.streams.values()))[1])


def delay_figures(planned: Planned, sample_rate: float | None = None) -> list[Figures]:
    """For every output with a time axis: its delay, and the chain it comes from.

    What a chain adds, and so what those of it add that wait (`waits`), sums up to the delay.
    """
    ctx, first_rate = planned.ctx, first_rate_of(planned.ctx)
    found = []
    for name, (out, _) in zip(ctx.ask.model.outputs, planned.outputs, strict=True):
        if out.axis is None or not out.rate:
            continue
        steps = chain(ctx, name, out)
        late = Fraction(out.delay) / out.rate
        found.append(
            {
                "output": out.name,
                "rate": str(out.rate),
                "delay": out.delay,
                "delay_input_frames": plain(late * first_rate),
                "delay_ms": in_ms(late * first_rate, sample_rate),
                "chain": [_figures(s, first_rate, sample_rate) for s in steps],
                "waits": [_figures(s, first_rate, sample_rate) for s in waits(steps)],
            }
        )
    return found


def in_ms(input_frames: Fraction, sample_rate: float | None) -> float | None:
    return float(input_frames * 1000) / sample_rate if sample_rate else None


def _figures(step: Step, first_rate: Fraction, sample_rate: float | None) -> Figures:
    own, added, late = step.added * step.rate, step.added * first_rate, step.late * first_rate
    return {
        "wire": step.wire,
        "node": step.node,
        "op": step.op,
        "why": step.why,
        "says": WHY[step.why] if own > 0 else "",
        "rate": str(step.rate),
        "added": plain(own),
        "added_input_frames": plain(added),
        "added_ms": in_ms(added, sample_rate),
        "late_input_frames": plain(late),
    }
