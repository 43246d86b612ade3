"""Arithmetic on numbers that go with the length, on all that was seen of them: where two part or meet is worked out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.lengths.float_limits import INT64, LARGEST, LONG, OF_SIZE, Drift, as_held, binary, shifts, step_of
from pulsify.lengths.float_limits import LONGEST as LONGEST
from pulsify.lengths.float_limits import Unsure as Unsure
from pulsify.lengths.float_limits import beside as _beside
from pulsify.lengths.float_limits import common as _common
from pulsify.lengths.float_limits import together as _together
from pulsify.lengths.number import MOST as MOST
from pulsify.lengths.number import TURN as TURN
from pulsify.lengths.number import Series as Series
from pulsify.lengths.number import TooFar as TooFar
from pulsify.lengths.number import aligned as aligned
from pulsify.lengths.number import constant as constant
from pulsify.lengths.number import from_function as from_function
from pulsify.lengths.number import length_itself as length_itself
from pulsify.lengths.number import slack

Array = np.ndarray[Any, Any]

NEVER = 1 << 40
HUGE = 1 << 61  # a number that large compares like any larger one
ULPS = 8  # of a function that two libraries need not round alike


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
    drift = _summed(a, b) if a.floating and b.floating else None
    return _rounded(_made(x + y, horizon, _grown(a, period) + _grown(b, period), a, b, drift=drift))


def _summed(a: Series, b: Series) -> Drift:
    """A sum with whole numbers is whole where the other one is."""
    drift = _together(a.drift, b.drift)
    for one, other in ((a, b), (b, a)):
        if one.drift.none and _whole(one, 1):
            return replace(drift, whole=other.drift.whole)
    return drift


def negated(a: Series) -> Series:
    if not a.floating and _largest(a.values) > INT64:
        raise Unsure("it runs over")
    values = a.values.astype(np.int64) if a.values.dtype == bool else a.values
    return replace(a, values=-values, growth=-a.growth)


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
    whole = _within(size, steep, 2.0**s.drift.digits)
    return replace(s, drift=s.drift.rounded(cap, size, steep, min(LONG, s.longest), whole), limit=limit)


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
    periods = np.where(seen * np.sign(growth) > 0, 0, np.floor(np.abs(seen) / abs(growth)) + 1)
    last = np.where(periods > 0, s.horizon + np.arange(s.period) + periods * s.period, s.horizon)
    comes = last[(periods > 0) & (last * s.unit < s.longest)]
    if not comes.size:
        return s.horizon if (periods == 0).all() else NEVER
    found = int(comes.max()) if comes.size == int((periods > 0).sum()) else s.longest // s.unit
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
        raise Unsure("two numbers are too close to say which is larger")
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
        return np.where(np.abs(x - near) <= slack(s, count), near, x)


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
    periods = (a.growth / whole).denominator
    if a.horizon + a.period * periods > MOST:
        raise TooFar(a.horizon + a.period * periods)
    count = a.horizon + a.period * periods
    return replace(a, values=a.look(count), growth=a.growth * periods)


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
        if (times := _times(a, b)) is None:
            raise Unsure("it is divided by a number that changes with the length")
        return _made(np.array([times]), 0, Fraction(0), a, b)
    horizon, _, (x, y) = aligned(a, b)
    safe = np.where(y == 0, 1, y)
    return _made(np.sign(x) * np.sign(safe) * (np.abs(x) // np.abs(safe)), horizon, Fraction(0), a, b)


def _times(a: Series, b: Series) -> int | None:
    """The whole number that a is times b, at every length (B*n // B); None if it is not the same one."""
    if not b.growth:
        return None
    times = a.growth * b.period / (b.growth * a.period)
    if times.denominator > 1:
        return None
    left = subtract(a, multiply(b, constant(int(times), b.unit)))
    grown = signed(b)
    return int(times) if left.constant and not left.item and grown.values.all() else None


def remainder(a: Series, b: Series, towards_zero: bool = False) -> Series:
    """Mod: of the divisor's sign, or (fmod) of the dividend's."""
    how = np.fmod if towards_zero else np.mod
    if not b.constant:
        if a.growth or b.growth:
            if a.floating or b.floating or _times(a, b) is None:
                raise Unsure("it is divided by a number that changes with the length")
            return _made(np.array([0]), 0, Fraction(0), a, b)
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
        off[off <= slack(s, len(clean))[np.isfinite(clean)]] = 0.0
        apart = off[off > 0]
        gap, met = float(apart.min()) if apart.size else 1.0, bool((off == 0).any())
        limit = min(limit, s.drift.certain(gap, met, whole=how is not np.round))
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
        raise Unsure("it is not a number (NaN), or too large a one, at some lengths")
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
