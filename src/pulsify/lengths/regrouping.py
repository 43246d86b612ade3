"""Values over time whose entries keep their order and get other axes: time kept, merged with others, or split."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from pulsify.lengths.affine_array import Spread, T
from pulsify.lengths.indexing import moved_axes
from pulsify.lengths.series import Unsure
from pulsify.lengths.sizes import Sizes, alike, as_much_ahead


def regrouped(v: Spread, sizes: Sizes) -> Spread:
    """The same entries, in the same order, on axes of these sizes."""
    if not v.times and not any(not s.constant for s in sizes):
        if v.uses - {T}:
            raise Unsure("an axis along which it changes is removed")
        return replace(v, sizes=sizes)
    before, after = v.times, [a for a, s in enumerate(sizes) if not s.constant]
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
        if all(as_much_ahead(v.sizes, a, sizes, b) and alike(v.sizes[a], sizes[b]) for a, b in pairs):
            return moved_axes(v, dict(pairs), sizes)
    if len(before) == len(after) == 1:
        return _one_axis(v, before[0], after[0], sizes)
    raise Unsure("time axes are split or merged")


def _one_axis(v: Spread, a: int, b: int, sizes: Sizes) -> Spread:
    """Time merged with what lies behind it, or split: an entry lies a known number of frames from where it was."""
    if not as_much_ahead(v.sizes, a, sizes, b):
        raise Unsure("time is merged with the axis in front of it")
    inner = [math.prod(int(s.item) for s in side) for side in (v.sizes[a + 1 :], sizes[b + 1 :])]
    if 0 in inner:
        raise Unsure("it has no entries")
    ratio = Fraction(inner[1], inner[0])
    q = v.slope.get(a, Fraction(0))
    off = float(abs(q) * (1 + ratio))
    slope = {c: (x * ratio if c == a else x) for c, x in v.slope.items()}
    return moved_axes(replace(v, slope=slope, lo=v.lo - off, hi=v.hi + off, grain=v.step), {a: b}, sizes)
