"""What is made of constants alone is computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import constant, sizes

Array = np.ndarray[Any, Any]
RANDOM = ("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")
WHOLE = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")  # what the runtime computes in integers
LARGEST = 1 << 18  # elements of a result worth keeping


class FoldConstants(NodeChange):
    """A node of constants only becomes one, if that is not large; so does what sizes are, where they are known.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if node.op_type in ("Shape", "Size") and (known := sizes(node.inputs[0])) is not None:
            self._replaced(b, node.outputs[0], _about(node, known))
            return
        given = [constant(v) for v in node.inputs if v is not None]
        shapes = [sizes(o) for o in node.outputs]
        small = all(s is not None and math.prod(s) <= LARGEST for s in shapes)
        bodies = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
        if not given or not small or bodies or node.op_type in (*RANDOM, *WHOLE) or any(a is None for a in given):
            return
        arrays = {v: array for v in node.inputs if v is not None and (array := constant(v)) is not None}
        made = evaluator(b.graph, [node], list(arrays), list(node.outputs))(arrays)
        for out, array in zip(node.outputs, made, strict=True):
            self._replaced(b, out, array)

    def _replaced(self, b: Builder, out: ir.Value, array: Array) -> None:
        if out not in b.graph.outputs:
            out.replace_all_uses_with(b.constant(f"{out.name}/folded", array))


def _about(node: ir.Node, known: Sequence[int]) -> Array:
    """What a Shape or a Size says."""
    if node.op_type == "Size":
        return np.array(math.prod(known), np.int64)
    start, end = node.attributes.get_int("start", 0), node.attributes.get("end")
    return np.array(known[start : None if end is None else end.as_int()], np.int64)


def evaluator(
    graph: ir.Graph, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> Callable[[Mapping[ir.Value, Array]], list[Array]]:
    """Computes a part of the graph from arrays; the nodes stay where they are."""
    from onnx.reference import ReferenceEvaluator

    part = onnx.GraphProto(name="part")
    part.node.extend(ir.to_proto(n) for n in nodes)
    part.input.extend(onnx.ValueInfoProto(name=v.name) for v in inputs)
    part.output.extend(onnx.ValueInfoProto(name=v.name) for v in outputs)
    opsets = [onnx.helper.make_opsetid(k, v) for k, v in graph.opset_imports.items()]
    reference = ReferenceEvaluator(onnx.helper.make_model(part, opset_imports=opsets))

    def run(arrays: Mapping[ir.Value, Array]) -> list[Array]:
        return [np.asarray(a) for a in reference.run(None, {v.name: a for v, a in arrays.items()})]

    return run
