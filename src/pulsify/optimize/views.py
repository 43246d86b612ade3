"""Values that are others seen in another shape, and other questions about a graph whose sizes are all known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
WORTH_COPYING = 1 << 20  # bytes
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """All sizes of a value, or None if some are not known."""
    if value is None or value.shape is None:
        return None
    dims = [d for d in value.shape if isinstance(d, int)]
    return tuple(dims) if len(dims) == len(value.shape) else None


def constant(value: ir.Value | None) -> Array | None:
    """A constant's elements; None for all others, inputs with a default too."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def is_view(node: ir.Node | None) -> bool:
    """Are its output's elements those of its first input, in the same order?"""
    if node is None or node.domain or len(node.outputs) != 1 or not node.inputs:
        return False
    taken, given = sizes(node.inputs[0]), sizes(node.outputs[0])
    if taken is None or given is None or np.prod(taken) != np.prod(given):
        return False
    if node.op_type in VIEWS:
        return True
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", tuple(reversed(range(len(taken)))))
        moved = [axis for axis in perm if taken[axis] != 1]
        return moved == sorted(moved)
    if node.op_type == "Gather":
        places = constant(node.inputs[1])
        size = taken[node.attributes.get_int("axis", 0)]
        return places is not None and np.array_equal(places.reshape(-1) % size, np.arange(size))
    return node.op_type == "Slice" and taken == given and _forwards(node)


def _forwards(node: ir.Node) -> bool:
    steps = constant(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    return steps is not None and bool((steps > 0).all())


def source(value: ir.Value) -> ir.Value:
    """What a value's elements come from, in the same order."""
    while (maker := value.producer()) is not None and is_view(maker) and maker.inputs[0] is not None:
        value = maker.inputs[0]
    return value


def cut_of(node: ir.Node) -> tuple[int, int, int] | None:
    """(axis, start, stop) of a Slice along one axis, all known; None if it is none, or skips frames."""
    whole, piece = (sizes(node.inputs[0]), sizes(node.outputs[0])) if node.op_type == "Slice" else (None, None)
    given = [constant(v) for v in node.inputs[1:]]
    if whole is None or piece is None or len(given) < 3 or any(a is None or a.size != 1 for a in given):
        return None
    start, _, axis, *step = (int(a.reshape(-1)[0]) for a in given if a is not None)
    axis %= len(whole)
    start = max(start + whole[axis], 0) if start < 0 else start
    return (axis, start, start + piece[axis]) if step in ([], [1]) else None


def scale_and_shift(norm: ir.Node) -> tuple[Array, Array] | None:
    """What a BatchNormalization of fixed statistics multiplies with and adds, by channel."""
    given = [constant(v) for v in norm.inputs[1:5]]
    if len(norm.outputs) != 1 or any(a is None or a.dtype != np.float32 for a in given):
        return None
    gain, shift, mean, variance = (a for a in given if a is not None)
    gain = gain / np.sqrt(variance + np.float32(norm.attributes.get_float("epsilon", 1e-5)))
    return gain, shift - mean * gain


def only_reader(value: ir.Value) -> bool:
    """Does just one node read it, and nobody outside?"""
    return len(list(value.uses())) == 1 and not value.is_graph_output()


def small_weights(value: ir.Value | None) -> bool:
    """Constants of float32 that are worth another copy."""
    if value is None or value.const_value is None or value.is_graph_input():
        return False
    return value.const_value.nbytes <= WORTH_COPYING and value.dtype == ir.DataType.FLOAT
