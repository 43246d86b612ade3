"""Writes into a part of a tensor, as joins: `y[:, 2:5] = z`, `y[..., 1:] += x[..., :-1]`, `index_fill`.

Exporters write them as ScatterND or ScatterElements with a table of places. If the table follows from the length and
lists places along each axis separately, the write is a join, axis by axis:

    y[:, 2:5] = z      y   0 1 [. . .] 5 6         Concat(y[:, :2], z, y[:, 5:])
                       z       2 3 4

    y[:, 1::2] = z     y   0 [.] 2 [.] 4 [.]       Where(place - 1 is even, z at (place - 1) / 2, y)
                       z      1     3     5

The table is read at two lengths: what is the same at both is a constant, counted from the front or from the end of an
axis. Whatever was read off has to be so at every length: it is kept as a `Decision`, and proven like all of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from pulsify.frontend.model import Node
from pulsify.frontend.write_joins import (
    COMBINES,
    Along,
    Array,
    Places,
    Reading,
    Rewrite,
    Value,
    Writer,
    beside_data,
    combines,
    joined,
    listed_places,
    require_at_least,
    taken,
)

MOST = 1 << 22  # entries of a table that is read


def is_write(node: Node) -> bool:
    """Does it write into a part of a tensor?"""
    return node.domain == "" and node.op in ("ScatterND", "ScatterElements", "Scatter")


def reading(node: Node, values: Mapping[str, Value]) -> Reading | None:
    """Where a write goes; None if its places depend on data, or are not listed along each axis separately."""
    data, table = values[node.inputs[0]], values[node.inputs[1]]
    size = int(np.prod(table.dims, dtype=np.int64))
    if not table.known or not 0 < size <= MOST or node.attr("reduction", "none") not in COMBINES:
        return None
    listed, axes = table.array.astype(np.int64), data.dims
    read = _listed_together(listed, axes) if node.op == "ScatterND" else _listed_along(node, listed, axes)
    return read if read and (combines(node) or not any(p.repeated for p in read)) else None


def _listed_together(table: Array, dims: tuple[int, ...]) -> Reading | None:
    """ScatterND: one entry of the table is a place on each of the first axes."""
    places = [_along(table[..., axis], axis, dims[axis]) for axis in range(table.shape[-1])]
    owned = [p.own for p in places if p is not None and p.own is not None]
    unused = set(range(table.ndim - 1)) - set(owned)
    separate = len(set(owned)) == len(owned) and all(table.shape[i] == 1 for i in unused)
    return tuple(p for p in places if p is not None) if separate and None not in places else None


def _listed_along(node: Node, table: Array, dims: tuple[int, ...]) -> Reading | None:
    """ScatterElements: the table lists places on one axis, for all of the others."""
    axis = node.attr("axis", 0) % len(dims)
    places = _along(table, axis, dims[axis])
    if places is None or places.own not in (None, axis):
        return None
    beside = all(n == dims[i] for i, n in enumerate(table.shape) if i != axis)
    return (replace(places, own=axis),) if beside and table.shape[axis] == places.count else None


def _along(column: Array, axis: int, size: int) -> Places | None:
    """Places on one axis of the data: a column of the table that differs along one of its axes at most."""
    column = np.where(column < 0, column + size, column)
    differ = [i for i in range(column.ndim) if (column != column.take([0], i)).any()]
    if len(differ) > 1:
        return None
    first = (
        column.reshape(-1)[:1]
        if not differ
        else np.moveaxis(column, differ[0], 0).reshape(column.shape[differ[0]], -1)[:, 0]
    )
    listed = tuple(int(i) for i in first)
    if min(listed) < 0 or max(listed) >= size:
        return None
    return Places(axis, size, listed, differ[0] if differ else None)


# ---- numbers that follow from the length


def _numbers(write: Writer, now: Places, other: Places) -> Along:
    """The first place and the number of places, counted from the front or from the end of the axis."""
    data, table = write.node.inputs[:2]
    if not now.step:
        moved = tuple(a != b for a, b in zip(now.listed, other.listed, strict=True))
        return Along(now, "", write.ints(now.count), moved, now.size != other.size)
    if now.count == other.count:
        count = write.ints(now.count)
    elif now.size - now.count == other.size - other.count:
        count = write.op("Sub", write.size(data, now.axis), write.ints(now.size - now.count))
    else:
        assert now.own is not None
        count = write.size(table, now.own)
    if now.listed[0] == other.listed[0]:
        start = write.ints(now.listed[0])
    elif now.behind == other.behind:
        taken = write.op("Mul", write.op("Sub", count, write.ints(1)), write.ints(now.step))
        start = write.op("Sub", write.size(data, now.axis), write.op("Add", taken, write.ints(now.behind + 1)))
    else:
        rank = write.table_rank
        begin = [0] * (rank - 1) + [now.axis if write.node.op == "ScatterND" else 0]
        number = write.op(
            "Slice", table, write.ints(*begin), write.ints(*(i + 1 for i in begin)), write.ints(*range(rank))
        )
        start = write.op("Cast", write.op("Reshape", number, write.ints(1)), to=int(ir.DataType.INT64))
    return Along(now, start, count)


def _counted(
    column: str, values: Mapping[str, Value], constants: Container[str], makers: Mapping[str, Node]
) -> str | None:
    """The number n if a column is a range of 0 ... n - 1, cut by constants, and spread over other axes; else None."""
    maker = makers.get(column)
    while maker is not None and maker.op in ("Unsqueeze", "Expand", "Cast", "Reshape", "Identity"):
        maker = makers.get(maker.inputs[0])
    if maker is not None and maker.op == "Slice":
        steps = maker.input(4)
        if any(i and i not in constants for i in maker.inputs[1:]) or (steps and (values[steps].array != 1).any()):
            return None
        maker = makers.get(maker.inputs[0])
    if maker is None or maker.op != "Range" or any(maker.inputs[i] not in constants for i in (0, 2)):
        return None
    start, step = (int(values[maker.inputs[i]].array.reshape(())) for i in (0, 2))
    return maker.inputs[1] if (start, step) == (0, 1) else None


def _require_counted(write: Writer, along: Along, limit: str, other: Reading) -> None:
    """The range runs over the whole axis, and none of the places that are counted from an end lies outside."""
    places = along.places
    size = write.size(write.node.inputs[0], places.axis)
    count = write.op("Reshape", write.op("Cast", limit, to=int(ir.DataType.INT64)), write.ints(1))
    write.require(write.op("Sub", count, size), 0)
    before = next(p for p in other if p.axis == places.axis)
    if places.count == before.count and places.size != before.size:
        from_front = places.listed[0] == before.listed[0]
        require_at_least(write, size, places.listed[-1] + 1 if from_front else places.size - places.listed[0])


def _require(write: Writer, along: Along, column: Array, few: bool) -> None:
    """At every length the table lists these places: so far apart from the first one, or these very ones.

    column: the places as the table has them, which may count from the end. few: they are as many at most lengths, but
    fewer in short streams (y[..., -3:] of two frames).
    """
    places, rank = along.places, write.table_rank
    data, table = write.node.inputs[0], write.columns[places.axis] if write.columns else write.node.inputs[1]
    if write.node.op == "ScatterND" and not write.columns:
        table = write.slice(table, rank - 1, write.ints(places.axis), write.ints(places.axis + 1))
    table = write.op("Cast", table, to=int(ir.DataType.INT64))
    if (column < 0).any():
        wrapped = write.op("Add", table, write.size(data, places.axis))
        if (column >= 0).any():
            table = write.op("Where", write.op("Less", table, write.ints(0)), wrapped, table)
        else:
            table = wrapped
    if places.own is None:
        expected = along.start
    else:
        count = write.size(write.node.inputs[1], places.own)
        write.require(write.op("Sub", count, along.count), 0)
        if places.step:
            index = write.op("Range", write.constant(0), write.scalar(count), write.constant(1))
            expected = write.op("Add", write.op("Mul", index, write.ints(places.step)), along.start)
        else:
            expected = listed_places(write, along)
        expected = write.with_axes("Unsqueeze", expected, [i for i in range(rank) if i != places.own])
    off = write.op("Sub", table, expected)
    if few:
        write.require(write.op("ReduceMax", write.op("Abs", off), keepdims=0), 0)
    else:
        write.require(off, 0, everywhere=True)


def _columns(maker: Node | None, values: Mapping[str, Value]) -> tuple[str, ...]:
    """The parts of a table that is joined from columns."""
    if maker is None or maker.op != "Concat":
        return ()
    dims = [values[name].dims for name in maker.inputs]
    joined = maker.attr("axis") % len(dims[0]) == len(dims[0]) - 1 and all(d[-1] == 1 for d in dims)
    return maker.inputs if joined else ()


def as_joins(
    node: Node, values: Mapping[str, Value], other: Reading, constants: Container[str], makers: Mapping[str, Node]
) -> Rewrite | None:
    """The write as joins; None if it is none. other: its places at another length. makers: nodes by their outputs."""
    now, table = reading(node, values), values[node.inputs[1]]
    if now is None or [p.own for p in now] != [p.own for p in other]:
        return None
    now = tuple(replace(a, regular=_regular(a, b)) for a, b in zip(now, other, strict=True))
    if not all(a.step or _alike(a, b) for a, b in zip(now, other, strict=True)):
        return None  # a list that goes with the length
    columns = _columns(makers.get(node.inputs[1]), values)
    write = Writer(node, len(values[node.inputs[0]].dims), len(table.dims), columns)
    along = [_numbers(write, a, b) for a, b in zip(now, other, strict=True)]
    pairs = list(zip(now, other, strict=True))
    few = any(a.own is not None and a.count == b.count and a.size != b.size for a, b in pairs)
    cut = any(a.count == b.count and a.size != b.size for a, b in pairs)
    if node.inputs[1] not in constants:
        for each in along:
            column = columns[each.places.axis] if columns else node.inputs[1]
            limit = _counted(column, values, constants, makers) if cut else None
            if limit is not None:
                _require_counted(write, each, limit, other)
            else:
                listed = table.array[..., each.places.axis] if node.op == "ScatterND" else table.array
                _require(write, each, listed, few)
    if node.op == "ScatterElements":
        for i in set(range(len(table.dims))) - {now[0].axis}:
            write.require(write.op("Sub", write.size(node.inputs[0], i), write.size(node.inputs[1], i)), 0)
    written = _before_reshape(write, along, values, makers)
    if node.op == "ScatterND":
        written = beside_data(write, written, now)
    for each in along:
        if not combines(node):
            _require_apart(write, each)
    result = node.inputs[0]
    for part, updates in _simple_writes(write, along, written):
        if combine := combines(node):
            there = result
            for each in part:
                there = taken(write, there, each)
            updates = write.op(combine, there, updates)
        result = joined(write, result, part, updates)
    return write.finish(result)


def _regular(a: Places, b: Places) -> bool:
    """Are they as far apart at both lengths, and no list of a few that is counted from the end of time?"""
    return a.step == b.step and not (a.step > 1 and a.count == b.count and a.listed[0] != b.listed[0])


def _alike(a: Places, b: Places) -> bool:
    """Are these the same places, each counted from the front or from the end of the axis?"""
    if a.count != b.count:
        return False
    return all(i == j or i - a.size == j - b.size for i, j in zip(a.listed, b.listed, strict=True))


def _simple_writes(write: Writer, along: list[Along], written: str) -> list[tuple[list[Along], str]]:
    """Writes one after the other: none goes to one place twice, and those counted from the end of time are alone."""
    for n, each in enumerate(along):
        groups = _groups(each)
        if len(groups) == 1:
            continue
        parts = []
        for which in groups:
            listed, behind = tuple(each.places.listed[i] for i in which), tuple(each.behind[i] for i in which)
            part = replace(each, places=replace(each.places, listed=listed, regular=True), behind=behind)
            first = write.slice(listed_places(write, part), 0, write.ints(0), write.ints(1))
            part = replace(part, start=first, count=write.ints(len(which)))
            updates = write.op("Gather", written, write.constant(which), axis=each.places.axis)
            parts += _simple_writes(write, [*along[:n], part, *along[n + 1 :]], updates)
        return parts
    return [(along, written)]


def _require_apart(write: Writer, along: Along) -> None:
    """Places counted from the front and such that are counted from the end are not the same in short streams."""
    if along.size_differs and any(along.behind) and not all(along.behind):
        listed, size = along.places.listed, along.places.size
        front = max(i for i, behind in zip(listed, along.behind, strict=True) if not behind)
        end = max(size - i for i, behind in zip(listed, along.behind, strict=True) if behind)
        require_at_least(write, write.size(write.node.inputs[0], along.places.axis), front + 1 + end)


def _groups(along: Along) -> list[list[int]]:
    """Which entries of a list of places are written together."""
    if along.places.step:
        return [[*range(along.places.count)]]
    groups, listed = dict[tuple[int, int], list[int]](), along.places.listed
    for i, place in enumerate(listed):
        alone = i + 1 if along.size_differs and along.behind[i] else 0
        groups.setdefault((listed[:i].count(place), alone), []).append(i)
    return list(groups.values())


# ---- writing


def _before_reshape(
    write: Writer, along: Sequence[Along], values: Mapping[str, Value], makers: Mapping[str, Node]
) -> str:
    """Updates as they were before they were brought to the shape that they had already."""
    updates = write.node.inputs[2]
    before, dims = updates, values[updates].dims
    while (maker := makers.get(before)) is not None and maker.op in ("Reshape", "Expand"):
        if values[maker.inputs[0]].dims != dims:
            break
        before = maker.inputs[0]
    for each in along if before != updates and write.node.op == "ScatterND" else ():
        if each.places.own is not None:
            write.require(write.op("Sub", write.size(before, each.places.own), each.count), 0)
    return before if write.node.op == "ScatterND" else updates
