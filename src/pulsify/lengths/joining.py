"""Values over time joined along an axis: side by side, or with some frames more at either end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    growing = [i for i, p in enumerate(parts) if p.sizes[axis].growth]
    if len(growing) != 1:
        raise Unsure("it puts one stream behind another")
    index = growing[0]
    front = sum(_frames(p.sizes[axis], size) for p in parts[:index])
    behind = sum(_frames(p.sizes[axis], size) for p in parts[index + 1 :])
    others = [replace(p, sizes=sizes) for i, p in enumerate(parts) if i != index]
    return framed(parts[index], axis, sizes, front, behind, others)


def _frames(part: Series, whole: Series) -> int:
    """How many frames a part has that does not grow, wherever there is a frame at all."""
    _, _, (frames, total) = one.aligned(part, whole)
    there = frames[total > 0]
    if not there.size or (there != there[0]).any():
        raise Unsure("it puts a part in front, or behind, that has fewer frames at some lengths")
    return int(there[0])


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
        whole = not any(p.floating for p in [moved, *others])
        if whole and not behind and set(moved.slope) == {axis} and not any(p.slope for p in others):
            others = [_off(p, moved.slope, axis, front) for p in others]
        else:
            moved, others = many.exactly(moved), [many.exactly(p) for p in others]
    beyond = many.ragged(sizes[axis])
    rate = float(sizes[axis].pace)
    ends = {pair(ORIGIN, axis): front / rate} if front else {}
    if behind:
        ends[pair(axis, T)] = behind / rate + beyond
    lo, hi = min([moved.lo, *(p.lo for p in others)]), max([moved.hi, *(p.hi for p in others)])
    least = min(map(many.lowest, [main, *others]))
    out = many.joint(sizes, moved, *others, slope=dict(moved.slope), lo=lo, hi=hi, least=least, floating=main.floating)
    if out.slope and lo == hi and not out.floating:  # the first frames are on the line, too
        return replace(out, near={}, uses=frozenset(out.slope), period=1)
    uses = out.uses | ({axis} if front or behind else set()) | ({T} if behind else set())
    return replace(many.with_near(out, ends), uses=frozenset(uses))


def _off(front: Spread, slope: Mapping[int, Fraction], axis: int, frames: int) -> Spread:
    """By how much the first frames are off a line along the axis."""
    rise = [float(slope[axis]) * k for k in (0, frames - 1)]
    return replace(front, slope=slope, lo=front.lo - max(rise), hi=front.hi - min(rise), least=-many.FAR)
