"""What onnx's evaluator computes otherwise than the standard says, and does not say so: refused here."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from pulsify.core.errors import InvalidArgument

RECURRENT = ("GRU", "LSTM", "RNN")
BY_TYPE = ("Resize", "LayerNormalization")
IGNORED = ("activations", "activation_alpha", "activation_beta", "clip", "input_forget")


def check(model: ir.Model) -> None:
    """Raises InvalidArgument if the evaluator would quietly compute something else. Types are added to the model."""
    if any(n.op_type in BY_TYPE for n in model.graph):
        ShapeInferencePass()(model)
    for node in model.graph:
        fault = _fault(node)
        if fault:
            raise InvalidArgument(
                f"the back end 'reference' cannot run {node.op_type} node '{node.name}': onnx's evaluator {fault}; "
                "take backend='ort' or 'torch'"
            )


def _fault(node: ir.Node) -> str:
    if node.op_type in RECURRENT and len(node.inputs) > 4 and node.inputs[4] is not None:
        return "does not look at sequence_lens"
    if node.op_type in RECURRENT and (ignored := [name for name in IGNORED if name in node.attributes]):
        return f"does not look at {', '.join(ignored)}"
    if node.op_type == "LpNormalization" and node.attributes.get_int("p", 2) == 1:
        return "sums up signed numbers where p is 1"
    dtype = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    if node.op_type == "Resize" and dtype is not None and dtype.is_integer() and _mode(node) != "nearest":
        return "rounds whole numbers to the nearest, where ONNX Runtime cuts them off"
    if node.op_type == "LayerNormalization" and dtype is not None and dtype.itemsize < 4:
        return "takes means in half precision, whatever stash_type says"
    if node.op_type == "QLinearConv" and any(_several(v) for v in node.inputs[4:6]):
        return "lays scales of channels along another axis"
    return ""


def _mode(node: ir.Node) -> str:
    return node.attributes.get_string("mode", "nearest") or ""


def _several(value: ir.Value | None) -> bool:
    """Is it more than one number?"""
    return value is not None and value.const_value is not None and value.const_value.size > 1
