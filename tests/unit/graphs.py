"""Small graphs for passes: one in, one out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx_ir.passes import PassBase
from onnx_ir.passes.common import ShapeInferencePass

from tests.models import Array, Dims, model


def graph(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Dims], outputs: str, constants: Mapping[str, Array]
) -> ir.Model:
    """With all sizes inferred."""
    return ShapeInferencePass()(ir.from_proto(model(nodes, inputs, outputs.split(), constants))).model


def ops(made: ir.Model) -> list[str]:
    return [n.op_type for n in made.graph]


def becomes(change: PassBase, before: ir.Model, *after: str) -> ir.Model:
    """The model a pass makes, which has these operators in this order."""
    result = change(before)
    assert result.modified
    assert ops(result.model) == list(after)
    return result.model


def stays(change: PassBase, before: ir.Model) -> None:
    """The pass has nothing to do, and says so."""
    wanted = ops(before)
    result = change(before)
    assert not result.modified
    assert ops(result.model) == wanted
