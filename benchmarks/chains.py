"""Deep convolutional chains, for measuring how conversion grows with depth."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def chain(layers: int, skip: bool = False, channels: int = 16) -> onnx.ModelProto:
    """A dilated causal residual chain; with `skip`, every layer also adds to a common output."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def weight(name: str, *dims: int) -> str:
        array = (rng.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    x, total = "x", ""
    for i in range(layers):
        d = 2 ** (i % 6)
        kernel = weight(f"w{i}", channels, channels, 3)
        nodes.append(helper.make_node("Conv", [x, kernel], [f"c{i}"], dilations=[d], pads=[2 * d, 0], name=f"conv{i}"))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        nodes.append(helper.make_node("Add", [x, f"r{i}"], [f"x{i}"], name=f"add{i}"))
        x = f"x{i}"
        if skip:
            nodes.append(
                helper.make_node("Conv", [f"r{i}", weight(f"s{i}", channels, channels, 1)], [f"k{i}"], name=f"skip{i}")
            )
            if total:
                nodes.append(helper.make_node("Add", [total, f"k{i}"], [f"t{i}"], name=f"sum{i}"))
            total = f"t{i}" if total else f"k{i}"
    dims = [1, channels, "T"]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(total if skip else x, TensorProto.FLOAT, dims)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
