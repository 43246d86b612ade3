"""ONNX graphs node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
OPSET = 18
Port = tuple[Sequence[int | str], Any]  # dims, dtype


class Builder:
    """Collects nodes and constants; every node is named by what it makes."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.rng = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, called: str = "", **attributes: Any) -> str:
        """A node; `called` names it and its output."""
        name = called or f"{kind.lower()}_{len(self.nodes)}"
        while any(n.name == name for n in self.nodes):
            name += "_again"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def const(self, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value, dtype)
        if dtype is None and array.dtype == np.float64:
            array = array.astype(np.float32)
        name = f"const_{len(self.constants)}"
        self.constants[name] = array
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def scalar(self, value: int) -> str:
        return self.const(np.array(value, np.int64))

    def weight(self, *dims: int, scale: float = 1.0) -> str:
        return self.const((self.rng.standard_normal(dims) * scale).astype(np.float32))

    # ---- shorthands

    def size(self, x: str, axis: int) -> str:
        """An axis' length, int64 scalar."""
        return self.op("Gather", self.op("Shape", x), self.scalar(axis))

    def range(self, count: str, start: str = "") -> str:
        return self.op("Range", start or self.scalar(0), count, self.scalar(1))

    def vector(self, scalar: str) -> str:
        return self.op("Unsqueeze", scalar, self.ints(0))

    def cast(self, x: str, dtype: Any) -> str:
        name = f"cast_{len(self.nodes)}"
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.nodes.append(helper.make_node("Cast", [x], [name], name=name, to=kind))
        return name

    def slice(self, x: str, axis: int, start: str, end: str, step: int = 1) -> str:
        return self.op("Slice", x, start, end, self.ints(axis), self.ints(step))

    def transpose(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=list(perm))

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, self.ints(*axes))

    def shape(self, *dims: int | str) -> str:
        """A shape for Reshape: numbers, or names of int64 scalars."""
        if all(isinstance(d, int) for d in dims):
            return self.const(np.array(dims, np.int64))
        return self.op("Concat", *(self.ints(d) if isinstance(d, int) else self.vector(d) for d in dims), axis=0)

    def reshape(self, x: str, *dims: int | str) -> str:
        return self.op("Reshape", x, self.shape(*dims))

    def model(
        self, inputs: Mapping[str, Port], outputs: Mapping[str, tuple[int, Any]], opset: int = OPSET
    ) -> onnx.ModelProto:
        """Inputs by name with dims and dtype; outputs by name with rank and dtype."""
        graph = helper.make_graph(
            self.nodes,
            "built",
            [_port(n, dims, dtype) for n, (dims, dtype) in inputs.items()],
            [_port(n, [f"{n}_{i}" for i in range(rank)], dtype) for n, (rank, dtype) in outputs.items()],
            [numpy_helper.from_array(v, n) for n, v in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        onnx.checker.check_model(model)
        return model


def _port(name: str, dims: Sequence[int | str], dtype: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)
