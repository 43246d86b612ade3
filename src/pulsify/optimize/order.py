"""Which values of a graph have their frames in another order along one axis, and what must be put in that order too.

Attention does not care in what order its keys stand, if the values, the masks and the biases that meet them stand in
the same one. `follow` starts at values that stand in ring order and goes on until the order is contracted away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from pulsify.core.traits import traits


class Stuck(Exception):
    """The order matters to this node, so that its sources must keep theirs."""

    def __init__(self, sources: frozenset[ir.Value]) -> None:
        self.sources = sources


@dataclass
class Following:
    """axis: of every value in ring order, counted from the end. turns: operands to be put in that order."""

    size: int
    axis: dict[ir.Value, int] = field(default_factory=dict)
    sources: dict[ir.Value, frozenset[ir.Value]] = field(default_factory=dict)
    turns: list[tuple[ir.Node, int, int]] = field(default_factory=list)


def size_at(value: ir.Value, axis: int) -> int | None:
    """The size of an axis counted from the end; 1 where there is none (it broadcasts), None if not known."""
    if value.shape is None:
        return None
    if -axis > len(value.shape):
        return 1
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def follow(nodes: Iterable[ir.Node], starts: dict[ir.Value, int], size: int, skip: set[ir.Node]) -> Following:
    """From `starts` (value: axis) on; raises Stuck where the order shows. nodes: in topological order."""
    out = Following(size, dict(starts), {v: frozenset([v]) for v in starts})
    for node in nodes:
        ordered = [v for v in node.inputs if v is not None and v in out.axis]
        if not ordered or node in skip:
            continue
        sources = frozenset().union(*(out.sources[v] for v in ordered))
        axis, turns = _after(node, out, sources)
        out.turns.extend((node, i, at) for i, at in turns)
        if axis is not None:
            made = node.outputs[0]
            if len(node.outputs) > 1 or made.is_graph_output():
                raise Stuck(sources)
            out.axis[made], out.sources[made] = axis, sources
    return out


Turns = list[tuple[int, int]]


def _after(node: ir.Node, f: Following, sources: frozenset[ir.Value]) -> tuple[int | None, Turns]:
    """The axis of the node's output that is in ring order (None: none), and the operands that must be turned."""
    op = node.op_type if not node.domain else ""
    first = node.inputs[0]
    axis: int | None = None
    turns: Turns | None = None
    if traits(op).elementwise:
        axis, turns = _elementwise(node, f)
    elif op == "MatMul":
        axis, turns = _matmul(node, f)
    elif first in f.axis and not any(v in f.axis for v in node.inputs[1:]):
        if op in ("Softmax", "LogSoftmax"):
            axis, turns = f.axis[first], []
        elif op == "Transpose":
            axis = transposed(node, f.axis[first])
            turns = None if axis is None else []
        elif traits(op).regroups:
            axis = regrouped(first, node.outputs[0], f.axis[first])
            turns = None if axis is None else []
    if turns is None:
        raise Stuck(sources)
    return axis, turns


def _elementwise(node: ir.Node, f: Following) -> tuple[int | None, Turns | None]:
    axes = {f.axis[v] for v in node.inputs if v in f.axis}
    axis = axes.pop()
    if axes:
        return None, None
    turns: Turns = []
    for i, v in enumerate(node.inputs):
        if v is None or v in f.axis:
            continue
        size = size_at(v, axis)
        if size not in (1, f.size):
            return None, None
        if size != 1:
            turns.append((i, axis))
    return axis, turns


def _matmul(node: ir.Node, f: Following) -> tuple[int | None, Turns | None]:
    a, b = (f.axis.get(v) if v is not None else None for v in node.inputs)
    if any(v is None or v.shape is None or len(v.shape) < 2 for v in node.inputs):
        return None, None
    if a in (None, -1) and b in (None, -2):  # contracted: both sides in the same order
        return None, [(0, -1)] * (a is None) + [(1, -2)] * (b is None)
    if a is None and b == -1:
        return -1, []
    if a == -2 and b is None:
        return -2, []
    return None, None


def permutation(node: ir.Node) -> list[int]:
    """A Transpose's; without the attribute it turns the axes round. Empty if nobody knows how many there are."""
    if "perm" in node.attributes:
        return list(node.attributes["perm"].as_ints())
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    return [] if shape is None else list(range(len(shape)))[::-1]


def transposed(node: ir.Node, axis: int) -> int | None:
    perm = permutation(node)
    return perm.index(axis + len(perm)) - len(perm) if perm else None


def regrouped(before: ir.Value, after: ir.Value, axis: int) -> int | None:
    """Where the axis stands after a reshape that leaves it whole: as many elements behind it as before."""
    if before.shape is None or after.shape is None:
        return None
    rank = len(before.shape)
    behind = [s for s in list(before.shape)[rank + axis + 1 :] if isinstance(s, int)]
    if len(behind) != -axis - 1:
        return None
    want, size = math.prod(behind), before.shape[rank + axis]
    count = 1
    for at in range(-1, -len(after.shape) - 1, -1):
        here = after.shape[at]
        if count == want and here == size:
            return at
        if not isinstance(here, int):
            return None
        count *= here
    return None
