"""Where delay comes from: the chain of wires from an input to an output, each with what it adds. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pulsify.core.spec import Output
from pulsify.core.spec import lateness as out_lateness
from pulsify.report.figures import Figures, plain

if TYPE_CHECKING:
    from pulsify.plan.trail import Course, Trail

WHY = {
    "ahead": "reads ahead",
    "look": "looks ahead, every frame at others",
    "length": "cannot know earlier whether a frame exists",
    "carry": "carries a state: takes a frame at its own pulse",
    "start": "shows later frames at the stream's start",
    "first": "needs the first frames of the stream",
    "given": "is given out with its own pulse",
    "start up": "begins where all that its first frame reads has come",
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


def chain(course: Course, out: Output, wire: str | None) -> list[Step]:
    """From the input on, wire by wire, what the output waits for. What they add is the output's delay."""
    wires: list[tuple[str, Trail]] = []
    at, met = wire, set[str]()
    while at is not None and at not in met and (trail := course.trails.get(at)) is not None:
        met.add(at)
        wires.append((at, trail))
        at = trail.after
    steps, so_far, before = list[Step](), Fraction(0), None
    for name, trail in reversed(wires):
        late, own = lateness(course, trail), Fraction(trail.p, course.pulse)
        node, op = made_by(course, name)
        rate = before if before is not None and ((late - so_far) * before).denominator == 1 else own
        steps.append(Step(name, node, op, trail.why, rate, late - so_far, late, moves(trail)))
        so_far, before = late, own
    late = Fraction(out.delay) / out.rate - course.phase if out.rate else Fraction(0)
    if late != so_far:
        steps.append(Step(out.name, out.name, "output", "given", out.rate, late - so_far, late))
    delay = delay_of(course, out)
    if delay != late:
        steps.append(Step(out.name, out.name, "output", "start up", out.rate, delay - late, delay))
    return steps


def delay_of(course: Course, out: Output) -> Fraction:
    """In units of the stream's length."""
    return out_lateness(out, course.phase) / out.rate if out.rate else Fraction(0)


def lateness(course: Course, trail: Trail) -> Fraction:
    """How late a wire's frames are, in units of the stream's length."""
    return Fraction(trail.p - trail.end, trail.p) * course.pulse - course.phase if trail.p else Fraction(0)


def made_by(course: Course, wire: str) -> tuple[str, str]:
    """The node that makes a wire, and what it is."""
    node, op = course.makers.get(wire, (wire, "input"))
    return node, "attention" if course.trails[wire].why == "look" else op


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


def delay_figures(course: Course, sample_rate: float | None = None) -> list[Figures]:
    """For every output with a time axis: its delay, and the chain it comes from.

    What a chain adds, and so what those of it add that wait (`waits`), sums up to the delay. Input frames are those of
    the first input.
    """
    found, per = [], course.first_rate
    for out, wire in course.outputs:
        if out.axis is None or not out.rate:
            continue
        steps = chain(course, out, wire)
        late = delay_of(course, out) * per
        found.append(
            {
                "output": out.name,
                "rate": str(out.rate),
                "delay": plain(delay_of(course, out) * out.rate),
                "delay_input_frames": plain(late),
                "delay_ms": in_ms(late, sample_rate),
                "chain": [_figures(s, per, sample_rate) for s in steps],
                "waits": [_figures(s, per, sample_rate) for s in waits(steps)],
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
