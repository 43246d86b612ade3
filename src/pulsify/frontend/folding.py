"""Nodes that read constants only, computed once: the older exporter of torch writes pads, scales and shapes as such."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.core.constants import of_array
from pulsify.core.runner import open_model

LARGEST = 1 << 24  # bytes of a value that is kept instead of what makes it
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")


def fold_constants(model: ir.Model) -> None:
    """In one run of ONNX Runtime, so that the values are those that the model would compute."""
    graph = model.graph
    constant = set(graph.initializers.values())
    folded: list[ir.Node] = []
    for node in graph:
        if _is_pure(node) and all(v is None or v in constant for v in node.inputs):
            constant.update(node.outputs)
            folded.append(node)
    inside = set(folded)
    wanted = [v for n in folded for v in n.outputs if _read_outside(v, inside)]
    wanted = [v for v in wanted if not v.is_graph_output()]
    if not wanted:
        return
    for value, array in zip(wanted, _computed(model, folded, wanted), strict=True):
        if array.nbytes <= LARGEST:
            _replace(graph, value, array)
    for node in reversed(folded):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)


def _is_pure(node: ir.Node) -> bool:
    subgraphs = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
    values = not any(word in node.op_type for word in ("Sequence", "Optional"))
    return node.domain == "" and node.op_type not in RANDOM and values and not subgraphs


def _read_outside(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(user not in inside for user, _ in value.uses())


def _computed(model: ir.Model, nodes: list[ir.Node], wanted: list[ir.Value]) -> list[np.ndarray]:
    """The values, by a model of these nodes alone."""
    values: dict[ir.Value, ir.Value] = {}
    initializers = []
    for value in dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v.is_initializer()):
        values[value] = ir.Value(name=value.name, shape=value.shape, type=value.type, const_value=value.const_value)
        initializers.append(values[value])
    copies = []
    for node in nodes:
        inputs = [None if v is None else values[v] for v in node.inputs]
        copy = ir.Node("", node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs))
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name, values[old] = old.name, new
        copies.append(copy)
    outputs = [values[v] for v in wanted]
    graph = ir.Graph([], outputs, nodes=copies, initializers=initializers, opset_imports=dict(model.opset_imports))
    small = ir.Model(graph, ir_version=model.ir_version)
    return [np.asarray(a) for a in open_model(small, optimize=False).run(None, {})]


def _replace(graph: ir.Graph, value: ir.Value, array: np.ndarray) -> None:
    held = of_array(str(value.name), array)
    value.name = f"{value.name}/folded"
    graph.initializers.add(held)
    ir.convenience.replace_all_uses_with(value, held)
