"""Numbers that only rise or only fall with the length, on no straight line: T * T, log T."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulsify.lengths.float_limits import INT64, LONG, as_held
from pulsify.lengths.series import LONGEST, MOST, ULPS, Series, TooFar, Unsure

Array = np.ndarray[Any, Any]
Ends = tuple[Array, Array]
EXACT = 2.0**53  # whole numbers are exact in double precision up to here


@dataclass(frozen=True, eq=False)
class Curve:
    """A number that only rises (or only falls) with the length, on no straight line: T * T, log T.

    at: between which two numbers it lies, at an array of lengths; both are one where the runtime rounds it for certain
    in this way. digits: of its floats, none for whole numbers. It can be compared with a constant: bisection finds
    where it passes that. limit: the longest stream for which all this is true.
    """

    at: Callable[[Array], Ends]
    rises: bool
    unit: int = 1
    digits: int | None = None
    limit: int = LONGEST

    def compare(self, bound: float, how: Callable[[Array, Array], Array]) -> Series:
        if how in (np.equal, np.not_equal):
            raise Unsure("whether two numbers are equal depends on the length in no linear way")
        if abs(bound) > EXACT and self.digits is None:
            raise Unsure("it is compared with too large a number")

        def test(n: int) -> tuple[bool, bool]:
            low, high = (float(x[0]) for x in self.at(np.array([n * self.unit])))
            return bool(how(np.array(low), np.array(bound))), bool(how(np.array(high), np.array(bound)))

        last = max(min(LONGEST, self.limit) // self.unit - 1, 1)
        if np.isnan([x for n in (1, last) for x in self.at(np.array([n * self.unit]))]).any():
            raise Unsure("it is not a number (NaN) at some lengths")
        first, final = test(1), test(last)
        low, high = 1, last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if test(middle)[0] == final[0] else (middle, high)
        changes = first[0] != final[0]
        if any(x != y for x, y in (first, final, *((test(low), test(high)) if changes else ()))):
            raise Unsure("two numbers are too close to say which is larger")
        if not changes:
            return Series(np.array([final[0]]), unit=self.unit, limit=self.limit)
        if high > MOST:
            raise TooFar(high)
        values = np.append(np.full(high - 1, first[0]), final[0])
        return Series(values, high - 1, unit=self.unit, limit=self.limit)

    def then(self, how: Callable[[Array], Array], rises: bool = True, exact: bool = True) -> Curve:
        """A function of it that only rises, or falls; exact: rounded as the runtime rounds it, or nearly so."""

        def at(lengths: Array) -> Ends:
            with np.errstate(all="ignore"):
                ends = [np.asarray(how(x), np.float64) for x in self.at(lengths)]
            low, high = ends if rises else ends[::-1]
            return _widened(low, high, self.digits, 0 if exact else ULPS)

        return _certain(Curve(at, self.rises == rises, self.unit, self.digits, self.limit))

    @property
    def positive(self) -> bool:
        """Is it nowhere less than zero?"""
        ends = [self.at(np.array([n * self.unit]))[0][0] for n in (1, max(min(LONGEST, self.limit) // self.unit, 1))]
        return bool(min(ends) >= 0)

    def times(self, other: Curve) -> Curve:
        """Of two that both rise, from zero on."""

        def at(lengths: Array) -> Ends:
            (a, b), (c, d) = self.at(lengths), other.at(lengths)
            with np.errstate(all="ignore"):
                return _widened(a * c, b * d, self.digits, 0)

        return _certain(Curve(at, True, self.unit, self.digits, min(self.limit, other.limit)))

    def cast(self, digits: int | None) -> Curve:
        """To a type of float, or (None) to a whole number."""

        def at(lengths: Array) -> Ends:
            low, high = self.at(lengths)
            if digits is None:
                return np.trunc(low), np.trunc(high)
            return _widened(low, high, digits, 0)

        return _certain(Curve(at, self.rises, self.unit, digits, self.limit))


def _widened(low: Array, high: Array, digits: int | None, ulps: int) -> Ends:
    """As a type of float holds it; whole numbers beyond double precision lie between two of its own."""
    if digits is None:
        low, high = (np.where(np.abs(x) > EXACT, x * (1 + s * 2.0**-50 * np.sign(x)), x) for x, s in _sides(low, high))
        return low, high
    low, high = (np.where(np.isfinite(x), x + s * ulps * np.abs(x) * 2.0**-digits, x) for x, s in _sides(low, high))
    return as_held(low, digits), as_held(high, digits)


def _sides(low: Array, high: Array) -> tuple[tuple[Array, int], tuple[Array, int]]:
    return (low, -1), (high, 1)


def _certain(curve: Curve) -> Curve:
    """A whole number runs over somewhere: certain only for streams that are shorter."""
    if curve.digits is not None:
        return curve
    bound = INT64 * (1 - 2.0**-20)

    def fits(n: int) -> bool:
        return bool(max(abs(float(x[0])) for x in curve.at(np.array([n * curve.unit]))) < bound)

    low, high = 0, LONGEST // curve.unit
    if fits(high) and fits(1):
        return curve
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low or not fits(1):
        raise Unsure("it runs over")
    return Curve(curve.at, curve.rises, curve.unit, None, min(curve.limit, low * curve.unit))


def curved(line: Series) -> Curve:
    """A straight line that only rises or falls, as a curve."""
    count = len(line.values)
    step = np.diff(line.look(count + line.period).astype(np.float64))
    if not ((step >= 0).all() or (step <= 0).all()):
        raise Unsure("it neither rises nor falls with the length")

    def at(lengths: Array) -> Ends:
        n = lengths // line.unit - 1
        periods = np.maximum(n - line.horizon, 0) // line.period
        place = np.where(n < line.horizon, n, line.horizon + np.maximum(n - line.horizon, 0) % line.period)
        with np.errstate(all="ignore"):
            value = line.values[place].astype(np.float64) + periods * float(line.growth)
        if not line.floating:
            return value, value
        off = np.abs(value) * 2.0**-50 if once else line.drift.off(lengths)
        return _widened(value - off, value + off, line.drift.digits, 0)

    once = line.drift.roundings <= 1 and line.drift.exact >= LONG  # then it is known to the last digit
    limit = min(line.limit, line.drift.exact) if once else line.limit
    return Curve(at, line.growth > 0, line.unit, line.drift.digits if line.floating else None, limit)


Number = Series | Curve
