"""The largest and smallest entry of a value over time, as numbers of the length: its axes end where their sizes say."""

from __future__ import annotations

import math

import numpy as np

from pulsify.analysis.values.follow import Few, Fixed, Follower, Value
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread, T
from pulsify.lengths.series import Series, Unsure, constant

WHOLE = 2**40  # numbers up to here are counted exactly


def largest(f: Follower, value: Value) -> Series:
    """No entry is larger, at any length. Unsure if that is no linear function of the length."""
    return _extreme(f, value, 1)


def smallest(f: Follower, value: Value) -> Series:
    return one.negated(_extreme(f, value, -1))


def _extreme(f: Follower, value: Value, sign: int) -> Series:
    """The largest entry of sign * value."""
    if isinstance(value, (Few, Fixed)):
        cells = list(f.few(value).reshape(-1))
        if not cells or not all(isinstance(c, Series) for c in cells):
            raise Unsure("it is no number")
        cells = [one.negated(c) if sign < 0 else c for c in cells]
        out: Series = cells[0]
        for c in cells[1:]:
            out = one.extreme(out, c, np.maximum)
        return out
    return _of_spread(f, value, sign)


def _of_spread(f: Follower, v: Spread, sign: int) -> Series:
    top = v.hi if sign > 0 else -v.lo
    if not math.isfinite(top) or abs(top) > WHOLE or not v.drift.none:
        raise Unsure("it has no bound")
    out = constant(math.ceil(top), f.unit)
    for c, slope in v.slope.items():
        q = slope * sign
        if q.denominator != 1:
            raise Unsure("it counts in fractions")
        if c == T:
            out = one.add(out, one.length_itself(f.unit, int(q), f.longest))
        elif q > 0:
            last = one.add(v.sizes[c], constant(-1, f.unit))
            out = one.add(out, one.multiply(constant(int(q), f.unit), last))
    return out


def always_below(f: Follower, a: Value | Series, b: Value | Series, strictly: bool = True) -> bool:
    """Is every entry of one value smaller than every entry of another, at every length? False if that is unknown."""
    try:
        top = a if isinstance(a, Series) else largest(f, a)
        bottom = b if isinstance(b, Series) else smallest(f, b)
        compared = one.compare(top, bottom, np.less if strictly else np.less_equal)
    except Unsure:
        return False
    return bool(compared.constant and compared.item)
