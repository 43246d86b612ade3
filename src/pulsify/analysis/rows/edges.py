"""Parts one behind another: in which of them rows are read, which may change with the length.

T = 4     | 3 2 1 | 0 -1 -2 -3 |       the edge is T - 1 rows behind the first, as far as the middle: rows keep
T = 5     | 4 3 2 1 | 0 -1 -2 ...      their side of it at every length
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pulsify.analysis.rows.place import Place, read_at, shortest_allowed, steady
from pulsify.lengths import series as one
from pulsify.lengths.series import Series, Unsure, constant


def pieces(place: Place, sizes: Sequence[Series]) -> list[tuple[int, Place, int]]:
    """Parts in which rows are read: which one, its rows, and the shortest stream from which on they are the same."""
    edges = [constant(0, place.base.unit)]
    for size in sizes:
        edges.append(one.add(edges[-1], size))
    out = []
    for i, (start, end) in enumerate(pairwise(edges)):
        inside = _inside(place, start if i else None, end if i < len(sizes) - 1 else None)
        if inside is not None:
            out.append((i, inside[0].moved(one.negated(start)), inside[1]))
    return out


def _inside(place: Place, start: Series | None, end: Series | None) -> tuple[Place, int] | None:
    """The rows from `start` on and before `end`, and from which length on they are the same ones; None if none are.

    start None: there is nothing in front.
    """
    shortest, first, last = 1, place.first, place.last
    if start is not None:
        shortest = max(shortest, _same_side(place, start))
        first = one.extreme(first, start, np.maximum)
    if end is not None:
        shortest = max(shortest, _same_side(place, end))
        last = one.extreme(last, one.add(end, Series(np.array([-1]), unit=end.unit)), np.minimum)
    inner = Place(place.base, first, last)
    read = read_at(inner, place.base.unit)
    if not read.values.any():
        return None
    if not read.values[read.horizon :].any() and (read.horizon + 1) * read.unit <= shortest:
        return None  # in streams only that are ruled out
    return inner, shortest


def _same_side(place: Place, edge: Series) -> int:
    """The shortest stream from which on every row is on its side of an edge for good."""
    behind = one.compare(place.first, edge, np.greater_equal)
    front = one.compare(place.last, edge, np.less)
    apart = one.subtract(edge, place.base)
    read = read_at(place, edge.unit)
    horizon, period, (all_behind, all_front, there) = one.aligned(behind, front, read)
    most = min(s.longest for s in (place.base, edge)) // edge.unit
    count = min(horizon + period, most)
    both = there[:count] & ~all_behind[:count] & ~all_front[:count]
    side = np.where(all_behind[:count], 1, np.where(all_front[:count], -1, 0))
    seen = np.flatnonzero(there[:count])
    if not seen.size:
        return 1
    if both[seen[-1]]:
        _, shortest = steady(apart, place, "its rows are on both sides of an edge that moves with the length")
        return shortest
    differ = seen[side[seen] != side[seen[-1]]]
    if not differ.size:
        return 1
    shortest = (int(differ[-1]) + 2) * edge.unit
    if shortest > shortest_allowed(place) or (count < most and differ[-1] >= horizon):
        raise Unsure("its rows are on one side of an edge at some lengths, and on the other at others")
    return shortest
