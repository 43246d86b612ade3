"""Places that a mask keeps: all of them, or those of a pattern that repeats with the stream.

mask     1 0 1 0 0 | 1 0 1 0 0 | 1 ...        5 frames, 2 of them kept
places   0   2       5   7       10           5/2 of its place, and a deviation that repeats
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.analysis.values.follow import LOOKS, VALUES, Follower, Value
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import ORIGIN, Spread, T, pair
from pulsify.lengths.series import Series, TooFar, Unsure, constant

Array = np.ndarray[Any, Any]
TRIES = 64  # lengths at which a mask is looked at until the model takes one


@VALUES("NonZero")
def places(f: Follower, node: Node, ins: list[Value]) -> Value:
    v = f.spread(ins[0])
    if v.rank == 1 and not v.slope and v.lo == v.hi and v.lo and v.drift.none:
        sizes = (constant(1, f.unit), v.sizes[0])
        return Spread(sizes, {1: Fraction(1)}, uses=frozenset({1}), limit=v.limit, until=v.until)
    by_place = not v.slope and T not in v.uses and set(v.near) <= {pair(ORIGIN, T)}  # that is where its size settles
    plain = v.rank == 1 and not v.floating and by_place
    if not plain or v.sizes[0].growth <= 0:
        problem = Unsure("which entries are not zero changes with the length")
        problem.hint = "take frames by a slice (x[:, ::3], x[:, 5:])"  # type: ignore[attr-defined]
        raise problem
    return _repeated(f, node, v)


def _repeated(f: Follower, node: Node, v: Spread) -> Spread:
    """Entry by entry a mask follows from its place in the period alone."""
    size = v.sizes[0]
    period = v.period * (v.period * size.rate).denominator
    pattern = _pattern(f, node, size, int(period * size.rate))
    kept = np.flatnonzero(pattern)
    if not kept.size:
        raise Unsure("it keeps no frame")
    slope = Fraction(len(pattern), len(kept))
    off = [int(place) - slope * n for n, place in enumerate(kept)]
    return replace(
        v,
        sizes=(constant(1, f.unit), _count(size, pattern)),
        slope={1: slope},
        lo=float(min(off)),
        hi=float(max(off)),
        period=period,
        uses=frozenset({1}),
        final=None,
        hide=None,
        least=0.0,
        apart=0.0,
    )


def _pattern(f: Follower, node: Node, size: Series, entries: int) -> Array:
    """Which entries of a period are kept, read off a length that shows two."""
    first = math.ceil(2 * entries / size.rate / f.unit) + size.horizon
    if first + TRIES > LOOKS:
        raise TooFar(first)
    for n in range(first, first + TRIES):
        array = f.evaluated(node.inputs[0], n * f.unit)
        if array is not None and array.size >= 2 * entries:
            found = array.reshape(-1)[: 2 * entries] != 0
            if not np.array_equal(found[:entries], found[entries:]):
                raise Unsure("which entries are not zero does not repeat")
            return found[:entries]
    raise Unsure("it cannot be computed at lengths that show what repeats")


def _count(size: Series, pattern: Array) -> Series:
    """How many entries are kept of so many."""
    entries, times = len(pattern), len(pattern) // math.gcd(len(pattern), int(size.growth))
    seen = size.look(size.horizon + size.period * times)
    whole, rest = np.divmod(seen.astype(np.int64), entries)
    before = np.concatenate([[0], np.cumsum(pattern)])
    growth = Fraction(int(size.growth) * times // entries * int(before[-1]))
    return replace(size, values=whole * before[-1] + before[rest], growth=growth).reduced()
