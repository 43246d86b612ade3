"""One product after another, nothing between them: one product, if that is less work."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import WORTH_COPYING, Array, constant, only_reader, sizes


class ChainProducts(NodeChange):
    """(x A + a) B + b is x (A B) + (a B + b). The matrices are multiplied in double precision.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        middle = node.inputs[0] if _is_product(node) else None
        inner = middle.producer() if middle is not None and only_reader(middle) else None
        taken, shape = sizes(None if inner is None else inner.inputs[0]), sizes(node.outputs[0])
        between = sizes(middle)
        if inner is None or not _is_product(inner) or taken is None or between is None or shape is None:
            return
        size = taken[1] * shape[1]
        if size > between[1] * (taken[1] + shape[1]) or 4 * size > WORTH_COPYING:
            return
        first, second = _matrix(inner), _matrix(node)
        inputs = [inner.inputs[0], b.constant(f"{node.name}/chained", (first @ second).astype(np.float32))]
        if len(inner.inputs) + len(node.inputs) > 4:
            shift = _bias(inner) @ second + _bias(node)
            inputs.append(b.constant(f"{node.name}/shift", np.broadcast_to(shift, shape[1:]).astype(np.float32)))
        b.replace(node.outputs[0], b.op("Gemm", inputs, shape, node.outputs[0].dtype))


def _is_product(node: ir.Node) -> bool:
    """By constants, as it is; a bias by column, or none."""
    return _by_constants(node) and all((a := constant(v)) is not None and a.ndim < 2 for v in node.inputs[2:])


def _by_constants(node: ir.Node) -> bool:
    """Of float32, and nothing scaled; whatever is added."""
    if node.op_type != "Gemm" or not set(node.attributes) <= {"transB"} or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    weights = node.inputs[1]
    return weights is not None and weights.const_value is not None and not weights.is_graph_input()


def _matrix(node: ir.Node) -> Array:
    array = constant(node.inputs[1])
    assert array is not None
    return (array.T if node.attributes.get_int("transB", 0) else array).astype(np.float64)


def _bias(node: ir.Node) -> Array:
    array = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    width = _matrix(node).shape[1]
    return np.zeros(width) if array is None else np.broadcast_to(array.astype(np.float64), (width,))


class JoinSummands(NodeChange):
    """(u + v + ...) A is [u v ...] times A over A over ...: two nodes for as many as there are summands.

    Where there are several, and so little to multiply that nodes cost more.
    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if not _by_constants(node) or node.inputs[0] is None or (shape := sizes(node.inputs[0])) is None:
            return
        parts = _summands(node.inputs[0], shape)
        width = len(parts) * shape[1]
        if len(parts) < SEVERAL or width * (sizes(node.outputs[0]) or shape)[1] > LITTLE:
            return
        joined = b.op("Concat", parts, (shape[0], width), node.inputs[0].dtype, axis=1)
        weights = b.constant(f"{node.name}/joined", np.tile(_matrix(node), (len(parts), 1)).astype(np.float32))
        inputs = [joined, weights, *node.inputs[2:]]
        b.replace(node.outputs[0], b.op("Gemm", inputs, sizes(node.outputs[0]), node.outputs[0].dtype))


SEVERAL, LITTLE = 4, 1 << 12  # summands; numbers in a matrix


def _summands(value: ir.Value, shape: tuple[int, ...]) -> list[ir.Value]:
    """What a tree of sums adds up, all of one shape; the value itself if it is none, or others read it."""
    add = value.producer()
    if add is None or add.op_type != "Add" or not only_reader(value) or any(sizes(v) != shape for v in add.inputs):
        return [value]
    return [part for v in add.inputs if v is not None for part in _summands(v, shape)]
