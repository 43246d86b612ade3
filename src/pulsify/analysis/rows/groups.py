"""Axes of a value and of the same entries in another shape, group by group: sizes that have the same product."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pulsify.analysis.rows.place import signature
from pulsify.lengths import series as one
from pulsify.lengths.series import Series, Unsure, constant

Group = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Product:
    """A product of sizes: a whole number times numbers that grow with the stream, each without a common factor."""

    factor: int
    growing: tuple[tuple[Hashable, int], ...]

    @property
    def extent(self) -> tuple[int, int]:
        return sum(n for _, n in self.growing), self.factor


def product(sizes: Sequence[Series]) -> Product:
    factor, growing = 1, Counter[Hashable]()
    for size in sizes:
        if size.constant:
            factor *= int(size.item)
            continue
        common = math.gcd(int(size.growth), int(np.gcd.reduce(np.abs(size.values))))
        factor *= common
        growing[signature(replace(size, values=size.values // common, growth=size.growth / common))] += 1
    return Product(factor, tuple(sorted(growing.items(), key=hash)))


def groups(before: Sequence[Series], after: Sequence[Series]) -> Iterator[Group]:
    """Without axes of size 1. Unsure if sizes cannot be paired."""
    left, right = ([a for a, n in enumerate(sizes) if not _is_one(n)] for sizes in (before, after))
    while left and right:
        sources, results = [left.pop(0)], [right.pop(0)]
        while (x := product([before[a] for a in sources])) != (y := product([after[a] for a in results])):
            shorter, rest = (sources, left) if x.extent < y.extent else (results, right)
            if not rest:
                raise Unsure("its axes are regrouped in a way that is not understood")
            shorter.append(rest.pop(0))
        yield sources, results


def agree_until(before: Sequence[Series], after: Sequence[Series]) -> int | None:
    """The longest stream for which both have as many entries, where in all longer ones they have not; None: for ever.

    Behind it a table has ended, and no shape is possible.
    """
    agree = one.compare(_entries(before), _entries(after), np.equal)
    differ = np.flatnonzero(~agree.values.astype(bool))
    if not differ.size:
        return None
    if not differ[0] or agree.values[differ[0] :].any():
        raise Unsure("it has as many entries as before at some lengths only")
    return int(differ[0]) * agree.unit


def _entries(sizes: Sequence[Series]) -> Series:
    out = constant(1, sizes[0].unit)
    for size in sizes:
        out = one.multiply(out, size)
    return out


def _is_one(size: Series) -> bool:
    return bool(size.constant and size.item == 1)
