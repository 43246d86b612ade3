"""What stands for a write: joins and choices, axis by axis. See `in_place.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from pulsify.frontend.model import Decision, Node, make_node

Array = np.ndarray[Any, Any]
COMBINES = {"none": "", "add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
LAST = np.iinfo(np.int64).max


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
    """The nodes that stand for one of the model, their constants, and what must hold at every length."""

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


def listed_places(write: Writer, along: Along) -> str:
    """The places of a list, at any length."""
    places, behind = along.places, np.array(along.behind)
    listed = np.array(places.listed)
    if not behind.any():
        return write.constant(listed)
    size = write.size(write.node.inputs[0], places.axis)
    counted = write.op("Mul", size, write.constant(behind.astype(np.int64)))
    return write.op("Add", counted, write.constant(np.where(behind, listed - places.size, listed)))


def require_at_least(write: Writer, number: str, least: int) -> None:
    if number not in write.rewrite.constants:
        write.require(write.op("Min", write.op("Sub", number, write.ints(least)), write.ints(0)), 0)


def combines(node: Node) -> str:
    """The operator by which updates and data become one; '' if updates replace the data."""
    return COMBINES[node.attr("reduction", "none")]


def beside_data(write: Writer, updates: str, places: Reading) -> str:
    """ScatterND's updates with an axis for each axis of the data."""
    owned, rank = [p.own for p in places if p.own is not None], write.table_rank - 1
    x = write.with_axes("Squeeze", updates, [i for i in range(rank) if i not in owned])
    order = [sorted(owned).index(i) for i in owned]
    if order != sorted(order):
        behind = range(len(owned), len(owned) + write.rank - len(places))
        x = write.op("Transpose", x, perm=[*order, *behind])
    return write.with_axes("Unsqueeze", x, [p.axis for p in places if p.own is None])


def taken(write: Writer, x: str, along: Along) -> str:
    """The part of x along one axis that is written to."""
    places = along.places
    if places.whole:
        _require_whole(write, along)
        return x
    if not places.step:
        return write.op("Gather", x, listed_places(write, along), axis=places.axis)
    last = write.op("Mul", write.op("Sub", along.count, write.ints(1)), write.ints(places.step))
    stop = write.op("Add", write.op("Add", along.start, last), write.ints(1))
    return write.slice(x, places.axis, along.start, stop, places.step)


def joined(write: Writer, data: str, along: Sequence[Along], written: str) -> str:
    """The data with what is written in its place, axis by axis from the last one on."""
    parts = [data]
    for each in along[:-1]:
        parts.append(taken(write, parts[-1], each))
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
    require_at_least(write, write.op("Sub", write.size(x, places.axis), stop), 1)
    require_at_least(write, along.start, 0)
    return _where(write, x, written, along, inside, write.op("Min", number, last))


def _by_position(write: Writer, x: str, written: str, along: Along) -> str:
    """A list of frames: which of its entries is written to a frame follows from the position."""
    listed, none = np.array(along.places.listed), along.places.count
    size = write.size(x, along.places.axis)
    table = np.full(listed.max() + 2, none)
    table[listed] = np.arange(none)
    index = write.op("Range", write.constant(0), write.scalar(size), write.constant(1))
    number = write.op("Gather", write.constant(table), write.op("Min", index, write.ints(len(table) - 1)))
    require_at_least(write, size, int(listed.max()) + 1)
    inside = write.op("Less", number, write.ints(none))
    return _where(write, x, written, along, inside, write.op("Min", number, write.ints(none - 1)))


def _where(write: Writer, x: str, written: str, along: Along, inside: str, number: str) -> str:
    places = along.places
    looked_up = write.op("Gather", written, number, axis=places.axis)
    behind = write.rank - places.axis - 1
    return write.op("Where", write.with_axes("Unsqueeze", inside, range(1, behind + 1)), looked_up, x)


def _require_whole(write: Writer, along: Along) -> None:
    write.require(along.start, 0)
    write.require(write.op("Sub", write.size(write.node.inputs[0], along.places.axis), along.count), 0)
