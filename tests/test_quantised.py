"""Statically quantised models, as ONNX Runtime's quantiser writes them, by every back end and with fused operators.

What the runtime's optimiser makes of a step must not be quantised more than the model is: weights are constants of a
step, and it would quantise those once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import frames, model, node, weights
from tests.side import Batch, streamed

BACKENDS = ("ort", "native", "torch", "reference")
ENDS = {"uint8": (128, 1 / 32), "int8": (3, 1 / 32), "uint16": (32768, 1 / 4096), "int16": (-7, 1 / 4096)}


class Quantised:
    """A graph in the making: every value goes through QuantizeLinear and DequantizeLinear."""

    def __init__(self, kind: str, weight: str, per_channel: bool) -> None:
        self.kind, self.weight, self.per_channel = np.dtype(kind), np.dtype(weight), per_channel
        self.nodes: list[onnx.NodeProto] = []
        self.known: dict[str, Any] = {}

    def value(self, name: str) -> str:
        zero, scale = ENDS[self.kind.name]
        self.known |= {"zero": np.array(zero, self.kind), "scale": np.float32(scale)}
        self.nodes += [node("QuantizeLinear", f"{name} scale zero", f"{name}_q")]
        self.nodes += [node("DequantizeLinear", f"{name}_q scale zero", f"{name}_d")]
        return f"{name}_d"

    def constant(self, name: str, *dims: int) -> str:
        """Per channel along the first axis."""
        rng = np.random.default_rng(len(self.known))
        info = np.iinfo(self.weight)
        count = dims[0] if self.per_channel else 1
        zeros = rng.integers(-3, 3, count).astype(np.int64) + (128 if self.weight == np.uint8 else 0)
        scales = rng.uniform(0.003, 0.02, count).astype(np.float32)
        ends = (zeros.astype(self.weight), scales) if self.per_channel else (zeros[0].astype(self.weight), scales[0])
        self.known |= {f"{name}_zero": np.array(ends[0]), f"{name}_scale": np.array(ends[1])}
        self.known[f"{name}_q"] = rng.integers(info.min, info.max + 1, dims).astype(self.weight)
        axis = {"axis": 0} if self.per_channel else {}
        self.nodes += [node("DequantizeLinear", f"{name}_q {name}_scale {name}_zero", f"{name}_d", **axis)]
        return f"{name}_d"


def convolutions(kind: str, weight: str, per_channel: bool, opset: int) -> onnx.ModelProto:
    """Two convolutions, and what went in joined to what comes out: nothing that the runtime fuses."""
    q = Quantised(kind, weight, per_channel)
    x = q.value("x")
    q.nodes += [node("Tanh", x, "m")]
    q.nodes += [node("Conv", f"{q.value('m')} {q.constant('v', 3, 2, 3)}", "h", pads=[1, 1])]
    q.nodes += [node("Concat", f"{q.value('h')} {x}", "c", axis=1)]
    q.nodes += [node("Conv", f"{q.value('c')} {q.constant('w', 2, 5, 3)}", "z", pads=[2, 0])]
    q.nodes += [node("Conv", f"{q.value('z')} {q.constant('u', 2, 2, 1)}", "p")]  # nothing between it and its values
    q.nodes += [node("Identity", q.value("p"), "y")]
    return model(q.nodes, {"x": [1, 2, "T"]}, ["y"], q.known, opset=opset)


def exact(proto: onnx.ModelProto, backend: str) -> None:
    stream = pulsify.stream(proto, pulse=2, verify=False)
    batch = Batch(proto, optimize=False)
    for length in (1, 2, 5, 12):
        x = frames(1, 2, length, seed=length)
        want = batch.run({"x": x})["y"]
        for cuts in ([length], [1] * length):
            for fused in (True, False):
                got = streamed(stream, {"x": x}, cuts, backend=backend, fuse_quantised=fused)["y"]
                np.testing.assert_allclose(got, want, rtol=0, atol=1e-6, err_msg=f"{length} {cuts} {fused}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("weight", ["uint8", "int8"])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_bytes(kind: str, weight: str, opset: int, backend: str) -> None:
    exact(convolutions(kind, weight, weight == "int8", opset), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["uint16", "int16"])
def test_sixteen_bits(kind: str, backend: str) -> None:
    exact(convolutions(kind, "uint8", True, 21), backend)


@pytest.mark.parametrize("opset", [10, 13, 17])
def test_the_evaluator_dequantises_in_older_opsets(opset: int) -> None:
    per_channel = opset >= 13
    q = Quantised("uint8", "uint8", per_channel)
    q.nodes += [node("Conv", f"{q.value('x')} {q.constant('w', 2, 2, 3)}", "y", pads=[1, 1])]
    exact(model(q.nodes, {"x": [1, 2, "T"]}, ["y"], q.known, opset=opset), "reference")


def test_what_the_evaluator_does_not_have_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.backends.reference import evaluator

    def none(*_: object, **__: object) -> None:
        raise RuntimeError("No implementation for operator 'Conv' domain '' and version 17, found None.")

    stream = pulsify.stream(model([node("Conv", "x w", "y")], {"x": [1, 2, "T"]}, ["y"], {"w": weights(2, 2, 3)}), 4)
    monkeypatch.setattr(evaluator, "ReferenceEvaluator", none)
    with pytest.raises(pulsify.NotSupported, match="evaluator has no Conv of the model's opset") as refused:
        stream.session(backend="reference")
    assert refused.value.target == "reference" and "backend='ort'" in refused.value.hint


def test_the_evaluator_does_not_run_convolutions_with_scales_of_channels() -> None:
    """It multiplies the last axis by them: wrong numbers, if that is as long."""
    known = {
        "s": np.float32(1 / 32), "z": np.array(128, np.uint8), "w": np.ones((3, 2, 3), np.int8),
        "ws": np.array([0.01, 0.02, 0.04], np.float32), "wz": np.zeros(3, np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("QLinearConv", "q s z w ws wz s z", "c", pads=[1, 1]),
        node("DequantizeLinear", "c s z", "y"),
    ]  # fmt: skip
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], known)
    with pytest.raises(pulsify.InvalidArgument, match="QLinearConv node 'c': onnx's evaluator lays scales"):
        pulsify.stream(proto, pulse=3, verify=False).session(backend="reference")
    for backend in ("ort", "native", "torch"):
        exact(proto, backend)
