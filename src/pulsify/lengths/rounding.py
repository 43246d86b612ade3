"""Spreads through operators that make whole numbers of them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from pulsify.lengths.affine_array import FAR, Spread, cleared, exactly, most, plane, streamwise, with_near
from pulsify.lengths.affine_products import scaled
from pulsify.lengths.float_limits import Drift, common
from pulsify.lengths.series import MOST, TooFar, Unsure


def repeating(v: Spread, whole: Fraction) -> int:
    """The period after which the slope's part has changed by a multiple of `whole`, whichever coordinate moves on."""
    period = v.period
    for q in streamwise(v).values():
        period *= (q * period / whole).denominator
    if period > MOST:
        raise TooFar(period)
    return period


def cut(v: Spread, towards_zero: bool = False) -> Spread:
    """Rounded to whole numbers, in whichever direction; halves may go to the even one."""
    if not v.floating:
        return v
    if not math.isfinite(most(v)):
        out = exactly(v)
        out = cleared(out, None) if out.rough else out
        return replace(out, final=None, hide=None, rises=False, drift=Drift(v.drift.digits), grain=Fraction(1))
    v = cleared(v, Fraction(1, 2))
    if towards_zero:
        v = with_near(v, plane(v, most(v) + 1))
    return replace(
        v, period=repeating(v, Fraction(2)), lo=v.lo - 1, hi=v.hi + 1, drift=Drift(v.drift.digits), grain=Fraction(1),
        final=None, hide=None, rises=False, least=math.floor(v.least) if math.isfinite(v.least) else -FAR,
    )  # fmt: skip


def divided(v: Spread, by: Fraction) -> Spread:
    """Of whole numbers, towards zero: what it does changes where the sign does."""
    if v.floating:
        return scaled(v, 1 / by)
    period = repeating(v, abs(by))
    signs = with_near(v, plane(v, most(v)))
    out = replace(scaled(signs, 1 / by), period=period, final=None, hide=None, rises=False)
    return replace(out, lo=out.lo - 1, hi=out.hi + 1, least=min(v.least, 0.0) if by > 0 else -FAR)


def remaining(v: Spread, by: Fraction, towards_zero: bool) -> Spread:
    period = repeating(v, abs(by))
    if towards_zero:
        v = with_near(v, plane(v, most(v)))
    size = float(abs(by))
    lo, hi = (-size, size) if towards_zero else (0.0, size) if by > 0 else (-size, 0.0)
    if v.floating and not v.drift.none:
        if v.drift.fits < 1:
            raise Unsure("it is the remainder of a rounded number")
        v = replace(v, limit=min(v.limit, v.drift.fits), drift=Drift(v.drift.digits))
    grain = common(v.step, abs(by)) if v.floating else None
    v = replace(v, final=None, hide=None, rises=False)
    return replace(v, period=period, slope={}, lo=lo, hi=hi, grain=grain, least=lo)
