"""Values over time whose entries are moved: axes that stand elsewhere, entries taken at other places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pulsify.lengths.affine_array import (
    ORIGIN,
    Pair,
    Spread,
    T,
    bounded,
    joined,
    joint,
    most,
    pair,
    plane,
    ragged,
    streamwise,
)
from pulsify.lengths.beyond import kept, moved
from pulsify.lengths.series import Series, Unsure, aligned


def met(sizes: Sequence[Series]) -> Series:
    """The size of an axis where several meet.

    Unsure if one that grows has a single frame where another has more: it would be spread over all of them.
    """
    wide = [s for s in sizes if not (s.constant and s.item == 1)]
    grows = [s for s in wide if not s.constant]
    for s in wide:
        if grows and (s.growth != grows[0].growth or not np.array_equal(s.values, grows[0].values)):
            _, _, (x, y) = aligned(s, grows[0])
            if ((x == 1) != (y == 1)).any():
                raise Unsure("one of two values that meet has a single frame at some length")
    return [*grows, *wide, *sizes][0]


def moved_axes(v: Spread, to: Mapping[int, int], sizes: tuple[Series, ...]) -> Spread:
    """The same entries with axis a standing at to[a]; axes that are not there have no say (one entry, or alike)."""
    gone = {c for c in v.uses if c >= 0 and c not in to}
    if gone:
        raise Unsure("an axis along which it changes is removed")

    def at(c: int) -> int:
        return to[c] if c >= 0 else c

    out = replace(
        v,
        sizes=sizes,
        slope={at(c): q for c, q in v.slope.items()},
        near={pair(at(a), at(b)): g for (a, b), g in v.near.items()},
        uses=frozenset(at(c) for c in v.uses),
        hide=None if v.hide is None else {pair(at(a), at(b)): g for (a, b), g in v.hide.items()},
    )
    return kept(out, moved({k: s for k, s in v.beyond.items() if to.keys() >= set(k[0])}, at))


def placed(v: Spread, axis: int, at: Spread, to: Mapping[int, int], wraps: bool = False) -> Spread:
    """Entries of v taken along `axis` at the places `at` says (an array of the output's rank); other axes go `to`.

    wraps: some places may be negative, and count from the end.
    """
    own = {c: to[c] for c in range(v.rank) if c != axis and c in to}
    at = _without_short_axes(at)
    reach = most(at) / float(v.rate(axis))
    where = _stands(v, axis, at)
    slope = {(own[c] if c >= 0 else c): q for c, q in v.slope.items() if c != axis}
    q = v.slope.get(axis, Fraction(0))
    for c, x in at.slope.items():
        slope[c] = slope.get(c, Fraction(0)) + q * x
    near: dict[Pair, float] = {}
    for (a, b), g in v.near.items():
        if axis not in (a, b):
            near = joined([near, {pair(*(own[c] if c >= 0 else c for c in (a, b))): g}])
            continue
        other = b if a == axis else a
        other = own[other] if other >= 0 else other
        if where == (ORIGIN,) == (other,):  # all of them are as near to the start as they were
            continue
        near = joined([near, {_between(where, other): g + reach}])
    lo, hi = sorted((float(q) * at.lo, float(q) * at.hi)) if q else (0.0, 0.0)
    uses = frozenset(own[c] if c >= 0 else c for c in v.uses if c != axis)
    uses |= at.uses if axis in v.uses else frozenset()
    base = joint(at.sizes, replace(v, sizes=at.sizes, slope={}, near={}, uses=frozenset()), at)
    base = replace(base, floating=v.floating, drift=v.drift, grain=v.step if v.floating else None, least=v.least)
    if wraps and axis in v.uses:
        near, uses = joined([near, _wrapped(v, axis, at, own)]), uses | {T}
    return replace(
        base,
        slope={c: x for c, x in slope.items() if x},
        lo=v.lo + lo,
        hi=v.hi + hi,
        near=joined([near, at.near if axis in v.uses else {}]),
        uses=uses,
    )


def _without_short_axes(at: Spread) -> Spread:
    """Places that go on along an axis that does not grow lie within a few of each other: no slope."""
    fixed = {c for c, s in enumerate(at.sizes) if s.constant}
    ends = [float(q) * (float(at.sizes[c].item) - 1) for c, q in at.slope.items() if c in fixed]
    lo, hi = (sum(pick(0.0, e) for e in ends) for pick in (min, max))
    slope = {c: q for c, q in at.slope.items() if c not in fixed}
    at = replace(at, slope=slope, lo=at.lo + lo, hi=at.hi + hi, uses=at.uses - fixed)
    return bounded(at, [c for c in slope if c >= 0 and not at.sizes[c].growth])


def _wrapped(v: Spread, axis: int, at: Spread, own: Mapping[int, int]) -> dict[Pair, float]:
    """What is near where places are negative: those count from the end, and what is near to the axis is to T."""
    if v.slope.get(axis):
        raise Unsure("it takes frames from both ends")
    if not v.sizes[axis].growth:
        raise Unsure("its size stops growing")
    reach = most(at) / float(v.rate(axis)) + ragged(v.sizes[axis])
    near = plane(at, most(at))  # there they turn negative
    for a, b in v.near:
        if axis in (a, b) and T not in (a, b):
            other = b if a == axis else a
            near = joined([near, {pair(own[other] if other >= 0 else other, T): v.near[a, b] + reach}])
    return near


def _stands(v: Spread, axis: int, at: Spread) -> tuple[int, ...]:
    """Which coordinate the place moves along with: one of them, or (T, c): c counted back from the end."""
    s, own = streamwise(at), v.rate(axis)
    if not s:
        return (ORIGIN,)
    if len(s) == 1 and next(iter(s.values())) == own:
        return (next(iter(s)),)
    if len(s) == 2 and s.get(T) == own and sum(s.values()) == 0:
        return (T, next(c for c in s if c != T))
    if axis not in v.uses:
        return (ORIGIN,)
    raise Unsure("it takes frames at places that do not move along with the stream")


def _between(where: tuple[int, ...], other: int) -> Pair:
    """The pair that is as near as the place is to `other`."""
    if len(where) == 1:
        if where[0] == other:
            raise Unsure("it takes frames by themselves")
        return pair(where[0], other)
    back = where[1]
    if other == T:
        return pair(ORIGIN, back)
    if other == ORIGIN:
        return pair(back, T)
    raise Unsure("it runs backwards over one of two time axes")
