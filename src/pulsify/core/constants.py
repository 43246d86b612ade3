"""Constants of a graph: the value that holds a tensor, and when two are the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import onnx_ir as ir

CHOSEN_AS = {  # types that ONNX Runtime does not select from (Where), and those that hold all their values
    ir.DataType.BOOL: ir.DataType.UINT8,
    ir.DataType.INT16: ir.DataType.INT32,
    ir.DataType.UINT16: ir.DataType.INT32,
    ir.DataType.UINT32: ir.DataType.INT64,  # ONNX Runtime 1.25 does not
    ir.DataType.UINT64: ir.DataType.INT64,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}


def holding(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """An initializer that shares the tensor: what lies in a file stays there, and weights are not copied."""
    shape = ir.Shape([int(d) for d in tensor.shape if isinstance(d, int)])
    return ir.Value(name=name, const_value=tensor, shape=shape, type=ir.TensorType(tensor.dtype))


def of_array(name: str, array: Any) -> ir.Value:
    """An initializer of an array, whatever its layout in memory."""
    rows = np.asarray(array, order="C")  # not ascontiguousarray, which gives a scalar an axis
    return holding(name, ir.tensor(rows, name=name))


def elements(array: np.ndarray[Any, Any]) -> Hashable:
    """Equal for arrays of one type and shape with the same bits: NaN is like itself, and 0 is not like -0."""
    return array.dtype, array.shape, array.tobytes()  # not dtype.str, which int4 and float8 have in common
