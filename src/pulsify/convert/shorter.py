"""A model that is streamable only up to where a mask changes for good: the refusal says so, once that was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pulsify.analysis.proof.numbers import SHORT
from pulsify.analysis.questions import Questions, Undecided
from pulsify.core.errors import NotStreamable, PulsifyError
from pulsify.core.length import LONGEST
from pulsify.core.refusal import Remedy, declare
from pulsify.lengths.affine_array import ORIGIN, Spread
from pulsify.trace.lengths import Tracer
from pulsify.trace.traced import CannotRun

MOST, FEWER = 1 << 13, 1 << 12  # frames of streams that are tried; of those that change only later than that
CELLS = 500_000_000  # of all known values at that length: some two seconds


def first_change(ask: Questions, far: bool) -> int:
    """The length at which the first of the known values changes for good; 0 if none does so late.

    A shorter one, where streams as long take too much work to try. far: there is one, even if none is found.
    """
    values = ask.follower.followed if ask.follower is not None else ()
    spreads = [v for v in values if isinstance(v, Spread)]
    ends = (near for v in spreads for places, near in v.near.items() if ORIGIN in places)
    first = min((math.floor(n) for n in ends if SHORT < n < LONGEST), default=MOST + 1 if far else 0)
    longest = math.isqrt(CELLS // max(_fields(ask), 1))
    return min(first if first <= MOST else FEWER, longest)


def _fields(ask: Questions) -> int:
    """Cells of all known values over two time axes, for each pair of frames."""
    values = {n: v for n, v in ask.traces.longest.values.items() if v.known and len(ask.time_axes(n)) > 1}
    grown = {n: [ask.traces.longest[n].dims[a] for a in ask.time_axes(n)] for n in values}
    return sum(math.prod(v.dims) // max(math.prod(grown[n]), 1) for n, v in values.items())


def _declares(remedy: Remedy, symbol: str, least: int) -> bool:
    """Does it declare that streams have up to so many frames, so many at least?"""
    lengths = str(remedy.options.get("set", {}).get(symbol, ""))
    return lengths.startswith("<=") and int(lengths[2:]) >= least


def declared(tracer: Tracer, problem: Undecided, convert: Callable[[Tracer], object]) -> NotStreamable:
    """The refusal, with the longest streams that the model converts for: tried, not guessed."""
    time, most, reason, remedies = tracer.time, problem.change, problem.reason, problem.remedies
    if most and time.longest is None:
        shorter = Tracer(tracer.model, replace(time, lengths=replace(time.lengths, most=most)))
        try:
            convert(shorter)
        except (PulsifyError, CannotRun):  # nor is it streamable up to more frames than these
            remedies = tuple(r for r in remedies if not _declares(r, time.symbol, most))
        else:
            reason += f"; up to {most} frames it does"
            remedies = (
                replace(declare(time.symbol, f"<={most}", "declare that streams are no longer"), tried=True),
                *(problem.otherwise or problem.remedies),
            )
    return NotStreamable(reason, node=problem.node, op=problem.op, hint=remedies, kind=problem.kind)
