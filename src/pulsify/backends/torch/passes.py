"""Passes for this back end, on a step for so many streams: what has no effect is gone, products that can be one are.

Every result is plain ONNX: any of its nodes may still be left to the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import PassBase, Sequential

from pulsify.optimize.builder import Builder
from pulsify.optimize.cuts import CutOnce
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.scale import FoldScale, SpreadScale
from pulsify.optimize.tidy import DropNeutral, ReadUncut
from pulsify.optimize.views import sizes

SPLITS = 13  # the opset from which on the sizes of a Split are an input


@dataclass(frozen=True)
class Joined:
    """Constants side by side, made when they are read. The same ones in another form of a step are the same tensor."""

    kept: dict[tuple[int, ...], tuple[ir.TensorProtocol, Sequence[ir.TensorProtocol]]] = field(default_factory=dict)

    def columns(self, parts: Sequence[ir.TensorProtocol], name: str) -> ir.TensorProtocol:
        key = tuple(map(id, parts))
        if key not in self.kept:
            shape = ir.Shape([_rows(parts[0]), sum(map(_columns, parts))])
            made = ir.LazyTensor(
                lambda: ir.tensor(np.concatenate([p.numpy() for p in parts], 1)), parts[0].dtype, shape, name=name
            )
            self.kept[key] = made, tuple(parts)  # what a key is made of must not go away
        return self.kept[key][0]


class JoinProducts(NodeChange):
    """Products of one value with several matrices: one product, then cut.

    x -MatMul Q->,  x -MatMul K->,  x -MatMul V->        =        x -MatMul [Q K V]-> -Split->

    Requires and ensures what every `NodeChange` does.
    """

    def __init__(self, joined: Joined | None = None) -> None:
        self.joined = joined or Joined()

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        x = node.inputs[0] if node.op_type == "MatMul" and b.graph.opset_imports.get("", 0) >= SPLITS else None
        taken = sizes(x)
        if x is None or taken is None or len(taken) < 2:
            return
        readers = list(dict.fromkeys(use.node for use in x.uses() if use.idx == 0))
        products = [n for n in readers if n.op_type == "MatMul" and _matrix(n) is not None]
        if len(products) < 2 or products[0] is not node:
            return
        parts = [m for n in products if (m := _matrix(n)) is not None]
        widths = [_columns(p) for p in parts]
        weights = b.tensor(f"{node.name}/joined", self.joined.columns(parts, f"{node.name}/joined"))
        first = next(n for n in b.graph if n in products)
        b = b.before(first)
        made = b.op("MatMul", [x, weights], (*taken[:-1], sum(widths)), x.dtype, name=f"{node.name}/joined_product")
        shapes = [(*taken[:-1], w) for w in widths]
        last, name = len(taken) - 1, f"{node.name}/pieces"
        pieces = b.ops("Split", [made, b.ints(*widths)], shapes, x.dtype, name=name, axis=last)
        for product, piece in zip(products, pieces, strict=True):
            b.replace(product.outputs[0], piece)


def _matrix(product: ir.Node) -> ir.TensorProtocol | None:
    """The constant [C, N] a product is with."""
    value = product.inputs[1]
    if value is None or value.const_value is None or value.is_graph_input() or len(value.const_value.shape) != 2:
        return None
    return value.const_value if value.dtype == ir.DataType.FLOAT else None


def _rows(matrix: ir.TensorProtocol) -> int:
    return int(matrix.shape.numpy()[0])


def _columns(matrix: ir.TensorProtocol) -> int:
    return int(matrix.shape.numpy()[1])


def quicker(joined: Joined) -> PassBase:
    """All of them, in the order in which one makes room for the next."""
    return Sequential(DropNeutral(), CutOnce(), ReadUncut(), SpreadScale(), FoldScale(), JoinProducts(joined))
