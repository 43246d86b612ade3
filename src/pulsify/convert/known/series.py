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
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MOST = 1 << 22  # lengths that are looked at, at the most
TURN = 1 << 6  # rises after which the rows of a table rise alike
LONGEST = 1 << 30  # no stream is longer: a change further out never comes
NEVER = 1 << 40
INFINITE = 1 << 60  # numbers this large stand for infinity
EXACT = 1 << 24  # whole numbers are exact in float32 up to here
ULPS = 8  # of a function that two libraries need not round alike
NEAR = 1e-7  # two numbers in double precision that are no further apart are the same one


class Unsure(Exception):
    """What a value does at some length is not known: why, and (if that is it) which length is too far to look at."""


class TooFar(Unsure):
    """It is known how far one would have to look, and that is too far."""

    def __init__(self, lengths: int) -> None:
        self.lengths = lengths
        super().__init__(f"one would have to look at streams of {lengths} frames, which is too far")


@dataclass(frozen=True, eq=False)
class Series:
    """A number at the lengths unit, 2 unit, 3 unit, ...: `values` of the first horizon + period of them.

    noise: what rounding may add, for every frame of the length; roundings: how many of them there were.
    limit: the longest stream for which all this is true (whole numbers in float32 end there). longest: no stream is
    longer, so that a change further out never comes.
    """

    values: Array
    horizon: int = 0
    growth: Fraction = Fraction(0)
    unit: int = 1
    noise: float = 0.0
    roundings: int = 0
    limit: int = LONGEST
    longest: int = LONGEST
    real: str = "f4"  # the type of its floats

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
        turns, place = np.divmod(n - self.horizon, self.period)
        more = self.values[self.horizon + place]
        if self.growth:
            grown = turns * (int(self.growth) if self.growth.denominator == 1 else float(self.growth))
            more = more + grown.astype(self.values.dtype)
        return np.concatenate([self.values, more])

    def at(self, length: int) -> Any:
        """The value at one length (a multiple of the unit)."""
        n = length // self.unit - 1
        if n < len(self.values):
            return self.values[n].item()
        turns, place = divmod(n - self.horizon, self.period)
        value = self.values[self.horizon + place].item()
        return value + (turns * self.growth if not self.floating else float(turns * self.growth))

    def reduced(self) -> Series:
        """The same with the shortest period and the nearest horizon."""
        out = self
        for p in _divisors(out.period):
            growth = out.growth * p / out.period
            tail = out.values[out.horizon :]
            if (out.floating or growth.denominator == 1) and _repeats(tail, p, growth):
                out = replace(out, values=out.values[: out.horizon + p], growth=growth)
                break
        if not out.horizon:
            return out
        p, values = out.period, out.values
        off = _difference(values[p:], values[:-p], out.growth) if len(values) > p else np.zeros(0, bool)
        wrong = np.flatnonzero(off[: out.horizon])
        horizon = int(wrong[-1]) + 1 if wrong.size else 0
        return replace(out, values=values[: horizon + p], horizon=horizon)


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})[:-1]


def _repeats(tail: Array, p: int, growth: Fraction) -> bool:
    return not _difference(tail[p:], tail[:-p], growth).any()


def _difference(later: Array, earlier: Array, growth: Fraction) -> Array:
    """Where `later` is not `earlier` plus the growth."""
    if later.dtype.kind != "f":
        return later != (earlier + int(growth) if growth else earlier)
    with np.errstate(invalid="ignore"):
        return ~((np.abs(later - earlier - float(growth)) < NEAR) | (later == earlier) & (growth == 0))


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
    if array.dtype.kind in "iu":
        array = np.clip(array, -INFINITE if array.dtype.kind == "i" else 0, INFINITE).astype(np.int64)
    if array.dtype.kind == "f":
        return Series(array.astype(np.float64), unit=unit, real=f"f{array.dtype.itemsize}" if np.ndim(value) else "f4")
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


# ---- two of them side by side


def aligned(*given: Series) -> tuple[int, int, list[Array]]:
    """A common horizon and period, and what was seen of each up to there."""
    period = math.lcm(*(s.period for s in given))
    horizon = max(s.horizon for s in given)
    if horizon + period > MOST:
        raise TooFar(horizon + period)
    return horizon, period, [s.look(horizon + period) for s in given]


def _made(values: Array, horizon: int, growth: Fraction, *of: Series) -> Series:
    real = next((s.real for s in of if s.floating), of[0].real)
    if values.dtype.kind == "f" and not growth:  # rounded as it is computed, operation by operation
        with np.errstate(over="ignore"):
            values = values.astype(real).astype(np.float64)
    return replace(
        of[0],
        real=real,
        values=values,
        horizon=horizon,
        growth=growth,
        noise=sum(s.noise for s in of) if values.dtype.kind == "f" else 0.0,
        roundings=sum(s.roundings for s in of) if values.dtype.kind == "f" else 0,
        limit=min(s.limit for s in of),
        longest=min(s.longest for s in of),
    ).reduced()


def _grown(s: Series, period: int) -> Fraction:
    return s.growth * period / s.period


def add(a: Series, b: Series) -> Series:
    horizon, period, (x, y) = aligned(a, b)
    if x.dtype.kind == "i" and float(np.abs(x).max()) + float(np.abs(y).max()) > 4.0 * INFINITE:
        raise Unsure("it is a sum of numbers that stand for infinity")
    return _rounded(_made(x + y, horizon, _grown(a, period) + _grown(b, period), a, b))


def negated(a: Series) -> Series:
    return replace(a, values=-a.values, growth=-a.growth)


def subtract(a: Series, b: Series) -> Series:
    return add(a, negated(b))


def multiply(a: Series, b: Series) -> Series:
    if b.constant or (not a.constant and not b.growth):
        a, b = b, a
    if a.constant:
        factor = a.values[0]
        exact = Fraction(factor.item()) if np.isfinite(factor) else Fraction(0)
        out = _made(b.values * factor, b.horizon, b.growth * exact, b, a)
        return _rounded(replace(out, noise=b.noise * abs(float(factor)) + a.noise))
    if a.growth or b.growth:
        raise Unsure("it is a product of two numbers that change with the length")
    horizon, _, (x, y) = aligned(a, b)
    return _rounded(_made(x * y, horizon, Fraction(0), a, b))


def _rounded(s: Series) -> Series:
    """A sum or product in float32: exact while it is a short binary fraction, else a little off."""
    if not s.floating or not s.growth:
        return s
    if s.real == "f2":
        raise Unsure("it is counted in half precision")
    dyadic = next((d for d in (1, 2, 4, 8, 16, 32, 64, 256, 1024) if _whole(s, d)), None)
    if dyadic is not None:
        return replace(s, limit=min(s.limit, within(s, EXACT // dyadic)))
    return replace(s, noise=s.noise + float(abs(s.rate)) / EXACT * 2, roundings=s.roundings + 1)


def within(s: Series, bound: int) -> int:
    """The longest stream for which a number stays within a bound; Unsure if it never does."""
    if not s.growth:
        if np.abs(s.values[np.isfinite(s.values)]).max(initial=0) > bound:
            raise Unsure("it is too large to be exact")
        return LONGEST
    off = np.abs(s.values - float(s.rate) * s.unit * np.arange(1, len(s.values) + 1)).max()
    longest = int((bound - off) / float(abs(s.rate)))
    if longest < 1:
        raise Unsure("it is too large to be exact")
    return longest


def _whole(s: Series, times: int) -> bool:
    scaled = s.values * times
    return bool((scaled == np.round(scaled)).all()) and (s.growth * times).denominator == 1


# ---- where it parts: comparisons, division


def _crossing(s: Series) -> int:
    """The number of lengths after which a growing number has its last sign for ever (NEVER: no stream is so long)."""
    seen = s.values[s.horizon :].astype(np.float64)
    growth = float(s.growth)
    turns = np.where(seen * np.sign(growth) > 0, 0, np.floor(np.abs(seen) / abs(growth)) + 1)
    last = np.where(turns > 0, s.horizon + np.arange(s.period) + turns * s.period, s.horizon)
    comes = last[(turns > 0) & (last * s.unit < s.longest)]
    if not comes.size:
        return s.horizon if (turns == 0).all() else NEVER
    found = int(comes.max()) if comes.size == int((turns > 0).sum()) else s.longest // s.unit
    if found > MOST:
        raise TooFar(found)
    return found


def compare(a: Series, b: Series, how: Callable[[Array, Array], Array]) -> Series:
    """how: np.less and its kind, or np.equal."""
    if a.values.dtype.kind == "b":
        a, b = (replace(s, values=s.values.astype(np.int64)) for s in (a, b))
    d = subtract(a, b)
    if d.growth:
        until = _crossing(d)
        if until < NEVER:  # behind that rounding changes nothing any more
            limit = LONGEST if d.floating and until * d.unit <= d.limit else d.limit
            count = until + 1
            if d.floating and d.roundings:
                _check_clear(d, a, count)
            values = how(_clean(d.look(count)), np.zeros(count))
            return Series(values, until, unit=d.unit, limit=limit, longest=d.longest).reduced()
    if d.floating and not d.growth and d.noise and (np.abs(d.values) <= d.noise).any():
        raise Unsure("it is too close to call")
    limit = _margin(d) if d.floating else d.limit
    return _made(how(_clean(d.values), np.zeros(len(d.values))), d.horizon, Fraction(0), replace(d, limit=limit))


def _check_clear(d: Series, a: Series, count: int) -> None:
    """Unsure if rounding decides how two numbers compare: they are nearly equal somewhere."""
    lengths = (np.arange(count) + 1) * d.unit
    off = d.noise * lengths + np.abs(a.look(count).astype(np.float64)) * 4 / EXACT
    if (np.abs(d.look(count)) <= off).any():
        raise Unsure("it is too close to call")


def _clean(x: Array) -> Array:
    """What is a whole number but for double precision's own rounding is that number."""
    if x.dtype.kind != "f":
        return x
    near = np.round(x)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x - near) < NEAR, near, x)


def _margin(s: Series) -> int:
    """How long a stream may be before rounding could carry the number across a whole one; Unsure if it may at once."""
    x = s.values[np.isfinite(s.values)]
    off = np.abs(x - np.round(x))
    if s.roundings > 1 and s.growth and (off < NEAR).any():
        raise Unsure("it is rounded more than once before it is cut to a whole number")
    if not s.growth or not s.noise:
        return s.limit
    apart = off[off >= NEAR]
    return min(s.limit, int(apart.min() / s.noise)) if apart.size else s.limit


def extreme(a: Series, b: Series, how: Callable[[Array, Array], Array]) -> Series:
    """np.minimum or np.maximum."""
    d = subtract(a, b)
    if not d.growth:
        horizon, period, (x, y) = aligned(a, b)
        return _made(how(x, y), horizon, _grown(a, period), a, b)
    until = _crossing(d)
    if until >= NEVER:  # it never comes to that
        horizon, period, (x, y) = aligned(a, b)
        first = (x[horizon:] < y[horizon:]) == (how is np.minimum)
        if not (first == first[0]).all():
            raise Unsure("now one is larger and now the other")
        return _made(how(x, y), horizon, _grown(a if first[0] else b, period), a, b)
    first = (d.growth < 0) == (how is np.minimum)
    wins = a if first else b
    horizon = max(until, wins.horizon)
    count = horizon + wins.period
    return _made(how(a.look(count), b.look(count)), horizon, wins.growth, a, b)


def choose(condition: Series, a: Series, b: Series) -> Series:
    """Where."""
    if a.rate == b.rate:
        horizon, period, (c, x, y) = aligned(condition, a, b)
        return _made(np.where(c, x, y), horizon, _grown(a, period), a, b, condition)
    if condition.period != 1:
        raise Unsure("it is a choice, again and again, between numbers that grow apart")
    wins = a if condition.values[-1] else b
    horizon = max(condition.horizon, wins.horizon)
    count = horizon + wins.period
    values = np.where(condition.look(count), a.look(count), b.look(count))
    return _made(values, horizon, wins.growth, a, b, condition)


def signed(a: Series) -> Series:
    """The same, seen at least until its sign is the last one."""
    if not a.growth:
        return a
    until = _crossing(a)
    if until >= NEVER or until <= a.horizon:
        return a
    return replace(a, values=a.look(until + a.period), horizon=until)


def stretched(a: Series, whole: Fraction) -> Series:
    """The same with a period so long that it grows by a multiple of `whole`."""
    turns = (a.growth / whole).denominator
    if a.horizon + a.period * turns > MOST:
        raise TooFar(a.horizon + a.period * turns)
    count = a.horizon + a.period * turns
    return replace(a, values=a.look(count), growth=a.growth * turns)


def divide(a: Series, b: Series) -> Series:
    """Of whole numbers towards zero, of others exactly."""
    if a.floating or b.floating:
        if not b.constant:
            raise Unsure("it is divided by a number that changes with the length")
        factor = b.values[0]
        if not factor:
            raise Unsure("it is divided by zero")
        out = _made(a.values / factor, a.horizon, a.growth / Fraction(factor.item()), a, b)
        return _rounded(replace(out, noise=a.noise / abs(float(factor))))
    if b.constant:
        by = int(b.values[0])
        if not by:
            raise Unsure("it is divided by zero")
        s = stretched(signed(a), Fraction(abs(by)))
        values = np.sign(s.values) * np.sign(by) * (np.abs(s.values) // abs(by))
        return _made(values, s.horizon, s.growth / by, s, b)
    if a.growth or b.growth:
        raise Unsure("it is divided by a number that changes with the length")
    horizon, _, (x, y) = aligned(a, b)
    safe = np.where(y == 0, 1, y)
    return _made(np.sign(x) * np.sign(safe) * (np.abs(x) // np.abs(safe)), horizon, Fraction(0), a, b)


def remainder(a: Series, b: Series, towards_zero: bool = False) -> Series:
    """Mod: of the divisor's sign, or (fmod) of the dividend's."""
    how = np.fmod if towards_zero else np.mod
    if not b.constant:
        if a.growth or b.growth:
            raise Unsure("it is divided by a number that changes with the length")
        horizon, _, (x, y) = aligned(a, b)
        return _made(how(x, np.where(y == 0, 1, y)), horizon, Fraction(0), a, b)
    by = b.values[0]
    if not by:
        raise Unsure("it is divided by zero")
    if a.floating and (a.noise or not _whole(a, 1)):
        raise Unsure("it is the remainder of a rounded number")
    s = stretched(signed(a) if towards_zero else a, Fraction(by.item()))
    return _made(how(s.values, by), s.horizon, Fraction(0), s, b)


def whole(a: Series, how: Callable[[Array], Array]) -> Series:
    """np.floor, np.ceil, np.round or np.trunc of a number; it stays of its type."""
    if not a.floating:
        return a
    limit = _margin(a if how is not np.round else replace(a, values=a.values + 0.5))
    s = stretched(signed(a) if how is np.trunc else a, Fraction(2 if how is np.round else 1))  # halves go to even
    return replace(s, values=how(_clean(s.values)), noise=0.0, roundings=0, limit=limit).reduced()


def cast(a: Series, kind: str, bits: int) -> Series:
    """To a bool ("b"), a whole number ("i", "u") or a float ("f") of so many bits."""
    if kind == "b":
        return compare(a, constant(0, a.unit), np.not_equal)
    if kind == "f":
        if a.floating:
            if not a.growth:
                return replace(a, values=a.values.astype(f"f{bits // 8}").astype(np.float64), real=f"f{bits // 8}")
            if f"f{bits // 8}" < a.real:
                raise Unsure("it is counted in another precision")
            return replace(a, real=f"f{bits // 8}")
        exact = {16: 1 << 11, 32: EXACT, 64: 1 << 53}.get(bits, EXACT)
        made = replace(a, values=a.values.astype(np.float64), real=f"f{bits // 8}")
        return replace(made, limit=min(a.limit, within(a, exact)))
    s = whole(a, np.trunc)
    if a.floating and not np.isfinite(s.values).all():
        raise Unsure("it is no number at some lengths")
    if bits < 32 and (s.growth or s.values.min() < 0 or s.values.max() >= 1 << (bits - 1)):
        raise Unsure(f"it may be too large for {bits} bits")
    return replace(s, values=s.values.astype(np.int64))


def through(a: Series, how: Callable[[Array], Array], exact: bool = True) -> Series:
    """Any function of a number that does not grow; exact: rounded as the runtime rounds it, or nearly so."""
    if a.growth:
        raise Unsure("it is no linear function of the length")
    with np.errstate(all="ignore"):
        values = np.asarray(how(a.values))
    if values.dtype.kind != "f":
        return replace(a, values=values).reduced()
    finite = np.abs(values[np.isfinite(values)])
    noise = 0.0 if exact else float(finite.max(initial=0.0)) * ULPS / EXACT
    return replace(_made(values, a.horizon, Fraction(0), a), noise=a.noise + noise)


def absolute(a: Series) -> Series:
    s = signed(a)
    negative = bool(s.values[s.horizon] < 0)
    if ((s.values[s.horizon :] < 0) != negative).any() and s.growth:
        raise Unsure("its sign changes again and again")
    return replace(s, values=np.abs(s.values), growth=-s.growth if negative else s.growth)


@dataclass(frozen=True, eq=False)
class Curve:
    """A number that only rises (or only falls) with the length, on no straight line: T * T, log T.

    at: its value at an array of lengths. It can be compared with a constant: bisection finds where it passes that.
    """

    at: Callable[[Array], Array]
    rises: bool
    unit: int = 1

    def compare(self, bound: float, how: Callable[[Array, Array], Array]) -> Series:
        if how in (np.equal, np.not_equal):
            raise Unsure("whether a number that is no linear function of the length equals another")

        def test(lengths: Array) -> Array:
            return np.asarray(how(self.at(lengths), np.full(len(lengths), bound)))

        def close(n: int) -> bool:
            here = float(self.at(np.array([n * self.unit]))[0])
            return abs(here - bound) <= max(abs(here), abs(bound)) * ULPS / EXACT and here != bound

        last = LONGEST // self.unit - 1
        first, final = test(np.array([self.unit, last * self.unit]))
        low, high = 1, last
        while high - low > 1:
            middle = (low + high) // 2
            if bool(test(np.array([middle * self.unit]))[0]) == bool(final):
                high = middle
            else:
                low = middle
        if first == final:
            return Series(np.array([bool(final)]), unit=self.unit)
        if high > MOST:
            raise TooFar(high)
        if close(high) or close(low):
            raise Unsure("it is too close to call")
        values = np.append(np.full(high - 1, bool(first)), bool(final))
        return Series(values, high - 1, unit=self.unit)


def monotone(a: Series | Curve, how: Callable[[Array], Array], rises: bool) -> Curve:
    """A function that only rises or falls, of a number that does: at any length."""
    if isinstance(a, Curve):
        return Curve(lambda t: how(a.at(t)), a.rises == rises, a.unit)
    line = a
    count = len(line.values)
    step = np.diff(line.look(count + line.period).astype(np.float64))
    if not ((step >= 0).all() or (step <= 0).all()):
        raise Unsure("it neither rises nor falls with the length")
    up = line.growth > 0

    def at(lengths: Array) -> Array:
        n = lengths // line.unit - 1
        turns = np.maximum(n - line.horizon, 0) // line.period
        place = np.where(n < line.horizon, n, line.horizon + np.maximum(n - line.horizon, 0) % line.period)
        with np.errstate(all="ignore"):
            return np.asarray(how(line.values[place].astype(np.float64) + turns * float(line.growth)))

    return Curve(at, up == rises, line.unit)


Number = Series | Curve
