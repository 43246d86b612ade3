"""Columns beside those of the frames: learned sinks, memory tokens, zeros that a softmax counts.

A join of columns that come with the frames and a few that are always there is followed through the operators behind it,
part by part, to where the columns are summed up, cut apart or compared. There it is written as what the parts make:

    s = cat([scores, sink], -1)                 m = max(max(scores), max(sink))
    w = softmax(s)                              a, b = exp(scores - m), exp(sink - m)
    w[..., :-1]                      -->        a / (sum(a) + sum(b))
    w @ cat([v, memory])                        a / (..) @ v + b / (..) @ memory

Then all columns of a matrix of frame against frame are frames. What no sum, cut or comparison asks for stays as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.traits import traits
from pulsify.frontend.model import Decision, Node, make_node, renamed
from pulsify.frontend.write_joins import LAST, Rewrite, Value

Dims = tuple[int, ...]
LONGEST = 1 << 30  # frames of a stream
LONG = 8  # an axis with fewer entries is not taken for time, where sizes are known at one length only
TOGETHER = {"ReduceMax": "Max", "ReduceMin": "Min", "ReduceSum": "Add"}  # what results of parts are joined by


def may_join(nodes: Sequence[Node]) -> bool:
    """Is anything joined, or padded, and then multiplied?"""
    operators = {n.op for n in nodes}
    return bool(operators & {"Concat", "Pad"}) and bool(operators & {"Softmax", *TOGETHER}) and "MatMul" in operators


@dataclass(frozen=True)
class Part:
    """Some columns; size: how many, None: as many as there are frames. needs: what decides that, by name."""

    name: str
    size: int | None
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Join:
    axis: int
    parts: tuple[Part, ...]

    @property
    def sizes(self) -> tuple[int | None, ...]:
        return tuple(p.size for p in self.parts)

    def of(self, names: Sequence[str], axis: int | None = None) -> Join:
        """As large parts of another value."""
        parts = tuple(replace(p, name=n) for n, p in zip(names, self.parts, strict=True))
        return Join(self.axis if axis is None else axis, parts)


@dataclass(eq=False)
class Columns:
    """The joins of a walk. other: sizes of all values at another length; without it joins are only looked for.

    batches: the number of streams, here and there.
    """

    other: Mapping[str, Dims] | None
    values: Mapping[str, Value]
    makers: Mapping[str, Node]
    batches: tuple[int, int]
    _joins: dict[str, Join] = field(default_factory=dict)
    _pending: dict[str, Node] = field(default_factory=dict)
    _constants: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    _decisions: dict[str, Decision] = field(default_factory=dict)  # by the part that must have a fixed size
    _at: Node | None = None
    _count: int = 0

    # ---- following

    def follow(self, node: Node) -> None:
        """File what the outputs of a node are joined from."""
        if node.domain or node.body is not None or len(node.outputs) != 1:
            return
        self._at = node
        joined = self._joined(node)
        if joined is not None:
            self._joins[node.outputs[0]] = joined

    def _joined(self, node: Node) -> Join | None:
        if node.op == "Concat":
            return self._concat(node)
        if node.op == "Pad":
            return self._pad(node)
        if not any(i in self._joins for i in node.inputs):
            return None
        kind, first = traits(node.op), self._joins.get(node.inputs[0])
        if kind.elementwise:
            return self._each(node)
        if node.op == "MatMul":
            return self._product(node)
        if first is None:
            return None
        rank = len(self.values[node.inputs[0]].dims)
        if node.op == "Transpose":
            perm = list(node.attr("perm") or reversed(range(rank)))
            return self._alike(node, first, perm.index(first.axis))
        if node.op in ("Softmax", "LogSoftmax"):
            along = node.attr("axis", -1) % rank == first.axis
            return self._normalised(node, first) if along else self._alike(node, first)
        if node.op == "LayerNormalization" and node.attr("axis", -1) % rank > first.axis:
            return self._alike(node, first)
        return self._reshaped(node, first) if kind.shapes and node.op != "Tile" else None

    def _concat(self, node: Node) -> Join | None:
        axis = node.attr("axis") % len(self.values[node.outputs[0]].dims)
        parts: list[Part] = []
        for name in node.inputs:
            inner = self._joins.get(name)
            if inner is not None and inner.axis == axis:
                parts += inner.parts
            elif self._grows(name, axis):
                parts.append(Part(name, None))
            elif self._still(name):
                parts.append(self._fixed(name, axis))
            else:
                return None
        return self._of_frames(axis, parts)

    def _grows(self, name: str, axis: int) -> bool:
        """Does an axis go with the length?"""
        own = self.values[name].dims
        if self.other is None:  # it may
            return own[axis] >= LONG
        there = self.other.get(name)
        if there is None or len(there) != len(own) or there[axis] == own[axis]:
            return False
        here, beyond = self.batches
        return there[axis] * here != own[axis] * beyond  # if not, it goes with the number of streams

    def _fixed(self, name: str, axis: int) -> Part:
        size = self.values[name].dims[axis]
        node = self.makers.get(name)
        if node is None:
            return Part(name, size)
        self._decisions[name] = Decision(node.name, node.op, name, axis, size)
        return Part(name, size, frozenset({name}))

    def _of_frames(self, axis: int, parts: list[Part]) -> Join | None:
        """Columns of frames, and some beside them."""
        some = all(p.size != 0 for p in parts) and len(parts) > 1
        return Join(axis, tuple(parts)) if some and sum(p.size is None for p in parts) == 1 else None

    def _still(self, name: str) -> bool:
        """Is it the same at every frame, or one for every row? Frames of the stream are not."""
        if any(self._grows(name, a) for a in range(len(self.values[name].dims))):
            return True
        todo, seen = [name], set[str]()
        while todo:
            at = todo.pop()
            if at in seen or not at or self.values[at].known:
                continue
            seen.add(at)
            if at not in self.makers:
                return False
            todo.extend(self.makers[at].reads)
        return True

    def _pad(self, node: Node) -> Join | None:
        name, dims = node.inputs[0], self.values[node.inputs[0]].dims
        given = [self.values[i] if i else None for i in node.inputs[1:]]
        if node.attr("mode", "constant") != "constant" or not given or any(v and not v.known for v in given):
            return None
        pads, fill = given[0], given[1] if len(given) > 1 else None
        axes = given[2].array.tolist() if len(given) > 2 and given[2] is not None else list(range(len(dims)))
        assert pads is not None
        amounts = pads.array.reshape(2, -1)
        where = [n for n, a in enumerate(axes) if amounts[:, n].any()]
        if len(where) != 1 or amounts.min() < 0:
            return None
        axis = axes[where[0]] % len(dims)
        needs = self._require(node.inputs[1], pads.array)
        inner = self._joins.get(name)
        if (inner is not None and inner.axis != axis) or (inner is None and not self._grows(name, axis)):
            return None
        own = list(inner.parts) if inner is not None else [Part(name, None)]
        number = fill.array.reshape(-1)[0] if fill is not None else 0
        filled = self._constant(np.asarray(number, self.values[name].dtype.numpy()))
        ends = list[list[Part]]()
        for count in amounts[:, where[0]].tolist():
            shape = self._shape(name, axis, self._ints(count))
            ends.append([Part(self._op("Expand", filled, shape), count, needs)] if count else [])
        return self._of_frames(axis, [*ends[0], *own, *ends[1]])

    def _require(self, name: str, array: Any) -> frozenset[str]:
        """The numbers must be these at every length: what has to be so."""
        if name not in self.makers:
            return frozenset()
        off = self._op("Sub", name, self._constant(array))
        assert self._at is not None
        self._decisions[off] = Decision(self._at.name, self._at.op, off, None, 0, everywhere=True)
        return frozenset({off})

    def _each(self, node: Node) -> Join | None:
        """Entry by entry, part by part."""
        out = len(self.values[node.outputs[0]].dims)
        given = [self._joins.get(i) for i in node.inputs]
        axes = {
            j.axis + out - len(self.values[i].dims) for i, j in zip(node.inputs, given, strict=True) if j is not None
        }
        sizes = {j.sizes for j in given if j is not None}
        if len(axes) != 1 or len(sizes) != 1:
            return None
        axis, whole = axes.pop(), next(j for j in given if j is not None)
        pieces = [self._pieces(name, axis - out, whole) for name in node.inputs]
        if not all(pieces):
            return None
        names = [self._op(node.op, *(p[n] for p in pieces), like=node) for n in range(len(whole.parts))]
        return whole.of(names, axis)

    def _pieces(self, name: str, from_end: int, like: Join) -> list[str]:
        """Of an operand beside a join: what stands beside each part; none if it is data that would have to be cut.

        from_end: the axis, counted back.
        """
        if not name:
            return [""] * len(like.parts)
        own = self._joins.get(name)
        if own is not None and own.axis - len(self.values[name].dims) == from_end and own.sizes == like.sizes:
            return [p.name for p in own.parts]
        dims = self.values[name].dims
        if len(dims) < -from_end or (dims[from_end] == 1 and not self._grows(name, len(dims) + from_end)):
            return [name] * len(like.parts)
        if not self.values[name].known:
            return []
        axis, out = len(dims) + from_end, []
        before = list(itertools.takewhile(lambda s: s is not None, like.sizes))
        start, behind = 0, sum(s for s in like.sizes[len(before) :] if s is not None)
        for size in like.sizes:
            if size is None:
                ends, start = (start, -behind if behind else LAST), -behind
            else:
                stop = start + size
                ends, start = (start, stop if stop else LAST), stop
            out.append(self._op("Slice", name, *(self._ints(e) for e in (*ends, axis))))
        return out

    def _alike(self, node: Node, join: Join, axis: int | None = None) -> Join:
        """The same of every part."""
        names = [self._op(node.op, p.name, *node.inputs[1:], like=node) for p in join.parts]
        return join.of(names, axis)

    def _reshaped(self, node: Node, join: Join) -> Join | None:
        """Reshapes in which the columns stay an axis of their own."""
        before, after = self.values[node.inputs[0]].dims, self.values[node.outputs[0]].dims
        size = before[join.axis]
        if node.op == "Expand":
            axis = join.axis + len(after) - len(before)
        else:
            places = [
                b for b, d in enumerate(after) if d == size and math.prod(after[:b]) == math.prod(before[: join.axis])
            ]
            if not places or not self._grows(node.outputs[0], places[-1]):
                return None
            axis = places[-1]
        if node.op in ("Squeeze", "Unsqueeze"):
            return self._alike(node, join, axis)
        if node.op not in ("Reshape", "Expand"):
            return None
        names = []
        for p in join.parts:
            own = self._op("Gather", self._op("Shape", p.name), self._ints(join.axis), axis=0)
            names.append(self._op(node.op, p.name, self._beside(node.inputs[1], axis, own), **node.attrs))
        return join.of(names, axis)

    def _shape(self, name: str, axis: int, size: str) -> str:
        """Sizes as those of a value, but for one axis."""
        return self._beside(self._op("Shape", name), axis, size)

    def _beside(self, sizes: str, axis: int, size: str) -> str:
        front, back = (
            self._op("Slice", sizes, self._ints(first), self._ints(last))
            for first, last in ((0, axis), (axis + 1, LAST))
        )
        return self._op("Concat", front, size, back, axis=0)

    def _product(self, node: Node) -> Join | None:
        """Columns of the second operand, or rows of the first, are those of the product."""
        left, right = (self._joins.get(i) for i in node.inputs)
        ranks = [len(self.values[i].dims) for i in node.inputs]
        if min(ranks) < 2 or (left is not None and right is not None):
            return None
        out = max(ranks)
        if left is not None and left.axis == ranks[0] - 2 and ranks[1] == 2:
            return left.of([self._op("MatMul", p.name, node.inputs[1]) for p in left.parts], out - 2)
        if right is not None and right.axis == ranks[1] - 1:
            return right.of([self._op("MatMul", node.inputs[0], p.name) for p in right.parts], out - 1)
        return None

    def _normalised(self, node: Node, join: Join) -> Join:
        """A softmax along the columns, of all parts together."""
        top = self._total("ReduceMax", join)
        shifted = [self._op("Sub", p.name, top) for p in join.parts]
        each = join.of([self._op("Exp", x) for x in shifted])
        total = self._total("ReduceSum", each)
        if node.op == "LogSoftmax":
            log = self._op("Log", total)
            return join.of([self._op("Sub", x, log) for x in shifted])
        return join.of([self._op("Div", p.name, total) for p in each.parts])

    def _total(self, op: str, join: Join, keeps: int = 1) -> str:
        """What a reduction makes of all parts."""
        return reduce(
            partial(self._op, TOGETHER[op]), [self._reduced(op, p.name, join.axis, keeps) for p in join.parts]
        )

    def _reduced(self, op: str, name: str, axis: int, keeps: int) -> str:
        assert self._at is not None
        if self._at.version >= (13 if op == "ReduceSum" else 18):
            return self._op(op, name, self._ints(axis), keepdims=keeps)
        return self._op(op, name, axes=[axis], keepdims=keeps)

    # ---- what is written otherwise

    def instead(self, node: Node) -> Rewrite | None:
        """The nodes that make the same of the parts of a join; None if it is made of none, or stays."""
        if node.domain or node.body is not None or not node.inputs or len(node.outputs) != 1:
            return None
        join = self._joins.get(node.inputs[0])
        dims = self.values[node.inputs[0]].dims
        if join is None or not self._of_two_times(node.inputs[0], join):
            return None
        self._at, result = node, None
        needs = {n for p in join.parts for n in p.needs}
        if node.op in TOGETHER:
            axes = self._axes(node)
            if axes is not None and [a % len(dims) for a in axes] == [join.axis]:
                result = self._total(node.op, join, node.attr("keepdims", 1))
        elif node.op == "Slice":
            result = self._cut(node, join, needs)
        elif node.op == "MatMul" and join.axis == len(dims) - 1:
            pieces = self._pieces(node.inputs[1], -2, join)
            needs |= (
                {n for p in self._joins[node.inputs[1]].parts for n in p.needs}
                if node.inputs[1] in self._joins
                else set()
            )
            made = [self._op("MatMul", p.name, q) for p, q in zip(join.parts, pieces, strict=False)]
            result = reduce(partial(self._op, "Add"), made) if pieces else None
        return None if result is None else self._written(node, result, needs)

    def _of_two_times(self, name: str, join: Join) -> bool:
        """Is it a matrix of frame against frame?"""
        dims = self.values[name].dims
        if self.other is not None:
            return sum(self._grows(name, a) for a in range(len(dims))) > 1
        frames = dims[join.axis] - sum(s for s in join.sizes if s is not None)
        return any(d == frames for a, d in enumerate(dims) if a != join.axis)

    def _axes(self, node: Node) -> list[int] | None:
        if node.input(1):
            value = self.values[node.inputs[1]]
            return value.array.reshape(-1).tolist() if value.known else None
        axes = node.attr("axes")
        return None if axes is None else list(axes)

    def _cut(self, node: Node, join: Join, needs: set[str]) -> str | None:
        """Whole parts."""
        given = [self.values[i] for i in node.inputs[1:] if i]
        if any(not v.known or v.array.size != 1 for v in given):
            return None
        start, stop, axis, step = (*(int(v.array.reshape(-1)[0]) for v in given), 0, 1)[:4]
        if step != 1 or len(given) < 3 or axis % len(self.values[node.inputs[0]].dims) != join.axis:
            return None
        at = join.sizes.index(None)
        edges = [sum(s for s in join.sizes[:n] if s is not None) for n in range(at + 1)]  # from the front
        back = [-sum(s for s in join.sizes[n:] if s is not None) for n in range(at + 1, len(join.parts))]  # the end
        first = edges.index(start) if start in edges else at + 1 + back.index(start) if start in back else None
        last = len(join.parts) if stop > LONGEST else None
        if stop in edges[1:] or stop in back:
            last = edges.index(stop) if stop in edges else at + 1 + back.index(stop)
        if first is None or last is None or first >= last:
            return None
        for name, number in zip(node.inputs[1:], (start, stop), strict=False):
            needs |= self._require(name, self.values[name].array) if number <= LONGEST else frozenset()
        kept = [p.name for p in join.parts[first:last]]
        return kept[0] if len(kept) == 1 else self._op("Concat", *kept, axis=join.axis)

    def _written(self, node: Node, result: str, needs: set[str]) -> Rewrite:
        """The nodes that a result is made of, in order."""
        needed, todo = set[str](), [result, *needs]
        while todo:
            name = todo.pop()
            if name not in needed and name in self._pending:
                needed.add(name)
                todo.extend(self._pending[name].inputs)
        nodes = [self._pending.pop(name) for name in list(self._pending) if name in needed]
        read = {i for n in nodes for i in n.inputs}
        constants = {name: tensor for name, tensor in self._constants.items() if name in read}
        decisions = [self._decisions.pop(n) for n in sorted(needs) if n in self._decisions]
        return Rewrite([*nodes, make_node("Identity", [result], node.outputs[0], node.version)], constants, decisions)

    # ---- pending nodes

    def _op(self, op: str, *inputs: str, like: Node | None = None, **attrs: Any) -> str:
        assert self._at is not None
        name = self._name(op.lower())
        if like is not None:
            names = dict(zip(like.inputs, inputs, strict=True)) | {like.outputs[0]: name}
            self._pending[name] = renamed(like, names, f"{name}/{op}")
        else:
            self._pending[name] = make_node(op, inputs, name, self._at.version, **attrs)
        return name

    def _ints(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def _constant(self, array: Any) -> str:
        name = self._name("columns")
        self._constants[name] = ir.tensor(np.asarray(array), name=name)
        return name

    def _name(self, what: str) -> str:
        assert self._at is not None
        self._count += 1
        return f"{self._at.name}/{what}_{self._count}"
