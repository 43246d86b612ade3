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
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from pulsify.frontend.model import Decision, Node, make_node

Array = np.ndarray[Any, Any]
COMBINES = {"none": "", "add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
LAST = np.iinfo(np.int64).max
MOST = 1 << 22  # entries of a table that is read


class Value(Protocol):
    """What is known of a value at one length."""

    @property
    def known(self) -> bool: ...
    @property
    def dtype(self) -> ir.DataType: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def array(self) -> Array: ...


@dataclass(frozen=True)
class Places:
    """Where a write goes along one axis of the data, of `size` entries at the length that was read.

    listed: the places there. own: the axis of the table along which they are listed; None: a single place.
    regular: they are as far apart at every length.
    """

    axis: int
    size: int
    listed: tuple[int, ...]
    own: int | None
    regular: bool = True

    @property
    def step(self) -> int:
        """How far apart places are, in rising order; 0 if that differs."""
        if not self.regular:
            return 0
        steps = set(np.diff(self.listed).tolist()) or {1}
        return max(steps.pop(), 0) if len(steps) == 1 else 0

    @property
    def repeated(self) -> bool:
        return len(set(self.listed)) < self.count

    @property
    def whole(self) -> bool:
        return self.listed == tuple(range(self.size))

    @property
    def count(self) -> int:
        return len(self.listed)

    @property
    def behind(self) -> int:
        """How many entries come after the last place."""
        return self.size - self.listed[-1] - 1


Reading = tuple[Places, ...]  # of all axes that a table names places on


@dataclass(frozen=True)
class Rewrite:
    """The nodes that stand for a write, their constants, and what must be so at every length."""

    nodes: list[Node]
    constants: dict[str, ir.TensorProtocol]
    decisions: list[Decision]


@dataclass(eq=False)
class Writer:
    """Nodes in place of `node`, one after the other."""

    node: Node
    rank: int  # of the data
    table_rank: int
    columns: tuple[str, ...] = ()  # what ScatterND's table is joined from, one for each axis of the data
    rewrite: Rewrite = field(default_factory=lambda: Rewrite([], {}, []))

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"{self.node.name}/constant_{len(self.rewrite.constants)}"
        self.rewrite.constants[name] = ir.tensor(np.asarray(value, dtype), name=name)
        return name

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{self.node.name}/{op.lower()}_{len(self.rewrite.nodes)}"
        self.rewrite.nodes.append(make_node(op, inputs, name, self.node.version, **attrs))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values)

    def scalar(self, number: str) -> str:
        """An array of one number without its axis."""
        return self.op("Reshape", number, self.constant([]))

    def slice(self, x: str, axis: int, start: str, stop: str, step: int = 1) -> str:
        return self.op("Slice", x, start, stop, self.constant([axis]), self.constant([step]))

    def size(self, x: str, axis: int) -> str:
        """The size of an axis, as an array of one number."""
        return self.op("Gather", self.op("Shape", x), self.constant([axis]), axis=0)

    def with_axes(self, op: str, x: str, axes: Sequence[int]) -> str:
        """Squeeze or Unsqueeze."""
        if not axes:
            return x
        if self.node.version >= 13:
            return self.op(op, x, self.constant(list(axes)))
        return self.op(op, x, axes=list(axes))

    def require(self, number: str, taken: int, everywhere: bool = False) -> None:
        """The number has to be this at every length. everywhere: it is an array, and every entry has to."""
        if number not in self.rewrite.constants:
            decision = Decision(self.node.name, self.node.op, number, None, taken, everywhere)
            self.rewrite.decisions.append(decision)

    def finish(self, result: str) -> Rewrite:
        self.rewrite.nodes.append(make_node("Identity", [result], self.node.outputs[0], self.node.version))
        return self.rewrite


def is_write(node: Node) -> bool:
    """Does it write into a part of a tensor?"""
    return node.domain == "" and node.op in ("ScatterND", "ScatterElements", "Scatter")


def reading(node: Node, values: Mapping[str, Value]) -> Reading | None:
    """Where a write goes; None if its places depend on data, or are not listed along each axis separately."""
    data, table = values[node.inputs[0]], values[node.inputs[1]]
    size = int(np.prod(table.dims, dtype=np.int64))
    constant = all(values[name].known for name in node.inputs)  # then so is the result
    if constant or not table.known or not 0 < size <= MOST or node.attr("reduction", "none") not in COMBINES:
        return None
    listed, axes = table.array.astype(np.int64), data.dims
    read = _listed_together(listed, axes) if node.op == "ScatterND" else _listed_along(node, listed, axes)
    return read if read and (combines(node) or not any(p.repeated for p in read)) else None


def combines(node: Node) -> str:
    """The operator by which updates and data become one; '' if updates replace the data."""
    return COMBINES[node.attr("reduction", "none")]


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


@dataclass(frozen=True)
class Along:
    """Places along one axis as numbers of the length: the names of the first one, and of how many there are.

    behind: of a list of places, which of them are counted from the end of the axis.
    """

    places: Places
    start: str
    count: str
    behind: tuple[bool, ...] = ()
    size_differs: bool = False


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
        _require_at_least(write, size, places.listed[-1] + 1 if from_front else places.size - places.listed[0])


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
            expected = _listed(write, along)
        expected = write.with_axes("Unsqueeze", expected, [i for i in range(rank) if i != places.own])
    off = write.op("Sub", table, expected)
    if few:
        write.require(write.op("ReduceMax", write.op("Abs", off), keepdims=0), 0)
    else:
        write.require(off, 0, everywhere=True)


def _listed(write: Writer, along: Along) -> str:
    """The places of a list, at any length."""
    places, behind = along.places, np.array(along.behind)
    listed = np.array(places.listed)
    if not behind.any():
        return write.constant(listed)
    size = write.size(write.node.inputs[0], places.axis)
    counted = write.op("Mul", size, write.constant(behind.astype(np.int64)))
    return write.op("Add", counted, write.constant(np.where(behind, listed - places.size, listed)))


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
        written = _beside_data(write, written, now)
    for each in along:
        if not combines(node):
            _require_apart(write, each)
    result = node.inputs[0]
    for part, updates in _simple_writes(write, along, written):
        if combine := combines(node):
            there = result
            for each in part:
                there = _taken(write, there, each)
            updates = write.op(combine, there, updates)
        result = _joined(write, result, part, updates)
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
            listed, behind = (tuple(of[i] for i in which) for of in (each.places.listed, each.behind))
            part = replace(each, places=replace(each.places, listed=listed, regular=True), behind=behind)
            first = write.slice(_listed(write, part), 0, write.ints(0), write.ints(1))
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
        _require_at_least(write, write.size(write.node.inputs[0], along.places.axis), front + 1 + end)


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


def _beside_data(write: Writer, updates: str, places: Reading) -> str:
    """ScatterND's updates with an axis for each axis of the data."""
    owned, rank = [p.own for p in places if p.own is not None], write.table_rank - 1
    x = write.with_axes("Squeeze", updates, [i for i in range(rank) if i not in owned])
    order = [sorted(owned).index(i) for i in owned]
    if order != sorted(order):
        behind = range(len(owned), len(owned) + write.rank - len(places))
        x = write.op("Transpose", x, perm=[*order, *behind])
    return write.with_axes("Unsqueeze", x, [p.axis for p in places if p.own is None])


def _taken(write: Writer, x: str, along: Along) -> str:
    """The part of x along one axis that is written to."""
    places = along.places
    if places.whole:
        _require_whole(write, along)
        return x
    if not places.step:
        return write.op("Gather", x, _listed(write, along), axis=places.axis)
    last = write.op("Mul", write.op("Sub", along.count, write.ints(1)), write.ints(places.step))
    stop = write.op("Add", write.op("Add", along.start, last), write.ints(1))
    return write.slice(x, places.axis, along.start, stop, places.step)


def _joined(write: Writer, data: str, along: Sequence[Along], written: str) -> str:
    """The data with what is written in its place, axis by axis from the last one on."""
    parts = [data]
    for each in along[:-1]:
        parts.append(_taken(write, parts[-1], each))
    for each, part in zip(reversed(along), reversed(parts), strict=True):
        written = _placed(write, part, written, each)
    return written


def _placed(write: Writer, x: str, written: str, along: Along) -> str:
    """x with other entries at some places of one axis."""
    places = along.places
    if places.whole:
        _require_whole(write, along)
        return written
    if places.step == 1:
        return _between(write, x, written, along)
    if places.step:
        return _spread_out(write, x, written, along)
    if along.size_differs:
        return _by_position(write, x, written, along)
    write.require(write.size(x, places.axis), places.size)
    index = np.arange(places.size)
    index[list(places.listed)] = places.size + np.arange(places.count)
    both = write.op("Concat", x, written, axis=places.axis)
    return write.op("Gather", both, write.constant(index), axis=places.axis)


def _between(write: Writer, x: str, written: str, along: Along) -> str:
    """In front of what is written and behind it the data stays; an end without entries is left out."""
    places, parts = along.places, [written]
    if places.listed[0]:
        parts.insert(0, write.slice(x, places.axis, write.ints(0), along.start))
    else:
        write.require(along.start, 0)
    stop = write.op("Add", along.start, along.count)
    if places.behind:
        parts.append(write.slice(x, places.axis, stop, write.ints(LAST)))
    else:
        write.require(write.op("Sub", write.size(x, places.axis), stop), 0)
    joined = write.op("Concat", *parts, axis=places.axis)
    write.require(write.op("Sub", write.size(joined, places.axis), write.size(x, places.axis)), 0)  # none is outside
    return joined


def _spread_out(write: Writer, x: str, written: str, along: Along) -> str:
    """Every few entries one is written: those are looked up, and chosen by their place."""
    places, one = along.places, write.ints(1)
    size = write.scalar(write.size(x, places.axis))
    index = write.op("Range", write.constant(0), size, write.constant(1))
    back, step = write.op("Sub", index, along.start), write.ints(places.step)
    number = write.op("Div", write.op("Max", back, write.ints(0)), step)
    last = write.op("Sub", along.count, one)
    inside = write.op("Equal", write.op("Add", write.op("Mul", number, step), along.start), index)
    inside = write.op("And", inside, write.op("LessOrEqual", number, last))
    stop = write.op("Add", write.op("Mul", last, step), along.start)
    _require_at_least(write, write.op("Sub", write.size(x, places.axis), stop), 1)
    _require_at_least(write, along.start, 0)
    return _where(write, x, written, along, inside, write.op("Min", number, last))


def _by_position(write: Writer, x: str, written: str, along: Along) -> str:
    """A list of frames: which of its entries is written to a frame follows from the position."""
    listed, none = np.array(along.places.listed), along.places.count
    size = write.size(x, along.places.axis)
    table = np.full(listed.max() + 2, none)
    table[listed] = np.arange(none)
    index = write.op("Range", write.constant(0), write.scalar(size), write.constant(1))
    number = write.op("Gather", write.constant(table), write.op("Min", index, write.ints(len(table) - 1)))
    _require_at_least(write, size, int(listed.max()) + 1)
    inside = write.op("Less", number, write.ints(none))
    return _where(write, x, written, along, inside, write.op("Min", number, write.ints(none - 1)))


def _require_at_least(write: Writer, number: str, least: int) -> None:
    if number not in write.rewrite.constants:
        write.require(write.op("Min", write.op("Sub", number, write.ints(least)), write.ints(0)), 0)


def _where(write: Writer, x: str, written: str, along: Along, inside: str, number: str) -> str:
    places = along.places
    looked_up = write.op("Gather", written, number, axis=places.axis)
    behind = write.rank - places.axis - 1
    return write.op("Where", write.with_axes("Unsqueeze", inside, range(1, behind + 1)), looked_up, x)


def _require_whole(write: Writer, along: Along) -> None:
    write.require(along.start, 0)
    write.require(write.op("Sub", write.size(write.node.inputs[0], along.places.axis), along.count), 0)
