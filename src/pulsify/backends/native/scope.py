"""What a step being written knows: where its values lie, what it calls, which constants it names."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pulsify.backends.native.views import C_TYPES, NUMPY, Buffer, Sizes, View, in_order, row_major
from pulsify.backends.seam import Array
from pulsify.backends.site import NodeSite, Uncovered, sizes_of

LONG, SLACK = 256, 8  # elements of a state worth it; the part of its frames by which it may move on
MUCH = 4  # a join lies with its state if that has so many times the new frames


@dataclass(frozen=True)
class Kernel:
    """A C function. params: its declarations. inner: functions that it calls, `@0@` in the body for the first."""

    hint: str
    params: tuple[str, ...]
    body: str
    inner: tuple[Kernel, ...] = ()


@dataclass(frozen=True, eq=False)
class Call:
    """A kernel on pieces of memory, in the order of its parameters. writes: how many of the last ones it writes."""

    kernel: Kernel
    args: tuple[View, ...]
    writes: int
    comment: str = ""


@dataclass(frozen=True, eq=False)
class Weights:
    """Constants, each held once, by type. They are the same for all steps of a program."""

    parts: dict[str, list[Array]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    known: dict[tuple[str, bytes], Buffer] = field(default_factory=dict)

    def put(self, array: Array, ctype: str) -> View:
        """In its own order."""
        flat = np.ascontiguousarray(array).astype(NUMPY[ctype], copy=False).reshape(-1)
        key = ctype, hashlib.blake2b(flat.tobytes(), digest_size=16).digest()
        if key not in self.known:
            room = -(-max(flat.size, 1) // 16) * 16
            buffer = Buffer("weight", ctype, flat.size, "", self.sizes.get(ctype, 0))
            self.known[key] = buffer
            self.parts.setdefault(ctype, []).append(np.pad(flat, (0, room - flat.size)))
            self.sizes[ctype] = buffer.offset + room
        return View(self.known[key], array.shape, row_major(array.shape))

    def arena(self, ctype: str) -> Array:
        return np.concatenate(self.parts[ctype])


@dataclass(eq=False)
class Port:
    """What stays from pulse to pulse: a state, a static input, the length. spare: frames of room behind it.

    slack: frames that a long one may move on before it is put back to the front, instead of every pulse.
    """

    name: str
    shape: Sizes
    ctype: str
    axis: int | None = None
    order: Sizes | None = None
    spare: int = 0
    slack: int = 0
    buffer: Buffer | None = None

    def view(self, order: Sequence[int] | None = None) -> View:
        """Where it lies: with the frames outermost. The first who asks decides upon the rest."""
        if self.order is None:
            rest = [a for a in (order or range(len(self.shape))) if a != self.axis]
            self.order = tuple(rest) if self.axis is None else (self.axis, *rest)
        if self.buffer is None:
            self.buffer = Buffer("state", self.ctype, math.prod(self.shape), self.name)
        return View(self.buffer, self.shape, in_order(self.shape, self.order))

    def widened(self, frames: int, order: Sequence[int]) -> View:
        """With so many frames behind it."""
        own = self.view(order)
        assert self.axis is not None and self.buffer is not None
        self.spare = max(self.spare, frames)
        shape = list(self.shape)
        long, size = self.shape[self.axis], math.prod(self.shape)
        if self.buffer.moved is None and long // SLACK >= frames and size >= LONG:
            self.slack, frame = long // SLACK, size // long
            self.buffer.moved = Buffer("state", "int32_t", 1, f"{self.name}, moved"), frame
        shape[self.axis] += self.spare + self.slack
        self.buffer.size = math.prod(shape)
        shape[self.axis] = self.shape[self.axis] + frames
        return View(self.buffer, tuple(shape), own.strides)


@dataclass(eq=False)
class Scope:
    """One step. ports: what stays, by name. joins: values that are written right where a Concat wants them."""

    opset: int
    weights: Weights
    ports: Mapping[str, Port]
    constants: Mapping[ir.Value, Array]
    outer: frozenset[ir.Value] = frozenset()  # the step's results
    views: dict[ir.Value, View] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    joins: dict[ir.Value, tuple[ir.Node, int]] = field(default_factory=dict)  # part -> the Concat, and where it begins
    joined: dict[ir.Node, View] = field(default_factory=dict)
    inlined: set[ir.Node] = field(default_factory=set)  # nodes written inside of a later one
    members: Sequence[ir.Node] = ()  # those inside of the node being written
    pending: list[tuple[View, View]] = field(default_factory=list)  # copies to be made behind the node being written
    comment: str = ""

    def shape(self, value: ir.Value) -> Sizes:
        return sizes_of(value, f"the sizes of {value.name}")

    def array(self, value: ir.Value | None) -> Array | None:
        return None if value is None else self.constants.get(value)

    def ctype(self, value: ir.Value) -> str:
        if value.dtype is None:
            raise Uncovered(f"the type of {value.name} is not known")
        if value.dtype not in C_TYPES:
            raise Uncovered(f"there is no {value.dtype.name.lower()} here")
        return C_TYPES[value.dtype]

    def view(self, value: ir.Value, order: Sequence[int] | None = None) -> View:
        """Where a value lies. order: of the axes, for a constant that may lie as one likes."""
        if value in self.views:
            return self.views[value]
        if value.is_graph_input() and str(value.name) in self.ports:
            return self.ports[str(value.name)].view()
        array = self.constants.get(value)
        if array is None:
            raise Uncovered(f"{value.name} is not there")
        if order is None:
            return self.weights.put(array, self.ctype(value))
        packed = self.weights.put(np.transpose(array, order), self.ctype(value))
        return View(packed.buffer, array.shape, in_order(array.shape, order))

    def work(self, shape: Sequence[int], ctype: str, order: Sequence[int] | None = None, label: str = "") -> View:
        """New memory for as long as it is used."""
        shape = tuple(shape)
        strides = row_major(shape) if order is None else in_order(shape, order)
        return View(Buffer("work", ctype, max(math.prod(shape), 1), label), shape, strides)

    def made(self, value: ir.Value, order: Sequence[int] | None = None) -> View:
        """Where a node writes a value: right into the join that reads it, or memory of its own in this order."""
        shape = self.shape(value)
        order = tuple(range(len(shape))) if order is None else tuple(order)
        if value in self.joins:
            node, start = self.joins[value]
            whole = self.join(node, order)
            axis = axis_of(node, len(shape))
            self.views[value] = whole.cut(axis, start, shape[axis])
        else:
            self.views[value] = self.work(shape, self.ctype(value), order, str(value.name))
        return self.views[value]

    def join(self, node: ir.Node, order: Sequence[int]) -> View:
        """The result of a Concat: a state with the frames behind it, where its first part is one, lies with it."""
        if node not in self.joined:
            out = node.outputs[0]
            shape, first = self.shape(out), node.inputs[0]
            axis = axis_of(node, len(shape))
            port = self.ports.get(str(first.name)) if first is not None and first.is_graph_input() else None
            if port is not None and port.axis == axis and keeps(node, port, shape[axis] - port.shape[axis]):
                self.joined[node] = port.widened(shape[axis] - port.shape[axis], order)
            else:
                self.joined[node] = self.made(out, order)
        return self.joined[node]

    def emit(self, kernel: Kernel, args: Iterable[View], writes: int = 1) -> None:
        self.calls.append(Call(kernel, tuple(args), writes, self.comment))
        self.comment = ""


def keeps(node: ir.Node, port: Port, frames: int) -> bool:
    """Is this the one join that lies with the state? The first reader that is one, if it adds little to the state.

    frames: new ones. Room for them stays with the state for good; where that is much, the state is copied instead.
    """
    first = node.inputs[0]
    assert first is not None and port.axis is not None
    readers = [
        u.node for u in first.uses()
        if u.node.op_type == "Concat" and u.idx == 0 and axis_of(u.node, len(port.shape)) == port.axis
    ]  # fmt: skip
    return bool(readers) and readers[0] is node and frames * MUCH <= port.shape[port.axis] and math.prod(port.shape) > 0


def axis_of(node: ir.Node, rank: int, default: int = 0) -> int:
    return node.attributes.get_int("axis", default) % max(rank, 1)


@dataclass(frozen=True)
class Site(NodeSite[Scope]):
    """One node, as the function of its operator sees it."""

    def x(self, i: int = 0, order: Sequence[int] | None = None) -> View:
        return self.scope.view(self.given(i), order)

    def kind(self, i: int = 0) -> str:
        return self.scope.ctype(self.given(i))

    def makes(self, i: int = 0) -> str:
        return self.scope.ctype(self.node.outputs[i])

    def alias(self, view: View, i: int = 0) -> None:
        """The output is this memory, seen so."""
        self.scope.views[self.node.outputs[i]] = view

    def out(self, i: int = 0, order: Sequence[int] | None = None) -> View:
        return self.scope.made(self.node.outputs[i], order)

    def flat(self, i: int = 0) -> View:
        """The output in one piece, its elements in their own order; what wants it elsewhere gets a copy."""
        own = self.out(i)
        if own.dense:
            return own
        made = self.scope.work(own.shape, own.ctype)
        self.scope.pending.append((made, own))
        return made

    def emit(self, kernel: Kernel, args: Iterable[View], writes: int = 1) -> None:
        self.scope.emit(kernel, args, writes)
