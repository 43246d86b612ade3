"""Products of arrays over time, choices between them, and what decides where they are zero or as low as a mask is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from pulsify.lengths.affine_array import (
    FAR,
    ORIGIN,
    Pair,
    Spread,
    T,
    exactly,
    extreme,
    finite,
    joined,
    joint,
    lowest,
    most,
    pair,
    ragged,
    rounded,
    same_slope,
)
from pulsify.lengths.float_limits import Drift, shifts
from pulsify.lengths.series import Series

LOW = -500.0  # what is as low as this may be a mask
TINY = 1e-30  # what is smaller may be rounded to zero


def scaled(v: Spread, factor: Fraction) -> Spread:
    if not factor:
        if v.floating and not math.isfinite(most(v)):  # what is infinite, or no number, is not zero
            return replace(exactly(v), lo=-FAR, hi=FAR, hide=None, rises=False)
        return replace(
            v, slope={}, lo=0.0, hi=0.0, final=None, drift=Drift(v.drift.digits), grain=None, least=-FAR,
            hide=None, rises=False,
        )  # fmt: skip
    ends = sorted((v.lo * float(factor), v.hi * float(factor)))
    slope = {c: q * factor for c, q in v.slope.items()}
    grain = v.step * abs(factor) if v.floating and v.step is not None else None
    drift = v.drift.scaled(float(factor))
    out = replace(
        v, slope=slope, lo=ends[0], hi=ends[1], final=None, grain=grain, drift=drift, least=-FAR,
        **_hidden(v, ends[0], float(factor)),
    )  # fmt: skip
    return out if shifts(factor, v.step) and v.slope else rounded(out)


def product(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
    for x, y in ((a, b), (b, a)):
        if not y.slope and y.lo == y.hi and math.isfinite(y.lo) and y.drift.none:
            given = joint(
                sizes, x, y, slope=x.slope, lo=x.lo, hi=x.hi, grain=x.step, drift=x.drift, hide=x.hide, apart=x.apart,
                rises=x.rises,
            )  # fmt: skip
            return scaled(given, Fraction(y.lo))
        if y.final is not None and (made := _settling(sizes, x, y)) is not None:
            return made
    (a0, a1), (b0, b1) = a.range, b.range
    ends = [finite(x * y, 0.0) for x in (a0, a1) for y in (b0, b1)]
    lo, hi = (min(ends), max(ends)) if all(map(math.isfinite, ends)) or a.floating else (-FAR, FAR)
    apart = _apart(a) * _apart(b)
    known = apart > TINY or (_switch(a) and b.hide is not None) or (_switch(b) and a.hide is not None)
    hide = joined([_hiding(a), _hiding(b)]) if known and lo > LOW else None
    out = joint(sizes, exactly(a), exactly(b), lo=lo, hi=hi, hide=hide, apart=apart, grain=None)
    return rounded(out) if not out.slope and out.drift.none else out


def _settling(sizes: tuple[Series, ...], x: Spread, y: Spread) -> Spread | None:
    """A line times what is one number past some place on the line: a line again, but for what comes before."""
    if len(x.slope) != 1 or y.slope or y.final is None or not y.drift.none:
        return None
    ((c, q),) = x.slope.items()
    if set(y.near) - {pair(ORIGIN, c), pair(ORIGIN, T)}:
        return None
    reach = max(y.near.values(), default=0.0) + (ragged(x.sizes[c]) if c >= 0 else 0.0)  # no place lies further out
    before = float(abs(q) * x.rate(c)) * reach + most(x)
    off = before * max(abs(y.lo - y.final), abs(y.hi - y.final))
    given = joint(sizes, x, y, slope=x.slope, lo=x.lo, hi=x.hi, grain=x.step, drift=x.drift)
    out = scaled(given, Fraction(y.final))
    grain = x.step * y.step if x.step is not None and y.step is not None else None
    return rounded(replace(out, lo=out.lo - off, hi=out.hi + off, grain=grain))


def _hiding(v: Spread) -> Mapping[Pair, float]:
    """What decides where it is zero, or as low as a mask is."""
    return v.hide if v.hide is not None else exactly(v).near


def _apart(v: Spread) -> float:
    """Where it is not zero it is at least so far from it."""
    if v.hide is not None:
        return v.apart
    return float(v.step or 0) if v.drift.none and not v.slope else 0.0


def _switch(v: Spread) -> bool:
    """Is it zero, or one number?"""
    return v.drift.none and not v.slope and v.lo == 0 and v.step is not None and v.hi == float(v.step)


def _hidden(v: Spread, lowest: float, factor: float) -> dict[str, Any]:
    """Of a value times a number: is it zero where that is, and nowhere too low, or rounded to zero?"""
    known = v.hide is not None and lowest > LOW and (not v.apart or v.apart * abs(factor) > TINY)
    return {"hide": v.hide if known else None, "apart": v.apart * abs(factor)}


def absolute(v: Spread) -> Spread:
    if len(v.slope) > 1:
        lo, hi = v.range
        return replace(exactly(v), lo=0.0, hi=max(abs(lo), abs(hi)), least=0.0, rises=v.lo == v.hi)
    if not v.slope:
        return replace(v, lo=0.0, hi=most(v), final=None, least=0.0)
    return replace(extreme(v.sizes, v, negative(v), least=False), least=0.0)


def negative(v: Spread) -> Spread:
    slope = {c: -q for c, q in v.slope.items()}
    return replace(v, slope=slope, lo=-v.hi, hi=-v.lo, final=None, least=-FAR, **_hidden(v, -v.hi, 1.0))


def chosen(sizes: tuple[Series, ...], condition: Spread, a: Spread, b: Spread) -> Spread:
    """Where."""
    if condition.lo == condition.hi:  # one of them everywhere; a table that the other was read from may still end
        limit, until = (min(getattr(v, end) for v in (condition, a, b)) for end in ("limit", "until"))
        return replace(a if condition.lo else b, sizes=sizes, limit=limit, until=until)
    hide, apart = joined([condition.near, _hiding(a), _hiding(b)]), min(_apart(a), _apart(b))
    least = min(lowest(a), lowest(b))
    if same_slope(a, b):
        lo, hi = min(a.lo, b.lo), max(a.hi, b.hi)
        return joint(sizes, condition, a, b, slope=dict(a.slope), lo=lo, hi=hi, hide=hide, apart=apart, least=least)
    lo, hi = min(a.range[0], b.range[0]), max(a.range[1], b.range[1])
    return joint(sizes, condition, exactly(a), exactly(b), lo=lo, hi=hi, hide=hide, apart=apart, least=least)
