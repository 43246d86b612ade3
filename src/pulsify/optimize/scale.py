"""A factor is part of the weights in front of it; what is turned twice is turned once.

x -MatMul W-> -Mul 0.5->                       =   x -MatMul 0.5 W->
(a.K + shift(b.P)) / 8                         =   a.K / 8 + shift(b.(P / 8))
q -Add u-> -Transpose->,  q -Add v-> -Transpose->   =   q -Transpose-> -Add u->, -Add v->
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.roles import mark, role
from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import constant, only_reader, sizes, small_weights

Array = np.ndarray[Any, Any]
CARRIERS = ("Reshape", "Slice", "Transpose", "Squeeze", "Unsqueeze")  # a factor passes them


class FoldScale(NodeChange):
    """A product with small constant weights, times one number: the weights are scaled.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        factor, x = _factor(node)
        product = None if x is None else x.producer()
        if factor is None or x is None or product is None or not only_reader(x):
            return
        side = (
            next((i for i in (1, 0) if small_weights(product.inputs[i])), None) if product.op_type == "MatMul" else None
        )
        if side is None:
            return
        weights = constant(product.inputs[side])
        assert weights is not None
        inputs = list(product.inputs)
        inputs[side] = b.constant(f"{node.name}/weights", weights * factor)
        out = node.outputs[0]
        made = b.op("MatMul", inputs, sizes(out), out.dtype)
        if (meant := role(product)) is not None:
            mark(made, meant)
        b.replace(out, made)


def _factor(node: ir.Node) -> tuple[np.float32 | None, ir.Value | None]:
    """The number a node multiplies all of a value with, and that value."""
    if node.op_type not in ("Mul", "Div") or sizes(node.outputs[0]) is None:
        return None, None
    x, y = node.inputs
    if (number := _number(y)) is not None and sizes(x) == sizes(node.outputs[0]):
        return np.float32(number if node.op_type == "Mul" else 1 / np.float64(number)), x
    if node.op_type == "Mul" and (number := _number(x)) is not None and sizes(y) == sizes(node.outputs[0]):
        return np.float32(number), y
    return None, None


def _number(value: ir.Value | None) -> float | None:
    array = constant(value)
    fits = array is not None and array.size == 1 and array.dtype == np.float32
    return float(array.reshape(-1)[0]) if fits and array is not None else None


class SpreadScale(NodeChange):
    """A sum of products, scaled: each product is, behind which the runtime (or `FoldScale`) takes the factor in.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        factor, x = _factor(node)
        add = None if x is None else x.producer()
        if factor is None or x is None or add is None or add.op_type != "Add" or not only_reader(x):
            return
        origins = [_product_behind(v, sizes(x)) for v in add.inputs]
        if len(origins) != 2 or any(o is None for o in origins):
            return
        number = b.constant(f"{node.name}/factor", np.array([factor]))
        for origin in origins:
            assert origin is not None
            users = list(origin.uses())
            after = users[0].node
            scaled = b.before(after).op("Mul", [origin, number], sizes(origin), origin.dtype)
            for use in users:
                use.node.replace_input_with(use.idx, scaled)
        b.replace(node.outputs[0], x)


def _product_behind(value: ir.Value | None, shape: tuple[int, ...] | None) -> ir.Value | None:
    """The product that a value is cut and shaped from, if nobody else reads anything on the way."""
    if value is None or sizes(value) != shape:
        return None
    while only_reader(value) and (maker := value.producer()) is not None:
        if maker.op_type == "MatMul":
            return value
        if maker.op_type not in CARRIERS or maker.inputs[0] is None:
            return None
        value = maker.inputs[0]
    return None


class TurnOnce(NodeChange):
    """Constants added to a value before it is turned are added afterwards, if all who read it turn it alike.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        value, dims = node.outputs[0], sizes(node.outputs[0])
        uses = list(value.uses())
        if dims is None or len(uses) < 2 or len(node.outputs) != 1 or value in b.graph.outputs:
            return
        turns = [_turn_behind(use.node, value) for use in uses]
        perms = {tuple(t.attributes.get_ints("perm", ())) for t in turns if t is not None}
        if any(t is None for t in turns) or len(perms) != 1 or len(next(iter(perms))) != len(dims):
            return
        perm = next(iter(perms))
        shape = tuple(dims[a] for a in perm)
        readers = [use.node for use in uses]
        first = next(n for n in b.graph if n in readers)
        turned = b.before(first).op("Transpose", [value], shape, value.dtype, perm=list(perm))
        for use, turn in zip(uses, turns, strict=True):
            assert turn is not None
            other = constant(next(v for v in use.node.inputs if v is not value))
            assert other is not None
            full = other.reshape((1,) * (len(dims) - other.ndim) + other.shape).transpose(perm)
            inputs = [turned, b.constant(f"{use.node.name}/turned", full)]
            b.replace(turn.outputs[0], b.before(turn).op("Add", inputs, shape, value.dtype))


def _turn_behind(add: ir.Node, value: ir.Value) -> ir.Node | None:
    """The Transpose that alone reads what an Add of a constant makes of the value."""
    if add.op_type != "Add" or sizes(add.outputs[0]) != sizes(value):
        return None
    others = [v for v in add.inputs if v is not value]
    users = list(add.outputs[0].uses())
    if len(others) != 1 or not small_weights(others[0]) or len(users) != 1 or users[0].node.op_type != "Transpose":
        return None
    return users[0].node
