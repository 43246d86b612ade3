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

from pulsify.convert.known.floats import INT64, LARGEST, LONG, OF_SIZE, Drift, as_held, binary, shifts, step_of
from pulsify.convert.known.floats import LONGEST as LONGEST
from pulsify.convert.known.floats import Unsure as Unsure
from pulsify.convert.known.floats import beside as _beside
from pulsify.convert.known.floats import common as _common
from pulsify.convert.known.floats import together as _together

Array = np.ndarray[Any, Any]

MOST = 1 << 22  # lengths that are looked at, at the most
TURN = 1 << 6  # rises after which the rows of a table rise alike
NEVER = 1 << 40
HUGE = 1 << 61  # a number that large compares like any larger one
ULPS = 8  # of a function that two libraries need not round alike


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
        slack = _slack(self, len(self.values))
        for p in _divisors(out.period):
            growth = out.growth * p / out.period
            tail = out.values[out.horizon :]
            if (out.floating or growth.denominator == 1) and _repeats(tail, p, growth, slack[out.horizon :]):
                out = replace(out, values=out.values[: out.horizon + p], growth=growth)
                break
        if not out.horizon:
            return out
        p, values = out.period, out.values
        slack = slack[: len(values)]
        off = _difference(values[p:], values[:-p], out.growth, slack[p:]) if len(values) > p else np.zeros(0, bool)
        wrong = np.flatnonzero(off[: out.horizon])
        horizon = int(wrong[-1]) + 1 if wrong.size else 0
        return replace(out, values=values[: horizon + p], horizon=horizon)


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})[:-1]


def _slack(s: Series, count: int) -> Array:
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


# ---- two of them side by side


def aligned(*given: Series) -> tuple[int, int, list[Array]]:
    """A common horizon and period, and what was seen of each up to there."""
    period = math.lcm(*(s.period for s in given))
    horizon = max(s.horizon for s in given)
    if horizon + period > MOST:
        raise TooFar(horizon + period)
    return horizon, period, [s.look(horizon + period) for s in given]


def _made(values: Array, horizon: int, growth: Fraction, *of: Series, drift: Drift | None = None) -> Series:
    if values.dtype.kind != "f":
        if abs(growth) > INT64:
            raise Unsure("it runs over")
        drift = Drift()
    return replace(
        of[0],
        values=values,
        horizon=horizon,
        growth=growth,
        drift=_beside(*(s.drift for s in of if s.floating)) if drift is None else drift,
        limit=min(s.limit for s in of),
        longest=min(s.longest for s in of),
    ).reduced()


def _grown(s: Series, period: int) -> Fraction:
    return s.growth * period / s.period


def _largest(x: Array) -> int:
    return max(abs(int(x.max())), abs(int(x.min()))) if x.size else 0


def _check_sum(x: Array, y: Array) -> None:
    if x.dtype.kind == "i" and y.dtype.kind == "i" and _largest(x) + _largest(y) > INT64:
        raise Unsure("it runs over")


def add(a: Series, b: Series) -> Series:
    horizon, period, (x, y) = aligned(a, b)
    _check_sum(x, y)
    drift = _together(a.drift, b.drift) if a.floating and b.floating else None
    return _rounded(_made(x + y, horizon, _grown(a, period) + _grown(b, period), a, b, drift=drift))


def negated(a: Series) -> Series:
    if not a.floating and _largest(a.values) > INT64:
        raise Unsure("it runs over")
    return replace(a, values=-a.values, growth=-a.growth)


def subtract(a: Series, b: Series) -> Series:
    return add(a, negated(b))


def difference(a: Series, b: Series) -> Series:
    """a - b as numbers are, for a comparison: the runtime subtracts nothing, and rounds nothing."""
    a, b = _tamed(a, b), _tamed(b, a)
    horizon, period, (x, y) = aligned(a, b)
    _check_sum(x, y)
    drift = None
    if a.floating and b.floating:
        drift = replace(_together(a.drift, b.drift), roundings=max(a.drift.roundings, b.drift.roundings))
    return _made(x - y, horizon, _grown(a, period) - _grown(b, period), a, b, drift=drift)


def _tamed(a: Series, beside: Series) -> Series:
    """The same beside another number: what is huge compares like any other that is."""
    if a.floating or a.growth or _largest(a.values) <= HUGE:
        return a
    limit = min(a.limit, within(beside, HUGE))
    return replace(a, values=np.clip(a.values, -HUGE, HUGE), limit=limit)


def multiply(a: Series, b: Series) -> Series:
    if b.constant or (not a.constant and not b.growth):
        a, b = b, a
    if a.constant:
        factor = a.values[0]
        if factor.dtype.kind != "f" and abs(int(factor)) * _largest(b.values) > INT64:
            raise Unsure("it runs over")
        exact = Fraction(factor.item()) if np.isfinite(factor) else Fraction(0)
        drift = b.drift.scaled(float(factor)) if b.floating else None
        return _rounded(_made(b.values * factor, b.horizon, b.growth * exact, b, a, drift=drift), exact)
    if a.growth or b.growth:
        raise Unsure("it is a product of two numbers that change with the length")
    horizon, _, (x, y) = aligned(a, b)
    if not a.floating and _largest(x) * _largest(y) > INT64:
        raise Unsure("it runs over")
    for s in (a, b):
        _check_steady(s)
    return _rounded(_made(x * y, horizon, Fraction(0), a, b))


def _check_steady(s: Series) -> None:
    """Unsure if what is the same again and again is so only but for rounding."""
    if s.floating and not s.drift.none:
        raise Unsure("it is rounded, otherwise at every length")


def _rounded(s: Series, factor: Fraction | None = None) -> Series:
    """A sum, or a product with a number, as the runtime holds it: exact while it fits, then a little off."""
    if not s.floating:
        return s
    if not s.growth and s.drift.none:
        return replace(s, values=as_held(s.values, s.drift.digits)).reduced()
    step = step_of(s.values) if s.growth.denominator & (s.growth.denominator - 1) == 0 else None
    step = _common(step, abs(s.growth)) if step is not None else None
    if factor and shifts(factor, None if step is None else step / abs(factor)):
        return s
    size, steep = _extent(s)
    cap = _within(size, steep, binary(step) * 2.0**s.drift.digits) if step else 0
    limit = min(s.limit, max(_within(size, steep, LARGEST[s.drift.digits]), 1))
    return replace(s, drift=s.drift.rounded(cap, size, steep, min(LONG, s.longest)), limit=limit)


def _extent(s: Series) -> tuple[float, float]:
    """How large it is at the most: size + steep * frames."""
    steep = float(s.rate)
    x = s.values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = np.abs(x - steep * s.unit * np.arange(1, len(x) + 1))
    return float(off[np.isfinite(x)].max(initial=0.0)), abs(steep)


def _within(size: float, steep: float, bound: float) -> int:
    if size > bound:
        return 0
    return int(min((bound - size) / steep, LONGEST)) if steep else LONGEST


def within(s: Series, bound: int) -> int:
    """The longest stream for which a number stays within a bound; Unsure if it never does."""
    if not s.growth:
        longest = LONGEST if s.floating or _largest(s.values) <= bound else 0
    else:
        longest = _within(*_extent(s), bound * (1 - 2.0**-40) if bound > 1 << 50 else bound)
    if longest < 1:
        raise Unsure("it is too large a number")
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
    if not a.growth and not b.growth and not (a.floating and not (a.drift.none and b.drift.none)):
        horizon, _, (x, y) = aligned(a, b)
        return _made(how(x, y), horizon, Fraction(0), a, b)
    d = difference(a, b)
    if d.growth:
        until = _crossing(d)
        if until < NEVER:
            limit = min(d.limit, _clear_behind(d, until))
            values = how(_clean(d, until + 1), np.zeros(until + 1))
            return Series(values, until, unit=d.unit, limit=limit, longest=d.longest).reduced()
    count = len(d.values)
    limit = min(d.limit, _clear_of(d, np.abs(_clean(d, count)))) if d.floating else d.limit
    return _made(how(_clean(d, count), np.zeros(count)), d.horizon, Fraction(0), replace(d, limit=limit))


def _clear_behind(d: Series, until: int) -> int:
    """The longest stream for which rounding does not decide the sign of a number that grows for ever from there on."""
    if not d.floating:
        return LONGEST
    count = until + d.period + 1
    off = np.abs(_clean(d, count))
    lengths = (np.arange(count) + 1) * d.unit
    grows = float(abs(d.rate)) > 2 * d.drift.noise
    unclear = off <= d.drift.off(lengths)
    if d.drift.roundings <= 1:
        unclear &= (off > 0) | (lengths > d.drift.exact)
    unclear &= lengths > d.drift.fits
    if grows and not unclear.any():
        return LONGEST
    if d.drift.fits < 1:
        raise Unsure("it is too close to call")
    return d.drift.fits


def _clear_of(s: Series, off: Array) -> int:
    """The longest stream for which rounding does not decide the sign of a number that is so far from zero.

    If it grows, it passes zero only beyond the longest stream.
    """
    if s.drift.none:
        return LONGEST
    if not s.growth:
        apart = off[off > 0]
        return s.drift.certain(float(apart.min()) if apart.size else math.inf, bool((off == 0).any()))
    lengths = (np.arange(len(off)) + 1) * s.unit
    shrinks = replace(s.drift, noise=s.drift.noise + float(abs(s.rate)))
    if (off[: s.horizon] > s.drift.off(lengths[: s.horizon])).all():
        return max(s.drift.fits, shrinks.until(float(off[s.horizon :].min())))
    return s.drift.fits


def _clean(s: Series, count: int) -> Array:
    """What was seen; what is a whole number but for double precision's own rounding is that number."""
    x = s.look(count)
    if x.dtype.kind != "f":
        return x
    near = np.round(x)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x - near) <= _slack(s, count), near, x)


def extreme(a: Series, b: Series, how: Callable[[Array, Array], Array]) -> Series:
    """np.minimum or np.maximum."""
    if a.growth == b.growth == 0:
        horizon, _, (x, y) = aligned(a, b)
        return _made(how(x, y), horizon, Fraction(0), a, b)
    d = difference(a, b)
    limit = d.limit
    if not d.growth:
        horizon, period, (x, y) = aligned(a, b)
        return _made(how(x, y), horizon, _grown(a, period), a, replace(b, limit=limit))
    until = _crossing(d)
    if until >= NEVER:  # it never comes to that
        horizon, period, (x, y) = aligned(a, b)
        first = (x[horizon:] < y[horizon:]) == (how is np.minimum)
        if not (first == first[0]).all():
            raise Unsure("now one is larger and now the other")
        return _made(how(x, y), horizon, _grown(a if first[0] else b, period), a, replace(b, limit=limit))
    first = (d.growth < 0) == (how is np.minimum)
    wins = a if first else b
    horizon = max(until, wins.horizon)
    count = horizon + wins.period
    return _made(how(a.look(count), b.look(count)), horizon, wins.growth, a, replace(b, limit=limit))


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
        exact = 1 / Fraction(factor.item()) if np.isfinite(factor) else Fraction(0)
        drift = a.drift.scaled(1 / float(factor))
        return _rounded(_made(a.values / factor, a.horizon, a.growth * exact, a, b, drift=drift), exact)
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
        for s in (a, b):
            _check_steady(s)
        horizon, _, (x, y) = aligned(a, b)
        return _made(how(x, np.where(y == 0, 1, y)), horizon, Fraction(0), a, b)
    by = b.values[0]
    if not by:
        raise Unsure("it is divided by zero")
    if a.floating and (a.drift.fits < 1 or not _whole(a, 1)):
        raise Unsure("it is the remainder of a rounded number")
    s = stretched(signed(a) if towards_zero else a, Fraction(by.item()))
    exact = replace(s, limit=min(s.limit, s.drift.fits), drift=Drift(s.drift.digits)) if s.floating else s
    return _made(how(s.values, by), s.horizon, Fraction(0), exact, b)


def whole(a: Series, how: Callable[[Array], Array]) -> Series:
    """np.floor, np.ceil, np.round or np.trunc of a number; it stays of its type."""
    if not a.floating:
        return a
    s = stretched(signed(a) if how is np.trunc else a, Fraction(2 if how is np.round else 1))  # halves go to even
    clean = _clean(s, len(s.values))
    limit = s.limit
    if not s.drift.none:
        x = clean[np.isfinite(clean)] + (0.5 if how is np.round else 0.0)
        off = np.abs(x - np.round(x))
        off[off <= _slack(s, len(clean))[np.isfinite(clean)]] = 0.0
        apart = off[off > 0]
        limit = min(limit, s.drift.certain(float(apart.min()) if apart.size else 1.0, bool((off == 0).any())))
    return replace(s, values=how(clean), drift=Drift(s.drift.digits), limit=limit).reduced()


def cast(a: Series, kind: str, bits: int) -> Series:
    """To a bool ("b"), a whole number ("i", "u") or a float ("f") of so many bits."""
    if kind == "b":
        return compare(a, constant(0.0 if a.floating else 0, a.unit), np.not_equal)
    if kind == "f":
        digits = OF_SIZE[bits // 8]
        if a.floating:
            finer = digits >= a.drift.digits
            made = replace(a, drift=replace(a.drift, digits=digits))
            return made if finer and not (a.drift.none and not a.growth) else _rounded(made)
        return _rounded(replace(a, values=a.values.astype(np.float64), drift=Drift(digits)))
    s = whole(a, np.trunc)
    if a.floating and (not np.isfinite(s.values).all() or np.abs(s.values).max() >= 2.0**63):
        raise Unsure("it is no number, or too large a one, at some lengths")
    return replace(s, values=s.values.astype(np.int64), drift=Drift())


def fitting(s: Series, low: int, high: int) -> Series:
    """Of a type that runs over below and above: certain only for streams that are short enough."""
    if s.floating or s.values.dtype.kind == "b":
        return s
    below = int(s.values.min()) < low or (s.growth < 0 and low >= 0)
    if below:
        raise Unsure("it is negative, and held in a type that is not")
    return replace(s, limit=min(s.limit, within(s, high)))


def through(a: Series, how: Callable[[Array], Array], exact: bool = True) -> Series:
    """Any function of a number that does not grow; exact: rounded as the runtime rounds it, or nearly so."""
    if a.growth:
        raise Unsure("it is no linear function of the length")
    _check_steady(a)
    with np.errstate(all="ignore"):
        values = np.asarray(how(a.values))
    if values.dtype.kind != "f":
        return replace(a, values=values, drift=Drift()).reduced()
    made = _rounded(_made(values, a.horizon, Fraction(0), a))
    if exact:
        return made
    size = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    drift = replace(made.drift, fits=0, roundings=2, fuzz=size * ULPS * 2.0**-made.drift.digits)
    return replace(made, drift=drift)


def absolute(a: Series) -> Series:
    s = signed(a)
    negative = bool(s.values[s.horizon] < 0)
    if ((s.values[s.horizon :] < 0) != negative).any() and s.growth:
        raise Unsure("its sign changes again and again")
    return replace(s, values=np.abs(s.values), growth=-s.growth if negative else s.growth)
