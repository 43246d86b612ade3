"""Lengths that the model computes in a way of its own, found by looking at them: which function of S are they?

A number of frames only grows with S. So it is the same between two lengths if it is the same at both, and one that a
wire has already is recognised by looking where it grows:

    s          . . . . . . . . . . . .
    frames     3 3 3 3 4 4 4 4 4 5 5 5
    looked at        ^ ^       ^ ^         a hop of 160 samples costs two looks, not 160
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pulsify.analysis.amounts import NEIGHBOURS, far, known_at, near
from pulsify.analysis.facts import Wire
from pulsify.analysis.length import FAR, Length, fit
from pulsify.trace.evaluate import CannotRun

if TYPE_CHECKING:
    from pulsify.emit.context import Context
    from pulsify.frontend.model import Node

SHORT = 4096  # frames: streams up to here may be treated in a way of their own
BLOCK = 1024  # how far apart two lengths with as many frames may lie for what is between them not to be looked at
Frames = Callable[[int], int | None]  # frames at a stream length; None where the model cannot run


def fitted_length(ctx: Context, node: Node, frames: Frames, period: int, small: bool = True) -> Length:
    """The length function behind `frames(s)`; short streams it does not hold for are ruled out.

    small: only a few numbers are evaluated for it, so that it can be looked at far out.
    """
    found = fitted(ctx, frames, period, small)
    if found is None:
        ctx.refuse(
            node,
            "the length of its output is no regular function of the stream's length",
            "cut or pad by a fixed amount, or to a multiple of a fixed number",
        )
    return with_short(ctx, node, found, frames)


def fitted(ctx: Context, frames: Frames, period: int = 1, small: bool = True) -> Length | None:
    """The function behind `frames(s)` for streams that are not short, or None if it is not a regular one."""
    beyond = far(ctx) if small else []
    found = _familiar(ctx, frames, beyond)
    if found is None:
        found = fit(_growing(ctx, frames), ctx.traces.lengths[0], period, beyond=beyond)
        if found is not None:
            ctx.fitted[found] = None
    return found


def _familiar(ctx: Context, frames: Frames, beyond: Sequence[int]) -> Length | None:
    """A length some wire has already, give or take some frames, if `frames(s)` is equal to it."""
    base = ctx.traces.lengths[0]
    here = frames(base)
    if here is None:
        return None
    known = dict.fromkeys(f.length for f in ctx.facts.values() if isinstance(f, Wire) and f.length) | ctx.fitted
    for length in known:
        candidate, turn = length.then(add=here - length.at(base)), length.period
        distant = (base + -(-f // turn) * turn for f in FAR)
        places = (*_steps(length, base, base + 2 * turn), *near(ctx), *distant, *beyond)
        if all(frames(s) in (None, candidate.at(s)) for s in places):
            return candidate
    return None


def _steps(length: Length, first: int, last: int) -> list[int]:
    """The stream lengths from first to last at which this one grows, and those just before."""
    before = first + np.flatnonzero(np.diff(length.each(range(first, last + 1))))
    return sorted({first, last, *before.tolist(), *(before + 1).tolist()})


def _growing(ctx: Context, frames: Frames) -> Frames:
    """The same, without looking between two lengths with as many frames (if it does only grow, as far as looked)."""
    seen: dict[int, int | None] = {}

    def look(s: int) -> int | None:
        if s not in seen:
            seen[s] = frames(s)
        return seen[s]

    first = [n for n in map(look, near(ctx)) if n is not None]
    if first != sorted(first):
        return look

    def at(s: int) -> int | None:
        block = BLOCK
        while block > 1 and s not in seen:
            low = s // block * block
            here = look(low)
            if here is not None and here == look(low + block):
                return here
            block //= 2
        return look(s)

    return at


def measured(ctx: Context, node: Node, wire: Wire) -> Wire:
    """A known wire with its length, for those who look beyond its ends: all ones, but none behind the last frame."""
    if wire.length is not None:
        return wire
    axis, outer = wire.layout.axis, wire.layout.outer[0]
    frames = quietly(lambda s: known_at(ctx, wire.name, s).dims[axis] // outer)
    return replace(wire, length=fitted_length(ctx, node, frames, 1))


def with_short(ctx: Context, node: Node, length: Length, frames: Frames) -> Length:
    """The same length with the values of streams so short that the model treats them in a way of its own."""
    from pulsify.emit.context import Requirement

    last = min(ctx.traces.lengths[0], SHORT) - 1
    places = [*range(min(NEIGHBOURS, last)), *_steps(length, min(NEIGHBOURS, last), last)]
    seen = {s: frames(s) for s in places}
    runs = next((i for i, s in enumerate(places) if s and seen[s] is not None), None)
    if runs is not None:
        before = places[runs - 1] if runs else 0
        shortest = next(s for s in range(before + 1, places[runs] + 1) if frames(s) is not None)
        if shortest > 1:
            ctx.require(Requirement(Length(), node.name, at_least=shortest))
    wrong = [s for s, n in seen.items() if n is not None and n != length.at(s)]
    if not wrong:
        return length
    until = next((s for s in places if s > wrong[-1]), wrong[-1] + 1)
    return replace(length, short=tuple(frames(s) or 0 for s in range(until)))


def quietly(compute: Callable[[int], int]) -> Frames:
    """None where the model cannot run."""

    def at(s: int) -> int | None:
        try:
            return compute(s)
        except CannotRun:
            return None

    return at
