"""A product whose columns go different ways: one product for each way, where the runtime takes the activation in.

x -Gemm [C, 2N]-> -Split-> -Tanh->,  -Sigmoid->        =        x -Gemm [C, N] + Tanh->,  x -Gemm [C, N] + Sigmoid->
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange
from pulsify.optimize.views import constant, cut_of, sizes, small_weights

Array = np.ndarray[Any, Any]
TAKEN_IN = ("Tanh", "Sigmoid", "Relu", "LeakyRelu", "Softplus", "Softsign")  # by the runtime's Gemm


class SplitProducts(NodeChange):
    """Rewrites a Gemm that is read in pieces of its columns only, if an activation follows one of them.

    Requires and ensures what every `NodeChange` does.
    """

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        out = node.outputs[0]
        if node.op_type != "Gemm" or out in b.graph.outputs or not small_weights(node.inputs[1]):
            return
        pieces = [piece for use in out.uses() for piece in _pieces(use.node)]
        followed = [use.node.op_type in TAKEN_IN for piece, *_ in pieces for use in piece.uses()]
        if not pieces or any(stop < 0 for _, _, stop in pieces) or not any(followed):
            return
        weights = constant(node.inputs[1])
        added = node.inputs[2] if len(node.inputs) > 2 else None
        bias, shape = constant(added), sizes(out)
        if weights is None or shape is None or (added is not None and (bias is None or bias.shape != (shape[1],))):
            return
        turned = bool(node.attributes.get_int("transB", 0))
        attrs = {name: a.value for name, a in node.attributes.items()}
        for piece, start, stop in pieces:
            cut = weights[start:stop] if turned else weights[:, start:stop]
            inputs = [node.inputs[0], b.constant(f"{piece.name}/weights", cut)]
            if bias is not None:
                inputs.append(b.constant(f"{piece.name}/bias", bias[start:stop]))
            made = b.op("Gemm", inputs, (shape[0], stop - start), piece.dtype, **attrs)
            piece.replace_all_uses_with(made)


def _pieces(node: ir.Node) -> list[tuple[ir.Value, int, int]]:
    """The columns that a reader takes, value by value; a stop of -1 if it takes anything else."""
    whole, refused = sizes(node.inputs[0]), [(node.outputs[0], 0, -1)]
    if whole is None or len(whole) != 2 or any(o.is_graph_output() for o in node.outputs):
        return refused
    if node.op_type == "Split" and node.attributes.get_int("axis", 0) in (1, -1):
        widths = [(sizes(o) or (0, 0))[1] for o in node.outputs]
        starts = np.cumsum([0, *widths]).tolist()
        return [(o, a, a + w) for o, a, w in zip(node.outputs, starts, widths, strict=False)]
    cut = cut_of(node)
    return [(node.outputs[0], cut[1], cut[2])] if cut is not None and cut[0] == 1 else refused
