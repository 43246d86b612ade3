"""Models one behind the other, as one stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pulsify
from tests.models import model, node

RNG = np.random.default_rng(0)


def conv(name: str, into: str, out: str, channels: tuple[int, int], stride: int, opset: int = 17) -> onnx.ModelProto:
    """[1, c, T] -> [1, d, T']; values inside are called alike in all of them."""
    weight = RNG.standard_normal((channels[1], channels[0], 3)).astype(np.float32)
    return model(
        [node("Conv", f"{into} w", "inside", strides=[stride], pads=[2, 0]), node("Relu", "inside", out)],
        {into: (1, channels[0], f"T_{name}")},
        [out],
        {"w": weight},
        opset=opset,
    )


def run(proto: Any, x: Any) -> Any:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.parametrize("opset", [17, 18])
def test_samples_to_tokens(opset: int, tmp_path: Any) -> None:
    a, b, c = conv("a", "x", "y", (1, 4), 2), conv("b", "x", "y", (4, 3), 2, opset), conv("c", "z", "out", (3, 2), 1)
    onnx.save(a, tmp_path / "a.onnx")
    stream = pulsify.stream(pulsify.chain(tmp_path / "a.onnx", b, c), pulse=4)
    assert stream.granularity == 4
    assert [o.name for o in stream.outputs] == ["out"]
    x = RNG.standard_normal((1, 1, 53)).astype(np.float32)
    session = stream.session(padding=float("nan"))
    y = np.concatenate([*(session.push(c) for c in np.split(x, [5, 6, 30], 2)), session.flush()], 2)
    np.testing.assert_allclose(y, run(c, run(b, run(a, x))), rtol=0, atol=1e-5)


def test_outputs_are_connected_by_name_or_as_told() -> None:
    weights = {"one": np.ones(1, np.float32), "two": np.full(1, 2, np.float32)}
    inputs = {"x": (1, 3, "T")}
    a = model([node("Add", "x one", "plus"), node("Mul", "x two", "times")], inputs, ["plus", "times"], weights)
    by_name = model([node("Neg", "times", "y")], {"times": (1, 3, "T")}, ["y"])
    told = model([node("Neg", "x", "y")], inputs, ["y"])
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    for chained in (pulsify.chain(a, by_name), pulsify.chain(a, told, connect={"x": "times"})):
        session = pulsify.stream(chained, pulse=2).session()
        np.testing.assert_array_equal(np.concatenate([session.push(x), session.flush()], 2), -2 * x)


def test_what_does_not_fit_is_said() -> None:
    a, b = conv("a", "x", "y", (1, 4), 2), conv("b", "x", "y", (5, 3), 2)
    with pytest.raises(pulsify.InvalidArgument, match=r"'y'.*cannot feed 'x'"):
        pulsify.chain(a, b)
    with pytest.raises(pulsify.InvalidArgument, match="at least two"):
        pulsify.chain(a)
    with pytest.raises(pulsify.InvalidArgument, match="side by side"):
        pulsify.chain(a, conv("b", "x", "y", (4, 3), 1), connect={"q": "y"})
