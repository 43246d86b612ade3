"""Sizes of axes, as numbers that follow from the length: how many a slice leaves, what a reshape makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pulsify.lengths import series as one
from pulsify.lengths.series import Series, Unsure, constant

Sizes = tuple[Series, ...]


def alike(a: Series, b: Series) -> bool:
    return a.growth == b.growth and a.horizon == b.horizon and np.array_equal(a.values, b.values)


def floored(a: Series, b: Series) -> Series:
    """Division of whole numbers, downwards."""
    return one.divide(one.subtract(a, one.remainder(a, b)), b)


def whole_item(number: Series) -> int:
    """An axis, or a step, which is the same at every length."""
    if not number.constant:
        raise Unsure("it goes over an axis, or in steps, that change with the length")
    return int(number.item)


def product(sizes: Sequence[Series], unit: int) -> Series:
    out = constant(1, unit)
    for s in sizes:
        out = one.multiply(out, s)
    return out


def bounds(start: Series, stop: Series, step: int, size: Series) -> tuple[Series, Series]:
    """The first place of a slice, and how many there are: as Python's slices have it, but that backwards a start in
    front of the first entry is the first entry."""
    unit = size.unit
    zero = constant(0, unit)

    def anchored(x: Series, low: Series, high: Series) -> Series:
        below = one.compare(x, zero, np.less)
        from_end = one.add(x, size) if not (x.constant and abs(x.item) > one.LONGEST) else low
        chosen = from_end if below.constant and below.item else x
        if not below.constant:
            chosen = one.choose(below, from_end, x)
        return one.extreme(one.extreme(chosen, low, np.maximum), high, np.minimum)

    if step > 0:
        first, last = anchored(start, zero, size), anchored(stop, zero, size)
        span = one.subtract(last, first)
    else:
        end, least = one.add(size, constant(-1, unit)), constant(-1, unit)
        first, last = anchored(start, zero, end), anchored(stop, least, end)
        span = one.subtract(first, last)
    by = constant(abs(step), unit)
    count = one.negated(floored(one.negated(span), by)) if abs(step) > 1 else span
    return first, one.extreme(count, zero, np.maximum)


# ---- a shape as a reshape gives it


def as_target(target: Sequence[Series], own: Sequence[Series], unit: int, zeros: bool = False) -> Sizes:
    """The shape that is meant: 0 keeps a size of one's own (unless zeros is set), -1 is what is left."""
    _check_plain(target, own, zeros)
    sizes = list(target)
    if not zeros:
        sizes = [own[i] if s.constant and s.item == 0 else s for i, s in enumerate(sizes)]
    missing = [i for i, s in enumerate(sizes) if s.constant and s.item == -1]
    if missing:
        sizes[missing[0]] = _left(own, [s for i, s in enumerate(sizes) if i != missing[0]], unit)
    return tuple(sizes)


def _check_plain(target: Sequence[Series], sizes: Sequence[Series], zeros: bool) -> None:
    """Unsure if a size that a shape gives is -1, or 0, at some lengths only (worked out from the rest, or kept)."""
    for s in (s for s in target if not s.constant):
        for special in (-1,) if zeros else (-1, 0):
            hit = one.compare(s, constant(special, s.unit), np.equal)
            there = [one.compare(x, constant(0, s.unit), np.greater) for x in sizes]  # what is empty does not matter
            _, _, seen = one.aligned(hit, *there)
            if np.logical_and.reduce(seen).any():
                raise Unsure(f"a size is {special} at some lengths only")


def _left(total: Sequence[Series], others: Sequence[Series], unit: int) -> Series:
    """What is left of the product of all sizes once the others are taken out of it."""
    rest = list(total)
    for s in [s for s in others if not s.constant]:
        same = next((i for i, r in enumerate(rest) if alike(r, s)), None)
        if same is None:
            raise Unsure("time axes are split or merged")
        del rest[same]
    by = math.prod(int(s.item) for s in others if s.constant)
    return one.divide(product(rest, unit), constant(by, unit))


def as_much_ahead(before: Sequence[Series], a: int, after: Sequence[Series], b: int) -> bool:
    """Is as much in front of axis a of a shape as in front of axis b of another one?"""

    def ahead(sizes: Sequence[Series]) -> tuple[int, list[Series]]:
        return math.prod(int(s.item) for s in sizes if s.constant), [s for s in sizes if not s.constant]

    (x, xs), (y, ys) = ahead(before[:a]), ahead(after[:b])
    return x == y and len(xs) == len(ys) and all(alike(p, q) for p, q in zip(xs, ys, strict=True))
