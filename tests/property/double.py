"""A model in float64: which of two float32 results is nearer to the truth."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.property.graph import Array


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with float64 for float32, constants and casts too."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    held = [a.t for n in made.graph.node for a in n.attribute if a.type == onnx.AttributeProto.TENSOR]
    for tensor in [*made.graph.initializer, *held]:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for cast in (a for n in made.graph.node for a in n.attribute if a.name == "to" and a.i == TensorProto.FLOAT):
        cast.i = TensorProto.DOUBLE
    for value in [*made.graph.input, *made.graph.output, *made.graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return made


def truth(model: onnx.ModelProto, x: Array) -> dict[str, Array]:
    """The outputs in float64, rounded once."""
    names = [o.name for o in model.graph.output]
    made = ReferenceEvaluator(in_double(model)).run(None, {"x": x.astype(np.float64)})
    return {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in zip(names, made, strict=True)}
