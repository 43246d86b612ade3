"""Queries, keys and values of one input, split into heads alike: one product and one turn for all of them.

x -MatMul-> -Reshape [1,T,H,D]-> -Transpose [1,H,T,D]->      for each of q, k, v
x -MatMul-> -Reshape [1,T,3H,D]-> -Transpose [1,3H,T,D]-> -Split->      once
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import constant, only_reader, sizes, small_weights

TURNS = {(0, 2, 1, 3), (0, 2, 3, 1)}  # heads come forward; the second turns what is behind them too


@dataclass(frozen=True)
class _Heads:
    """A product with constant weights, and the value of its `count` heads: `shape` is [lead, frames, width] of each."""

    product: ir.Node
    count: int
    shape: tuple[int, int, int]
    turn: ir.Node

    @property
    def turned(self) -> bool:
        return tuple(self.turn.attributes.get_ints("perm", ()))[2:] == (3, 1)


class JoinHeads(NodeChange):
    """Products of one input that are split into heads of one size. Each column is computed as before.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        x, first = node.inputs[0] if node.inputs else None, _heads(node)
        if x is None or first is None:
            return
        found = [h for use in x.uses() if use.idx == 0 and (h := _heads(use.node)) is not None]
        alike = [h for h in found if h.shape == first.shape]
        if len(alike) > 1:
            _join(b, x, alike)


def _heads(node: ir.Node) -> _Heads | None:
    if node.op_type != "MatMul" or not small_weights(node.inputs[1]) or not only_reader(node.outputs[0]):
        return None
    weights, view = constant(node.inputs[1]), next(iter(node.outputs[0].uses())).node
    shape = sizes(view.outputs[0])
    if weights is None or weights.ndim != 2 or view.op_type != "Reshape" or shape is None or len(shape) != 4:
        return None
    turn = next(iter(view.outputs[0].uses())).node if only_reader(view.outputs[0]) else None
    if turn is None or turn.op_type != "Transpose" or tuple(turn.attributes.get_ints("perm", ())) not in TURNS:
        return None
    if not turn.outputs[0].uses() and not turn.outputs[0].is_graph_output():
        return None  # joined already
    each = shape[0], shape[1], shape[3]
    return _Heads(node, shape[2], each, turn) if shape[2] * shape[3] == weights.shape[1] else None


def _join(b: Builder, x: ir.Value, parts: list[_Heads]) -> None:
    taken = sizes(x)
    assert taken is not None
    (lead, frames, width), total = parts[0].shape, sum(p.count for p in parts)
    weights = np.concatenate([a for p in parts if (a := constant(p.product.inputs[1])) is not None], 1)
    joined = b.constant(f"{parts[0].product.name}/heads", weights)
    dtype = parts[0].turn.outputs[0].dtype
    product = b.op("MatMul", [x, joined], (*taken[:-1], weights.shape[1]), dtype)
    heads = b.op("Transpose", [b.reshaped(product, (lead, frames, total, width))], (lead, total, frames, width), dtype,
                 perm=[0, 2, 1, 3])  # fmt: skip
    counts = b.ints(*(p.count for p in parts))
    pieces = b.ops("Split", [heads, counts], [(lead, p.count, frames, width) for p in parts], dtype, axis=1)
    for part, piece in zip(parts, pieces, strict=True):
        if part.turned:
            piece = b.op("Transpose", [piece], (lead, part.count, width, frames), dtype, perm=[0, 1, 3, 2])
        b.replace(part.turn.outputs[0], piece)
