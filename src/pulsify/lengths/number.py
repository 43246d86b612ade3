"""How a number goes with the stream's length: seen up to a horizon, going on for ever in the same way behind it.

    T        1 2 3 4 5 6 7 8 9 ...
    value    7 0 1 1 2 2 3 3 4 ...        horizon 1, period 2, growth 1
             | |   |
             seen  from the horizon on value(T + period) = value(T) + growth

Arithmetic on such numbers is exact: it is done on all that was seen, and where two of them part or meet is worked out.
So what holds for the lengths up to horizon + period holds for every length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.lengths.float_limits import INT64, LONG, LONGEST, OF_SIZE, Drift, Unsure

Array = np.ndarray[Any, Any]

MOST = 1 << 22  # lengths that are looked at, at the most
TURN = 1 << 6  # rises after which the rows of a table rise alike


class TooFar(Unsure):
    """It is known how far one would have to look, and that is too far."""

    def __init__(self, lengths: int) -> None:
        self.lengths = lengths
        super().__init__(f"one would have to look at streams of {lengths} frames, which is too far")


@dataclass(frozen=True, eq=False)
class Series:
    """A number at the lengths unit, 2 unit, 3 unit, ...: `values` of the first horizon + period of them.

    drift: how far a float may be off that. limit: the longest stream for which all this is true (whole numbers run
    over). longest: no stream is longer, so that a change further out never comes.
    """

    values: Array
    horizon: int = 0
    growth: Fraction = Fraction(0)
    unit: int = 1
    limit: int = LONGEST
    longest: int = LONGEST
    drift: Drift = field(default_factory=Drift)

    @property
    def period(self) -> int:
        return len(self.values) - self.horizon

    @property
    def floating(self) -> bool:
        return self.values.dtype.kind == "f"

    @property
    def constant(self) -> bool:
        return self.growth == 0 and len(self.values) == 1

    @property
    def item(self) -> Any:
        """The value of a constant."""
        assert self.constant
        return self.values[0].item()

    @property
    def rate(self) -> Fraction:
        """Growth by frame of the stream."""
        return self.growth / (self.period * self.unit)

    @property
    def pace(self) -> Fraction:
        """The rate; of a number that rises steadily up to an end (the rows of a table), the rate until then."""
        if self.growth or self.constant:
            return self.rate
        found = steady_growth(self.values)
        if self.period == 1 and found is not None and found[1] >= len(self.values):
            return found[0] / self.unit
        raise Unsure("its size stops growing")

    @property
    def certain(self) -> int:
        """The longest stream for which it is this number, to the last digit (or as near as floats are)."""
        return min(self.limit, max(self.drift.fits, LONG)) if self.floating and self.growth else self.limit

    @property
    def repeats(self) -> int:
        """The period in frames of the stream."""
        return self.period * self.unit

    @property
    def settled(self) -> int:
        """The shortest length from which on it only goes on."""
        return (self.horizon + 1) * self.unit

    def look(self, count: int) -> Array:
        """The values at the first `count` lengths."""
        seen = len(self.values)
        if count <= seen:
            return self.values[:count]
        if count > MOST + 1:
            raise TooFar(count)
        n = np.arange(seen, count)
        periods, place = np.divmod(n - self.horizon, self.period)
        more = self.values[self.horizon + place]
        if self.growth:
            grown = periods * (int(self.growth) if self.growth.denominator == 1 else float(self.growth))
            more = more + grown.astype(self.values.dtype)
        return np.concatenate([self.values, more])

    def at(self, length: int) -> Any:
        """The value at one length (a multiple of the unit)."""
        n = length // self.unit - 1
        if n < len(self.values):
            return self.values[n].item()
        periods, place = divmod(n - self.horizon, self.period)
        value = self.values[self.horizon + place].item()
        return value + (periods * self.growth if not self.floating else float(periods * self.growth))

    def reduced(self) -> Series:
        """The same with the shortest period and the nearest horizon."""
        out = self
        near = slack(self, len(self.values))
        for p in _divisors(out.period):
            growth = out.growth * p / out.period
            tail = out.values[out.horizon :]
            if (out.floating or growth.denominator == 1) and _repeats(tail, p, growth, near[out.horizon :]):
                out = replace(out, values=out.values[: out.horizon + p], growth=growth)
                break
        if not out.horizon:
            return out
        p, values = out.period, out.values
        near = near[: len(values)]
        off = _difference(values[p:], values[:-p], out.growth, near[p:]) if len(values) > p else np.zeros(0, bool)
        wrong = np.flatnonzero(off[: out.horizon])
        horizon = int(wrong[-1]) + 1 if wrong.size else 0
        return replace(out, values=values[: horizon + p], horizon=horizon)


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})[:-1]


def slack(s: Series, count: int) -> Array:
    """By how much the numbers seen may be off in double precision, which has rounded just as often as the model."""
    if not s.floating or (s.drift.none and not s.growth):
        return np.zeros(count)
    lengths = (np.arange(count) + 1) * s.unit
    size = np.abs(np.nan_to_num(s.look(count), posinf=0.0, neginf=0.0))
    return np.asarray(4 * (s.drift.off(lengths) * 2.0 ** (s.drift.digits - 53) + size * 2.0**-53))


def _repeats(tail: Array, p: int, growth: Fraction, slack: Array) -> bool:
    return not _difference(tail[p:], tail[:-p], growth, slack[p:]).any()


def _difference(later: Array, earlier: Array, growth: Fraction, slack: Array) -> Array:
    """Where `later` is not `earlier` plus the growth."""
    if later.dtype.kind != "f":
        return later != (earlier + int(growth) if growth else earlier)
    with np.errstate(invalid="ignore"):
        return ~((np.abs(later - earlier - float(growth)) <= slack) | (later == earlier) & (growth == 0))


def steady_growth(values: Array) -> tuple[Fraction, int] | None:
    """At which rate a number rises from the start, and at how many lengths it does: a table may end.

    values   1 1 2 2 3 3 | 9 9      rises of 1 every 2: 1/2, at 6 lengths
    """
    steps = np.diff(values)
    at = np.flatnonzero(steps)
    if len(at) == 1:
        return (Fraction(int(steps[at[0]])), len(values)) if len(steps) == 1 and steps[0] > 0 else None
    for k in range(1, min(len(at) // 2, TURN) + 1):
        turn = int(at[k] - at[0])
        alike = (at[k:] - at[:-k] == turn) & (steps[at[k:]] == steps[at[:-k]])
        n = len(alike) if alike.all() else int(alike.argmin())
        if n >= k and (risen := int(steps[at[:k]].sum())) > 0 and (steps[at[:k]] > 0).all():
            return Fraction(risen, turn), int(min(at[n] + turn, at[n + k] if n < len(alike) else at[n] + turn)) + 1
    return None


def constant(value: Any, unit: int = 1) -> Series:
    array = np.asarray(value).reshape(1)
    if array.dtype.kind not in "biuf":
        raise Unsure("it is no plain number")
    if array.dtype.kind in "iu":
        if int(array[0]) > INT64:
            raise Unsure("it is too large a number")
        return Series(array.astype(np.int64), unit=unit)
    if array.dtype.kind == "f":
        digits = OF_SIZE.get(array.dtype.itemsize, 24) if np.ndim(value) else 24
        return Series(array.astype(np.float64), unit=unit, drift=Drift(digits))
    return Series(array, unit=unit)


def length_itself(unit: int = 1, per: int = 1, longest: int = LONGEST) -> Series:
    """`per` times the stream's length."""
    return Series(np.array([unit * per]), growth=Fraction(unit * per), unit=unit, longest=longest)


def from_function(each: Callable[[Array], Array], settled: int, period: int, growth: int, unit: int = 1) -> Series:
    """A whole number that is known at any lengths: it grows by `growth` each `period` frames, from `settled` on."""
    turn = math.lcm(period, unit)
    horizon = -(-settled // unit)
    count = horizon + turn // unit
    if count > MOST:
        raise TooFar(count)
    values = np.asarray(each(np.arange(1, count + 1) * unit))
    return Series(values, horizon, Fraction(growth * turn, period), unit).reduced()


def aligned(*given: Series) -> tuple[int, int, list[Array]]:
    """A common horizon and period, and what was seen of each up to there."""
    period = math.lcm(*(s.period for s in given))
    horizon = max(s.horizon for s in given)
    if horizon + period > MOST:
        raise TooFar(horizon + period)
    return horizon, period, [s.look(horizon + period) for s in given]
