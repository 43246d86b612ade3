"""An encoder of N pre-norm layers with chunked attention, as an exporter writes it, for measuring conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Writer:
    """Collects nodes and weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        weight = self.rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        product = self.op("MatMul", x, self.constant(weight, np.float32))
        return self.op("Add", product, self.constant(np.zeros(outputs), np.float32))

    def norm(self, x: str, size: int) -> str:
        return self.op("LayerNormalization", x, self.constant(np.ones(size), np.float32), axis=-1)


def chunk_encoder(layers: int, width: int = 64, heads: int = 4, chunk: int = 8, left: int = 4) -> onnx.ModelProto:
    """[1, T, width] in and out; every layer builds its own mask from the length, as a traced model does."""
    w = _Writer()
    x = "x"
    for _ in range(layers):
        x = _layer(w, x, width, heads, chunk, left)
    dims = [1, "T", width]
    graph = helper.make_graph(
        w.nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, dims)],
        w.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _mask(w: _Writer, x: str, chunk: int, left: int) -> str:
    length = w.op("Gather", w.op("Shape", x), w.constant(1))
    place = w.op("Div", w.op("Range", w.constant(0), length, w.constant(1)), w.constant(chunk))
    apart = w.op("Sub", w.op("Unsqueeze", place, w.constant([1])), w.op("Unsqueeze", place, w.constant([0])))
    near = w.op("LessOrEqual", apart, w.constant(left))
    return w.op("And", near, w.op("GreaterOrEqual", apart, w.constant(0)))


def _layer(w: _Writer, x: str, width: int, heads: int, chunk: int, left: int) -> str:
    normed = w.norm(x, width)
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        split = w.op("Reshape", w.linear(normed, width, width), w.constant([0, 0, heads, width // heads]))
        parts.append(w.op("Transpose", split, perm=perm))
    q, k, v = parts
    scores = w.op("Mul", w.op("MatMul", q, k), w.constant((width // heads) ** -0.5, np.float32))
    masked = w.op("Where", _mask(w, x, chunk, left), scores, w.constant(-np.inf, np.float32))
    mixed = w.op("MatMul", w.op("Softmax", masked, axis=-1), v)
    joined = w.op("Reshape", w.op("Transpose", mixed, perm=[0, 2, 1, 3]), w.constant([0, 0, width]))
    x = w.op("Add", x, w.linear(joined, width, width))
    inner = w.linear(w.norm(x, width), width, 4 * width)
    swish = w.op("Mul", inner, w.op("Sigmoid", inner))
    return w.op("Add", x, w.linear(swish, 4 * width, width))
