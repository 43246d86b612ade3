"""onnx's evaluator of a model, with an operator that it lacks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from pulsify.backends.reference.limits import check
from pulsify.backends.reference.rewritten import rewrite
from pulsify.backends.seam import Array
from pulsify.core.errors import NotSupported


class DequantizeLinear(OpRun):  # type: ignore[misc]
    """As before opset 19: the evaluator has none of that age."""

    op_domain = ""

    def _run(
        self, x: Array, scale: Array, zero: Array | None = None, axis: int = 1, **newer: object
    ) -> tuple[Array]:  # fmt: skip
        shape = [1] * x.ndim
        if scale.ndim and x.ndim:
            shape[axis] = -1
        whole = x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64).reshape(shape))
        return ((whole.astype(np.float32) * scale.reshape(shape)).astype(scale.dtype),)


def evaluator(model: ir.Model) -> ReferenceEvaluator:
    """Opens the model, which is changed for it. Raises NotSupported if it lacks an operator of the model's opset."""
    check(model)
    rewrite(model)
    older = [DequantizeLinear] if model.opset_imports.get("", 19) < 19 else []
    try:
        return ReferenceEvaluator(ir.to_proto(model), new_ops=older)
    except (RuntimeError, NotImplementedError) as error:
        if not str(error).startswith("No implementation"):
            raise
        op = next((n.op_type for n in model.graph if f"'{n.op_type}'" in str(error)), "")
        raise NotSupported(
            f"onnx's evaluator has no {op or 'operator for a node'} of the model's opset",
            op=op, target="reference", hint="take backend='ort' or 'torch'",
        ) from error  # fmt: skip
