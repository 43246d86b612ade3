"""Tokens of one stream as plain rows: [1, T, C] becomes [T, C] wherever a node does not care.

Products, norms over the last axis and whatever goes element by element take both; what is left on the border is a
Reshape, and most of those meet another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.traits import traits
from pulsify.optimize.views import constant, ints, new_node, reshaped, sizes, source

Shape = tuple[int, ...]


def squeezed(model: ir.Model) -> ir.Model:
    """The same model; changes it in place."""
    graph, flat = model.graph, dict[ir.Value, ir.Value]()
    done = [node for node in list(graph) if _convert(graph, node, flat)]
    for node in reversed(done):
        for out in node.outputs:
            if out.uses() or out in graph.outputs:
                _back(graph, out, flat[out], node)
        graph.remove(node, safe=True)
    return model


def tokens(value: ir.Value | None) -> Shape | None:
    """(T, C) of a value [1, T, C]."""
    dims = sizes(value)
    return dims[1:] if dims is not None and len(dims) == 3 and dims[0] == 1 else None


def _convert(graph: ir.Graph, node: ir.Node, flat: dict[ir.Value, ir.Value]) -> bool:
    if any(tokens(o) is None or o in graph.outputs for o in node.outputs) or not _takes_rows(node):
        return False
    data = [v for v in node.inputs if tokens(v) is not None and constant(v) is None]
    product = node.op_type == "MatMul"
    if not product and not any(v in flat or sizes(source(v)) == tokens(v) for v in data if v is not None):
        return False
    attrs: dict[str, Any] = {name: a.value for name, a in node.attributes.items()}
    inputs = [_flat(graph, node, v, flat) if v in data else _spread(graph, v) for v in node.inputs]
    if attrs.get("axis", 0) > 0:
        attrs["axis"] -= 1
    made = ir.node(node.op_type, inputs, attrs, num_outputs=len(node.outputs), name=f"{node.name}/flat")
    for i, (out, fresh) in enumerate(zip(node.outputs, made.outputs, strict=True)):
        fresh.name, fresh.type, fresh.shape = f"{made.name}/{i}", out.type, ir.Shape(tokens(out) or ())
        flat[out] = fresh
    graph.insert_before(node, [made])
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
        return axis != 0 and axis != -3 and (op == "Concat" or all(constant(v) is not None for v in rest))
    if not traits(op).elementwise or op == "Identity" or len(node.outputs) != 1:
        return False
    shape = sizes(node.outputs[0])
    return all(v is None or sizes(v) == shape or _broadcasts(v) for v in node.inputs)


def _broadcasts(value: ir.Value) -> bool:
    array = constant(value)
    return array is not None and (array.ndim < 3 or (array.ndim == 3 and array.shape[0] == 1))


def _spread(graph: ir.Graph, value: ir.Value | None) -> ir.Value | None:
    """A constant without its leading axis."""
    array = constant(value)
    if value is None or array is None or array.ndim < 3:
        return value
    name = f"{value.name}/flat"
    if name not in graph.initializers:
        made = ir.Value(name=name, const_value=ir.tensor(np.ascontiguousarray(array[0])), type=value.type)
        made.shape = ir.Shape(array.shape[1:])
        graph.register_initializer(made)
    return graph.initializers[name]


def _flat(graph: ir.Graph, at: ir.Node, value: ir.Value | None, flat: dict[ir.Value, ir.Value]) -> ir.Value:
    assert value is not None
    shape = tokens(value)
    assert shape is not None
    if value not in flat:
        flat[value] = reshaped(graph, at, source(value), shape)
    return flat[value]


def _back(graph: ir.Graph, value: ir.Value, rows: ir.Value, node: ir.Node) -> None:
    """Whoever still takes [1, T, C] takes a view of the rows."""
    shape = sizes(value)
    assert shape is not None
    value.replace_all_uses_with(new_node(graph, node, "Reshape", [rows, ints(graph, shape)], shape, value))
