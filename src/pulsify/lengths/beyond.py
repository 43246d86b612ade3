"""What an array over two time axes is far from its diagonal: on either side of it, beyond so many frames.

    b - a      ... -3 -2 -1  0  1  2  3 ...
    band        0   0  1  1  1  1  0  0  0        zero on both sides: how far apart a and b are matters within it alone
    0.8^|b - a|  on both sides a line until it is rounded to zero, and then zero

An operator on arrays is one on their sides. Where a value is the same number on both sides, a pair of places that lies
further apart looks like any other (`Spread.near`), whatever it was made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from pulsify.lengths.affine_array import Key, Spread, streamwise

ROUGH = 1.001  # floats are rounded: so much further out they are sure to be past something
LAST = {8: 110.0, 11: 20.0, 24: 110.0, 53: 760.0}  # by digits: exp(x) is zero, or infinite, further out
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Side:
    """Where b - a is further from zero than `reach`: slope * |b - a|, and something between lo and hi.

    same: it is one number there. rounded: it is a float that is not exact.
    """

    reach: float = 0.0
    slope: float = 0.0
    lo: float = -math.inf
    hi: float = math.inf
    same: bool = False
    rounded: bool = False

    @property
    def number(self) -> float | None:
        """What it is, if that is one known number."""
        return self.lo if self.same and not self.rounded and self.lo == self.hi else None

    @property
    def bounds(self) -> Bounds:
        """What it lies between, wherever it is."""
        if self.slope > 0:
            return self.lo, math.inf
        return (-math.inf, self.hi) if self.slope < 0 else (self.lo, self.hi)


def number(x: float, reach: float = 0.0) -> Side:
    return Side(reach, 0.0, x, x, same=True)


def reach_of(sides: Sequence[Side]) -> float:
    return max((s.reach for s in sides), default=0.0)


def any_function(sides: Sequence[Side]) -> Side:
    """Of what is one number it makes one number."""
    return Side(reach_of(sides), same=all(s.same for s in sides), rounded=True)


def side(v: Spread, key: Key) -> Side:
    """Of a value over time: what is known of it anyway, or what its slope says."""
    if key in v.beyond:
        found: Side = v.beyond[key]
        return found
    (a, b), after = key
    if v.floating and not v.drift.none:
        return Side(rounded=True)
    slope = streamwise(v)
    if not slope:
        return Side(0.0, 0.0, *v.range, same=v.lo == v.hi)
    if set(slope) != {a, b} or sum(slope.values(), Fraction(0)):
        return Side()
    return Side(0.0, float(slope[b] if after else -slope[b]), v.lo, v.hi)


def with_sides(out: Spread, given: Sequence[Spread], rule: Callable[[list[Side]], Side]) -> Spread:
    """The value an operator makes of others, with its sides: what is the same on both is near within them alone."""
    pairs = {k[0] for v in given for k in v.beyond}
    pairs |= {(min(s), max(s)) for v in given if len(s := streamwise_or_none(v)) == 2 and min(s) >= 0}
    near = dict(out.near)
    found: dict[Key, Any] = {}
    for pair in sorted(pairs):
        both = []
        for after in (False, True):
            made = rule([side(v, (pair, after)) for v in given])
            if made.same or (math.isfinite(made.lo) and math.isfinite(made.hi)):
                found[pair, after] = made
            both.append(made)
        if all(s.same for s in both) and not out.slope and pair in near:
            near[pair] = min(near[pair], reach_of(both))
    return kept(replace(out, near=near) if near != out.near else out, found)


def streamwise_or_none(v: Spread) -> dict[int, Any]:
    return {c: q for c, q in v.slope.items() if q}


def kept(v: Spread, beyond: dict[Key, Any]) -> Spread:
    """The same with these sides."""
    if beyond != v.beyond:
        v = replace(v)
        object.__setattr__(v, "beyond", beyond)
    return v


def moved(beyond: dict[Key, Any], at: Callable[[int], int]) -> dict[Key, Any]:
    """Of an array whose axes stand elsewhere."""
    out = {}
    for ((a, b), after), s in beyond.items():
        x, y = at(a), at(b)
        out[(min(x, y), max(x, y)), after == (x < y)] = s
    return out


# ---- operators


def added(sides: Sequence[Side], signs: Sequence[int]) -> Side:
    if sum(bool(s.slope) for s in sides) > 1 and any(s.rounded for s in sides):
        return Side(rounded=True)
    ends = [(s.lo, s.hi) if sign > 0 else (-s.hi, -s.lo) for s, sign in zip(sides, signs, strict=True)]
    slope = sum(s.slope * sign for s, sign in zip(sides, signs, strict=True))
    lo, hi = _sum([e[0] for e in ends], -math.inf), _sum([e[1] for e in ends], math.inf)
    return Side(reach_of(sides), slope, lo, hi, all(s.same for s in sides), _inexact(sides, lo, hi))


def _sum(values: list[float], otherwise: float) -> float:
    total = sum(values)
    return otherwise if math.isnan(total) else total


def _inexact(sides: Sequence[Side], *made: float) -> bool:
    """Is what comes out rounded? Small whole numbers are not, in any type."""
    whole = all(math.isinf(x) or (x == round(x) and abs(x) <= 256) for x in made)
    return any(s.rounded for s in sides) or not whole


def multiplied(sides: Sequence[Side]) -> Side:
    """Zero is zero whatever finite number it meets."""
    reach = reach_of(sides)
    if any(s.number == 0 for s in sides) and all(math.isfinite(e) for s in sides for e in s.bounds):
        return number(0.0, reach)
    x, y = sides
    for one, other in ((x, y), (y, x)):
        if (k := other.number) is not None and math.isfinite(k) and k:
            lo, hi = sorted((one.lo * k, one.hi * k))
            return Side(reach, one.slope * k, lo, hi, one.same, _inexact(sides, lo, hi, k))
    return any_function(sides)


def past(difference: Side) -> tuple[int, float]:
    """The sign of a difference further out (0: it may have either), and from where on."""
    s = difference
    rough = ROUGH if s.rounded else 1.0
    if s.slope:
        size = max(abs(s.lo), abs(s.hi))
        if math.isfinite(size):
            return (1 if s.slope > 0 else -1), max(s.reach, size / abs(s.slope) * rough + (rough > 1))
        return 0, s.reach
    if s.rounded:
        return 0, s.reach
    return (1 if s.lo > 0 else -1 if s.hi < 0 else 0), s.reach


def compared(sides: Sequence[Side], test: Callable[[Any, Any], Any]) -> Side:
    """Where one is larger than the other, or both are one number."""
    x, y = sides
    if x.number is not None and y.number is not None:
        return number(float(test(x.number, y.number)), reach_of(sides))
    if not any(s.slope for s in sides):
        (a, b), (c, d) = x.bounds, y.bounds
        apart = (b < c or a > d) and not (x.rounded or y.rounded)
        if apart:
            return number(float(test(0.0 if b < c else 1.0, 1.0 if b < c else 0.0)), reach_of(sides))
        return Side(reach_of(sides), 0.0, 0.0, 1.0, same=all(s.same for s in sides))
    sign, reach = past(added(sides, (1, -1)))
    if not sign:
        return Side(reach, 0.0, 0.0, 1.0)
    return number(float(test(float(sign), 0.0)), reach)


def both(sides: Sequence[Side]) -> Side:
    """And."""
    if any(s.number == 0 for s in sides):
        return number(0.0, max(s.reach for s in sides))
    return truth(sides)


def either(sides: Sequence[Side]) -> Side:
    """Or."""
    if any(s.number == 1 for s in sides):
        return number(1.0, max(s.reach for s in sides))
    if all(s.number == 0 for s in sides):
        return number(0.0, reach_of(sides))
    return replace(truth(sides), lo=max(s.lo for s in sides), hi=max(s.hi for s in sides))


def truth(sides: Sequence[Side]) -> Side:
    lo, hi = max(min(s.lo for s in sides), 0.0), min(min(s.hi for s in sides), 1.0)
    return Side(reach_of(sides), 0.0, lo, hi, same=all(s.same for s in sides))


def inverted(sides: Sequence[Side]) -> Side:
    """Not."""
    (x,) = sides
    return Side(x.reach, 0.0, 1.0 - min(x.hi, 1.0), 1.0 - max(x.lo, 0.0), x.same)


def chosen(sides: Sequence[Side]) -> Side:
    """Where."""
    c, x, y = sides
    if c.number is not None:
        taken = x if c.number else y
        return replace(taken, reach=max(c.reach, taken.reach))
    if x.slope != y.slope:
        return Side(reach_of(sides), rounded=True)
    alike = x.number is not None and x.number == y.number
    same = alike or all(s.same for s in sides)
    return Side(reach_of(sides), x.slope, min(x.lo, y.lo), max(x.hi, y.hi), same, x.rounded or y.rounded)


def extreme(sides: Sequence[Side], least: bool) -> Side:
    """Min or Max of two."""
    x, y = sides
    sign, reach = past(added([x, y], (1, -1)))
    if sign:
        return replace(x if (sign < 0) == least else y, reach=max(reach, x.reach, y.reach))
    if x.slope or y.slope:
        return Side(reach_of(sides), rounded=True)
    how = min if least else max
    return Side(
        reach_of(sides), 0.0, how(x.lo, y.lo), how(x.hi, y.hi), x.same and y.same, x.rounded or y.rounded
    )  # fmt: skip


def folded(sides: Sequence[Side], least: bool) -> Side:
    out = sides[0]
    for other in sides[1:]:
        out = extreme([out, other], least)
    return out


def negative(sides: Sequence[Side]) -> Side:
    (x,) = sides
    return replace(x, slope=-x.slope, lo=-x.hi, hi=-x.lo)


def absolute(sides: Sequence[Side]) -> Side:
    return extreme([sides[0], negative(sides)], least=False)


def as_number(sides: Sequence[Side]) -> Side:
    """Held in another type: whole numbers stay what they are, if they fit."""
    (x,) = sides
    return replace(x, rounded=_inexact(sides, x.lo, x.hi))


def exponential(sides: Sequence[Side], rate: float, last: float) -> Side:
    """exp(rate * x) of the last of them: what falls is zero in the end. last: exp of less is zero."""
    x, falls = sides[-1], rate * sides[-1].slope < 0
    size = max(abs(x.lo), abs(x.hi))
    if falls and math.isfinite(size):
        return number(0.0, max(reach_of(sides), (size + last / abs(rate)) / abs(x.slope) * ROUGH + 1))
    top = max(rate * e for e in x.bounds)
    hi = math.exp(top) * ROUGH if top < last / 2 else math.inf
    return Side(reach_of(sides), 0.0, 0.0, hi, same=all(s.same for s in sides), rounded=True)
