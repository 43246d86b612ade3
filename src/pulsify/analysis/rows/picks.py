"""Rows that an index names: the index is followed first, and says which rows of the table are read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pulsify.analysis.rows.place import Place, Row, read_at
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.lengths import series as one
from pulsify.lengths.series import Unsure


def picked(w: Wanted) -> list[RowRead]:
    """Gather: the index is followed, and names rows of the table."""
    rank = w.rows.rank(w.node.inputs[1])
    axis = w.node.attr("axis", 0) % w.rows.rank(w.node.inputs[0])
    within = w.axis is not None and axis <= w.axis < axis + rank
    index = w.rows.follow(w.node.inputs[1], w.axis - axis if within and w.axis is not None else None, w.place)
    if w.axis is None or within:
        return [_named(w, axis, index)]
    own = w.axis if w.axis < axis else w.axis - rank + 1
    _fixed_index(w, axis, index)
    return [replace(w.read(0, own), shortest=index.shortest)]


def _named(w: Wanted, axis: int, index: Row) -> RowRead:
    """The rows that an index names: negative ones count from the end."""
    size = w.sizes()[axis]
    if not index.moves and size.constant:
        return RowRead(w.node.inputs[0], None, None, index.shortest)
    if index.least is None or index.most is None:
        raise Unsure("which rows are picked is unknown")
    place, zero = Place(index.move, index.least, index.most), w.rows.constant(0)
    there = read_at(w.place, zero.unit)
    negative = one.compare(place.last, zero, np.less)
    positive = one.compare(place.first, zero, np.greater_equal)
    _, _, (seen, below, above) = one.aligned(there, negative, positive)
    if (below | ~seen).all():
        place = place.moved(size)
    elif not (above | ~seen).all():
        raise Unsure("rows are picked from both ends, or from places in front of the first")
    return RowRead(w.node.inputs[0], axis, place, index.shortest)


def _fixed_index(w: Wanted, axis: int, index: Row) -> None:
    """Of another axis the same entries are picked at every length."""
    if index.moves or (not w.sizes()[axis].constant and not _is_positive(index)):
        raise Unsure("entries of another axis are picked, others at every length")


def _is_positive(index: Row) -> bool:
    return index.least is not None and not index.least.growth and bool((index.least.values >= 0).all())


def picked_nd(w: Wanted) -> list[RowRead]:
    """GatherND: entries that an index names by several places at once, the same at every length."""
    if w.node.attr("batch_dims", 0):
        raise Unsure("it picks entries by a batch of indices")
    rank, sizes = w.rows.rank(w.node.inputs[1]) - 1, w.sizes()
    count = w.rows.item(w.rows.sizes(w.node.inputs[1])[-1])
    within = w.axis is not None and w.axis < rank
    index = w.rows.follow(w.node.inputs[1], w.axis if within else None, w.place)
    if count == 1 and (w.axis is None or within):
        return [_named(w, 0, index)]
    for axis in range(count):
        if not sizes[axis].constant and not _is_positive(index):
            raise Unsure("entries are picked from both ends")
    if index.moves:
        raise Unsure("it picks entries at places that change with the length of the stream")
    if w.axis is None or within:
        return [RowRead(w.node.inputs[0], None, None, index.shortest)]
    return [replace(w.read(0, w.axis - rank + count), shortest=index.shortest)]


def picked_elements(w: Wanted) -> list[RowRead]:
    """GatherElements: every entry names the one it is, along one axis."""
    axis = w.node.attr("axis", 0) % w.rows.rank(w.name)
    index = w.rows.follow(w.node.inputs[1], w.axis, w.place)
    if w.axis is None or w.axis == axis:
        return [_named(w, axis, index)]
    _fixed_index(w, axis, index)
    return [replace(w.read(0, w.axis), shortest=index.shortest)]
