"""A number of frames as a Series (seen, and going on for ever) and as a Length (what a stream can work out)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from pulsify.core.length import Length, Table
from pulsify.lengths import series as one
from pulsify.lengths.series import LONGEST, Series, Unsure, constant, from_function

MOST_ROWS = 4096  # entries of a table of lengths, and lengths that may be treated in a way of their own


def as_series(length: Length, unit: int, longest: int = LONGEST) -> Series:
    """How many frames there are, at every length."""
    capped = length.cap is not None and length.settled < longest
    period = 1 if capped else length.period
    growth = 0 if capped else int(length.rate * period)
    settled = length.settled if capped else replace(length, cap=None).settled
    return replace(from_function(length.each, settled, period, growth, unit), longest=longest)


def as_length(frames: Series, familiar: Iterable[Length]) -> Length:
    """The Length behind a number of frames: one that a wire has already, a simple step, or a table. Unsure if none."""
    for known in familiar:
        found = _beside(frames, known)
        if found is not None:
            return found
    if not frames.growth and not frames.constant:
        raise Unsure("it stops growing at a length of its own")
    if frames.growth < 0:
        raise Unsure("it shrinks as the stream grows")
    for make in (_line, _step, _blocks, _table):
        found = make(frames)
        if found is not None:
            return _with_short(found, frames)
    raise Unsure(f"it repeats after {frames.repeats} frames only")


def _beside(frames: Series, known: Length) -> Length | None:
    """Is it this length give or take some frames, perhaps up to a cap, or but for the shortest streams?"""
    try:
        other = as_series(known, frames.unit)
        if frames.rate == other.rate and not frames.constant:
            off = one.subtract(frames, other)
            if off.constant:
                return known.then(add=off.item)
            if off.period == 1 and off.horizon * off.unit < MOST_ROWS:
                return _with_short(replace(known, short=()).then(add=int(off.values[-1])), frames)
        elif not frames.growth and frames.period == 1 and other.growth > 0:
            top, more = int(frames.values[-1]), int(frames.values[0] - other.values[0])
            capped = one.extreme(one.add(other, constant(more, frames.unit)), constant(top, frames.unit), np.minimum)
            if frames.values[0] < top and one.subtract(capped, frames).constant:
                return replace(known.then(add=more), cap=top)
    except Unsure:  # another one may do
        return None
    return None


def _with_short(length: Length, frames: Series) -> Length:
    """The same with the values of streams so short that they are treated in a way of their own."""
    until = frames.horizon * frames.unit + 1
    seen = frames.look(frames.horizon + frames.period)
    at = (np.arange(len(seen)) + 1) * frames.unit
    wrong = np.flatnonzero(length.each(at) != seen)
    if not wrong.size:
        return length
    if wrong[-1] >= frames.horizon:
        raise Unsure("it is no regular function of the stream's length")
    until = int(at[wrong[-1]]) + 1
    if until > MOST_ROWS:
        raise Unsure(f"streams of up to {until} frames are treated in a way of their own")
    return replace(length, short=tuple(int(seen[max(s // frames.unit - 1, 0)]) if s else 0 for s in range(until)))


def _tail(frames: Series) -> tuple[one.Array, one.Array]:
    """The lengths and values of one period from the horizon on."""
    n = np.arange(frames.horizon, len(frames.values))
    return (n + 1) * frames.unit, frames.values[n]


def _line(frames: Series) -> Length | None:
    if frames.rate.denominator != 1:
        return None
    at, seen = _tail(frames)
    off = seen - int(frames.rate) * at
    return Length(((int(frames.rate), int(off[0]), 1),)) if (off == off[0]).all() else None


def _step(frames: Series) -> Length | None:
    """floor((m x + a) / d)."""
    m, d = frames.rate.numerator, frames.rate.denominator
    at, seen = _tail(frames)
    least, most = int((d * seen - m * at).max()), int((d * seen + d - 1 - m * at).min())
    return Length(((m, most, d),)) if m and least <= most else None


def _blocks(frames: Series) -> Length | None:
    """So many frames more for every so many of the stream: x padded to a multiple."""
    growth, period = int(frames.growth), frames.repeats
    at, seen = _tail(frames)
    rest = seen % growth if growth else seen
    if not growth or (rest != rest[0]).any():
        return None
    periods = (seen - rest[0]) // growth
    least, most = int((period * periods - at).max()), int((period * periods + period - 1 - at).min())
    return Length(((1, most, period), (growth, int(rest[0]), 1))) if least <= most else None


def _table(frames: Series) -> Length | None:
    period, growth = frames.repeats, int(frames.growth)
    if period > MOST_ROWS:
        return None
    at, seen = _tail(frames)
    table = [0] * period
    for s, n in zip(at.tolist(), seen.tolist(), strict=True):
        table[s % period] = n - growth * (s // period)
    return Length(table=Table(period, growth, tuple(table)))
