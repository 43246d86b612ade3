"""Values over time joined along an axis: side by side, or with some frames more at either end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from pulsify.lengths import affine_array as many
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import ORIGIN, Spread, T, pair
from pulsify.lengths.indexing import placed
from pulsify.lengths.series import Series, Unsure
from pulsify.lengths.sizes import Sizes


def joined_along(parts: Sequence[Spread], axis: int) -> Spread:
    """One behind another on an axis; on a time axis only one of them may grow."""
    size = parts[0].sizes[axis]
    for p in parts[1:]:
        size = one.add(size, p.sizes[axis])
    sizes = tuple(size if a == axis else _widest([p.sizes[a] for p in parts]) for a in range(parts[0].rank))
    if size.constant:
        return side_by_side([replace(p, sizes=sizes) for p in parts], sizes)
    growing = [i for i, p in enumerate(parts) if axis in p.times]
    if len(growing) != 1:
        raise Unsure("it puts one stream behind another")
    index = growing[0]
    front = sum(int(p.sizes[axis].item) for p in parts[:index])
    behind = sum(int(p.sizes[axis].item) for p in parts[index + 1 :])
    others = [replace(p, sizes=sizes) for i, p in enumerate(parts) if i != index]
    return framed(parts[index], axis, sizes, front, behind, others)


def _widest(sizes: Sequence[Series]) -> Series:
    return next((s for s in sizes if not s.constant), sizes[0])


def side_by_side(parts: Sequence[Spread], sizes: Sizes) -> Spread:
    """Parts side by side on an axis that is no time axis."""
    if not all(many.same_slope(p, parts[0]) for p in parts):
        parts = [many.exactly(p) for p in parts]
    lo, hi, least = min(p.lo for p in parts), max(p.hi for p in parts), min(map(many.lowest, parts))
    floating = any(p.floating for p in parts)
    return many.joint(sizes, *parts, slope=dict(parts[0].slope), lo=lo, hi=hi, least=least, floating=floating)


def framed(main: Spread, axis: int, sizes: Sizes, front: int, behind: int, others: list[Spread]) -> Spread:
    """A value over time with some frames more in front of it and behind it."""
    places = Spread(sizes, {axis: Fraction(1)}, -front, -front, uses=frozenset({axis}))
    moved = placed(main, axis, places, {c: c for c in range(main.rank) if c != axis})
    if others and moved.slope:
        moved, others = many.exactly(moved), [many.exactly(p) for p in others]
    beyond = many.ragged(sizes[axis])
    rate = float(sizes[axis].pace)
    ends = {pair(ORIGIN, axis): front / rate} if front else {}
    if behind:
        ends[pair(axis, T)] = behind / rate + beyond
    lo, hi = min([moved.lo, *(p.lo for p in others)]), max([moved.hi, *(p.hi for p in others)])
    least = min(map(many.lowest, [main, *others]))
    out = many.joint(sizes, moved, *others, slope=dict(moved.slope), lo=lo, hi=hi, least=least, floating=main.floating)
    uses = out.uses | ({axis} if front or behind else set()) | ({T} if behind else set())
    return replace(many.with_near(out, ends), uses=frozenset(uses))
