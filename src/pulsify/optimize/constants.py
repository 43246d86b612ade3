"""What is made of constants alone is computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.one_node import NoKernel, OneNode
from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import constant, sizes

Array = np.ndarray[Any, Any]
RANDOM = ("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")
WHOLE = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")  # what the runtime computes in integers
IR_VERSION = 10  # of the model a node is run in
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
        try:
            made = evaluator(b.graph, node)(arrays)
        except NoKernel:  # said where the step is opened
            return
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


def evaluator(graph: ir.Graph, node: ir.Node) -> Callable[[Mapping[ir.Value, Array]], list[Array]]:
    """Computes a node from arrays, as batch does; it stays where it is.

    Raises (when called): NoKernel if ONNX Runtime has nothing for these types: it does not run the step either.
    """
    attrs = {name: a.value for name, a in node.attributes.items()}
    one = OneNode(ir.to_proto(node), attrs, graph.opset_imports, IR_VERSION)

    def run(arrays: Mapping[ir.Value, Array]) -> list[Array]:
        return one.run([None if v is None else arrays[v] for v in node.inputs])

    return run
