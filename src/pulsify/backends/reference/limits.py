"""What onnx's evaluator computes otherwise than the standard says, and does not say so: refused here."""

from __future__ import annotations

import onnx_ir as ir

from pulsify.core.errors import InvalidArgument

RECURRENT = ("GRU", "LSTM", "RNN")
IGNORED = ("activations", "activation_alpha", "activation_beta", "clip", "input_forget")


def check(model: ir.Model) -> None:
    """Raises InvalidArgument if the evaluator would quietly compute something else."""
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
    if node.op_type == "QLinearConv" and any(_several(v) for v in node.inputs[4:6]):
        return "lays scales of channels along another axis"
    return ""


def _several(value: ir.Value | None) -> bool:
    """Is it more than one number?"""
    return value is not None and value.const_value is not None and value.const_value.size > 1
