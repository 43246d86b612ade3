"""As exact as batch over a million frames: nothing is lost because it was added a little at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.arrays import Array
from tests.models import model, node
from tests.side import Batch

MILLION = 1_000_000
AXIS = {"a": np.array([1])}


def reduced(op: str) -> onnx.ModelProto:
    return model([node(op, "x a", "y", keepdims=0)], {"x": [1, "T", 2]}, ["y"], AXIS, opset=18)


def variance() -> onnx.ModelProto:
    nodes = [
        node("ReduceMean", "x a", "mean"), node("Sub", "x mean", "off"), node("Mul", "off off", "square"),
        node("ReduceMean", "square a", "y", keepdims=0),
    ]  # fmt: skip
    return model(nodes, {"x": [1, "T", 2]}, ["y"], AXIS, opset=18)


def attentive() -> onnx.ModelProto:
    nodes = [
        node("Slice", "x n0 n1 n2", "score"), node("Softmax", "score", "w", axis=1), node("Mul", "w x", "wx"),
        node("ReduceSum", "wx a", "y", keepdims=0),
    ]  # fmt: skip
    given = {**AXIS, "n0": np.array([0]), "n1": np.array([1]), "n2": np.array([2])}
    return model(nodes, {"x": [1, "T", 2]}, ["y"], given, opset=18)


def exactly(name: str, x: Array) -> Array:
    x = x.astype(np.longdouble)
    scores = x[..., :1]
    weights = np.exp(scores - scores.max())
    by_name: dict[str, Any] = {
        "ReduceSum": lambda: x.sum(1),
        "ReduceMean": lambda: x.mean(1),
        "ReduceL2": lambda: np.sqrt((x * x).sum(1)),
        "ReduceLogSumExp": lambda: np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)) + x.max(1),
        "variance": lambda: ((x - x.mean(1, keepdims=True)) ** 2).mean(1),
        "attentive": lambda: (weights * x).sum(1) / weights.sum(1),
    }
    return by_name[name]()  # type: ignore[no-any-return]


@pytest.mark.parametrize("pulse", [1000, 125_000])
@pytest.mark.parametrize("far", [0.0, 50.0])
@pytest.mark.parametrize("name", ["ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp", "variance", "attentive"])
def test_a_million_frames(name: str, far: float, pulse: int) -> None:
    proto = {"variance": variance, "attentive": attentive}.get(name, lambda: reduced(name))()
    x = (np.random.default_rng(3).standard_normal((1, MILLION, 2)) + far).astype(np.float32)
    want = exactly(name, x)
    scale = np.abs(want).max() if far else np.abs(exactly(name, np.abs(x))).max()
    stream = pulsify.stream(proto, pulse=pulse, verify=False)
    off = np.abs(stream.run(x, 40_000) - want).max() / scale
    batch = np.abs(Batch(proto).run({"x": x})["y"] - want).max() / scale
    assert off <= max(2 * batch, 3e-7), (float(off), float(batch))


def test_a_million_pulses_of_a_frame() -> None:
    """The worst case of a sum: each frame by itself, all of one sign."""
    stream = pulsify.stream(variance(), pulse=1, verify=False)
    x = (np.random.default_rng(3).standard_normal((1, 100_000, 2)) + 100).astype(np.float32)
    want = exactly("variance", x)
    assert np.abs(stream.run(x) - want).max() / want.max() < 3e-7


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats(dtype: Any) -> None:
    x = (np.random.default_rng(3).standard_normal((1, 3000, 2)) + 2).astype(dtype)
    types = {"x": dtype, "y": dtype}
    for proto in (reduced("ReduceMean"), variance(), attentive()):
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        for port in (*proto.graph.input, *proto.graph.output):
            port.type.tensor_type.elem_type = kind
        stream = pulsify.stream(proto, pulse=16, verify=False)
        got, want = stream.run(x, 100), Batch(proto).run({"x": x})["y"]
        assert got.dtype == want.dtype == types["y"]
        np.testing.assert_allclose(got, want, rtol=5e-3 if dtype == np.float16 else 1e-13)
