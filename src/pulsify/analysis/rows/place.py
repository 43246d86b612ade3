"""Which rows are read, and what is in them: two small values that go with the stream's length."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.lengths import series as one
from pulsify.lengths.number import steady_growth
from pulsify.lengths.series import LONGEST, Series, Unsure, constant
from pulsify.lengths.sizes import floored

Array = np.ndarray[Any, Any]
SHORT = 64  # streams that are shorter may be ruled out where a row is another one there


@dataclass(frozen=True, eq=False)
class Place:
    """Rows of an axis: `base` and others at fixed distances from it, none in front of `first` or behind `last`.

    At lengths where first > last no row is read.
    """

    base: Series
    first: Series
    last: Series

    @property
    def key(self) -> Hashable:
        return tuple(signature(s) for s in (self.base, self.first, self.last))

    def moved(self, by: Series, times: int = 1, span: int = 1) -> Place:
        """Row r becomes the `span` rows from times * r + by on."""
        factor, more = constant(times, by.unit), constant(span - 1, by.unit)
        ends = [one.add(one.multiply(end, factor), by) for end in (self.first, self.last)]
        first, last = ends if times > 0 else ends[::-1]
        return Place(one.add(one.multiply(self.base, factor), by), first, one.add(last, more))

    def divided(self, by: int) -> Place:
        """Row r becomes row r // by; the remainder of `base` is the same at every length."""
        if by == 1:
            return self
        divisor = constant(by, self.base.unit)
        steady(one.remainder(self.base, divisor), self, "rows are regrouped, otherwise at every length")
        return Place(*(floored(s, divisor) for s in (self.base, self.first, self.last)))

    def before(self, end: int) -> Place:
        """The same in streams of up to `end` frames."""
        return Place(*(replace(s, longest=min(s.longest, end)) for s in (self.base, self.first, self.last)))


@dataclass(frozen=True, eq=False)
class Row:
    """Entries of some rows: f(distance, other axes) + move(T).

    least, most: all entries lie between, where rows are read; None: unknown. is_whole: they are whole numbers, which
    floats add exactly. shortest, limit: the stream lengths for which that is certain.
    """

    move: Series
    least: Series | None = None
    most: Series | None = None
    is_whole: bool = False
    shortest: int = 1
    limit: int = LONGEST

    @property
    def moves(self) -> bool:
        return not self.move.constant


def line(start: Series, step: int, place: Place) -> Row:
    """Rows that count: start + step * row."""
    moved = place.moved(start, step)
    return Row(moved.base, moved.first, moved.last, True, limit=start.limit)


def signature(s: Series) -> Hashable:
    """Equal for equal numbers of the length."""
    return s.values.tobytes(), s.values.dtype.kind, s.horizon, s.growth, s.unit, s.longest


def before(number: Series, count: int) -> Series:
    """A number that is the same at the first `count` lengths and goes on as evenly as it can."""
    values = number.look(count)
    found = steady_growth(values)
    if not (values != values[0]).any():
        return replace(constant(int(values[0]), number.unit), limit=number.limit)
    if found is not None and found[1] >= count:
        period = found[0].denominator
        even = Series(values[:period], 0, found[0] * period, number.unit)
        if np.array_equal(even.look(count), values):
            return replace(even, limit=number.limit)
    return replace(number, longest=count * number.unit)


def read_at(place: Place | None, unit: int) -> Series:
    """At which lengths any row is read, as a Series of booleans."""
    return constant(True, unit) if place is None else one.compare(place.first, place.last, np.less_equal)


def shortest_allowed(place: Place | None) -> int:
    """Streams of fewer rows than SHORT may be ruled out."""
    rate = Fraction(1) if place is None else place.base.rate
    return math.ceil(SHORT / rate) if 0 < rate < 1 else SHORT


def steady(number: Series, place: Place | None, otherwise: str) -> tuple[int, int]:
    """What a number is at all lengths at which rows are read, and the shortest stream from which on it is so.

    Unsure if it changes, or if streams that are not short would be ruled out.
    """
    if number.constant:
        return int(number.item), 1
    read = read_at(place, number.unit)
    horizon, period = max(number.horizon, read.horizon), math.lcm(number.period, read.period)
    most = min(number.longest, read.longest) // number.unit
    count = min(horizon + 2 * period, most)
    values, seen = number.look(count), np.flatnonzero(read.look(count))
    if not seen.size:
        return int(values[-1]), 1
    wanted = values[seen[-1]]
    differ = seen[values[seen] != wanted]
    if not differ.size:
        return int(wanted), 1
    shortest = (int(differ[-1]) + 2) * number.unit
    if shortest > shortest_allowed(place) or (count < most and differ[-1] >= horizon):
        raise Unsure(otherwise)
    return int(wanted), shortest


def settled(row: Row, place: Place | None, otherwise: str) -> Row:
    """The same row with a move that is a constant; Unsure if it is none wherever rows are read."""
    if not row.moves:
        return row
    item, shortest = steady(row.move, place, otherwise)
    return replace(row, move=constant(item, row.move.unit), shortest=max(row.shortest, shortest))
