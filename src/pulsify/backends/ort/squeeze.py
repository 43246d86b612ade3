"""Tokens of one stream as plain rows: [1, T, C] becomes [T, C] wherever a node does not care.

Products, norms over the last axis and whatever goes element by element take both; what is left on the border is a
Reshape, and most of those meet another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import PassResult

from pulsify.core.traits import traits
from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import Change, one_stream
from pulsify.optimize.views import constant, sizes, source

Shape = tuple[int, ...]


class SqueezeTokens(Change[PassResult]):
    """In place. Requires: a model for one stream. Ensures: nodes stand behind what they read; no port is touched."""

    def call(self, model: ir.Model) -> PassResult:
        b, flat = Builder(model.graph), dict[ir.Value, ir.Value]()
        done = [node for node in list(model.graph) if _convert(b.before(node), node, flat)]
        for node in reversed(done):
            for out in node.outputs:
                if out.uses():
                    _back(b.before(node), out, flat[out])
            model.graph.remove(node, safe=True)
        return PassResult(model, bool(done))

    def requires(self, model: ir.Model) -> None:
        one_stream(model)


def tokens(value: ir.Value | None) -> Shape | None:
    """(T, C) of a value [1, T, C]."""
    dims = sizes(value)
    return dims[1:] if dims is not None and len(dims) == 3 and dims[0] == 1 else None


def _convert(b: Builder, node: ir.Node, flat: dict[ir.Value, ir.Value]) -> bool:
    if any(tokens(o) is None or o in b.graph.outputs for o in node.outputs) or not _takes_rows(node):
        return False
    data = [v for v in node.inputs if tokens(v) is not None and constant(v) is None]
    product = node.op_type == "MatMul"
    if not product and not any(v in flat or sizes(source(v)) == tokens(v) for v in data if v is not None):
        return False
    attrs: dict[str, Any] = {name: a.value for name, a in node.attributes.items()}
    inputs = [_flat(b, v, flat) if v in data else _spread(b, v) for v in node.inputs]
    if attrs.get("axis", 0) > 0:
        attrs["axis"] -= 1
    shapes, dtype = [tokens(out) for out in node.outputs], node.outputs[0].dtype
    made = b.ops(node.op_type, inputs, shapes, dtype, name=f"{node.name}/flat", domain="", **attrs)
    for out, fresh in zip(node.outputs, made, strict=True):
        flat[out], fresh.type = fresh, out.type
    return True


def _takes_rows(node: ir.Node) -> bool:
    op, rest = node.op_type, node.inputs[1:]
    if op == "MatMul":
        weights = None if rest[0] is None else rest[0].const_value
        rank = None if weights is None or weights.shape is None else len(weights.shape)
        return rank == 2 and tokens(node.inputs[0]) is not None
    if op == "LayerNormalization":
        last = node.attributes.get_int("axis", -1) in (-1, 2)
        return last and all(v is None or ((a := constant(v)) is not None and a.ndim == 1) for v in rest)
    if op == "Softmax":
        return node.attributes.get_int("axis", -1) in (-1, 2)
    if op in ("Split", "Concat"):
        axis = node.attributes.get_int("axis", 0)
        known = tokens if op == "Concat" else constant  # a join turns to rows only if all of its parts do
        return axis not in (0, -3) and all(known(v) is not None for v in (node.inputs if op == "Concat" else rest))
    if not traits(op).elementwise or op == "Identity" or len(node.outputs) != 1:
        return False
    shape = sizes(node.outputs[0])
    return all(v is None or sizes(v) == shape or _broadcasts(v) for v in node.inputs)


def _broadcasts(value: ir.Value) -> bool:
    array = constant(value)
    return array is not None and (array.ndim < 3 or (array.ndim == 3 and array.shape[0] == 1))


def _spread(b: Builder, value: ir.Value | None) -> ir.Value | None:
    """A constant without its leading axis."""
    array = constant(value)
    if value is None or array is None or array.ndim < 3:
        return value
    return b.constant(f"{value.name}/flat", np.ascontiguousarray(array[0]))


def _flat(b: Builder, value: ir.Value | None, flat: dict[ir.Value, ir.Value]) -> ir.Value:
    assert value is not None
    shape = tokens(value)
    assert shape is not None
    if value not in flat:
        flat[value] = b.reshaped(source(value), shape)
    return flat[value]


def _back(b: Builder, value: ir.Value, rows: ir.Value) -> None:
    """Whoever still takes [1, T, C] takes a view of the rows."""
    shape = sizes(value)
    assert shape is not None
    value.replace_all_uses_with(b.op("Reshape", [rows, b.ints(*shape)], shape, value.dtype))
