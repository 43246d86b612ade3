"""Running sums of exponentials, log-sum-exp by hand or as torch's newer exporter writes `logcumsumexp`."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import pulsify
from pulsify.core.chunks import chunkings
from tests.models import model, node
from tests.side import Batch, streamed

AXIS = {"axis": np.array([1], np.int64)}


def log_sum(
    opset: int = 18, dtype: Any = np.float32, doubled: bool = False, gain: float = 1.0, bounded: bool = False
) -> onnx.ModelProto:
    """log(cumsum(exp(x - max x))) + max x, of x scaled. bounded: its hyperbolic tangent, which has no infinities."""
    most = node("ReduceMax", "z axis", "m") if opset >= 18 else node("ReduceMax", "z", "m", axes=[-2])
    total = [node("CumSum", "e axis", "s")]
    if doubled:
        total = [
            node("Cast", "e", "wide", to=TensorProto.DOUBLE),
            node("CumSum", "wide axis", "sums"),
            node("Cast", "sums", "s", to=TensorProto.FLOAT),
        ]
    nodes = [
        node("Mul", "x gain", "z"),
        most,
        node("Sub", "z m", "d"),
        node("Exp", "d", "e"),
        *total,
        node("Log", "s", "l"),
        node("Add", "m l", "t" if bounded else "y"),
        *([node("Mul", "t small", "u"), node("Tanh", "u", "y")] if bounded else []),
    ]
    types = {"x": dtype, "y": dtype}
    weights = AXIS | {"gain": np.array(gain, dtype), "small": np.array(0.01, dtype)}
    return onnx.shape_inference.infer_shapes(
        model(nodes, {"x": [2, "T", 3]}, ["y"], weights, opset=opset, dtypes=types)
    )


def right(x: Any, gain: float) -> Any:
    """In double precision, by the maximum so far."""
    return np.logaddexp.accumulate(x.astype(np.float64) * gain, axis=1)


@pytest.mark.parametrize(
    ("opset", "dtype", "doubled"),
    [(17, np.float32, False), (18, np.float32, False), (18, np.float32, True), (18, np.float64, False)],
)
@pytest.mark.parametrize("pulse", [1, 3])
def test_the_maximum_over_all_frames_cancels(opset: int, dtype: Any, doubled: bool, pulse: int) -> None:
    proto = log_sum(opset, dtype, doubled)
    stream, batch, rng = pulsify.stream(proto, pulse), Batch(proto), np.random.default_rng(2)
    assert stream.outputs[0].delay == 0
    for length in (1, 2, 3, 4, 7, 12, 40):
        x = rng.standard_normal((2, length, 3)).astype(dtype) * 3
        want = batch.run({"x": x})["y"]
        for cuts in chunkings(length, pulse, rng):
            for backend in ("ort", "native", "torch", "reference"):
                got = streamed(stream, x, cuts, backend=backend, padding=math.nan)["y"]
                np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5, err_msg=f"{backend} {length} {cuts}")


def test_what_vanishes_in_batch_does_not_in_the_stream() -> None:
    """A later frame is 200 higher: the file's own sums are zero before it, and conversion says so."""
    proto = log_sum(gain=60.0, bounded=True)
    stream = pulsify.stream(proto, 2)
    assert any("take off the maximum so far" in note for note in stream.verification.notes)
    x = np.random.default_rng(3).standard_normal((2, 300, 3)).astype(np.float32)
    assert (Batch(proto).run({"x": x})["y"] == -1).any()
    np.testing.assert_allclose(stream.run(x), np.tanh(right(x, 60.0) * 0.01), atol=1e-5)


def test_infinities_stay() -> None:
    stream = pulsify.stream(log_sum(), 1)
    x = np.full((2, 5, 3), -np.inf, np.float32)
    x[0, 2], x[1, 3] = 1.0, np.inf
    with np.errstate(invalid="ignore"):
        want = right(x, 1.0)
    np.testing.assert_array_equal(stream.run(x, check=False), want.astype(np.float32))


def ratio() -> onnx.ModelProto:
    """Without the logarithm the maximum stays."""
    nodes = [
        node("ReduceMax", "x axis", "m"), node("Sub", "x m", "d"), node("Exp", "d", "e"), node("CumSum", "e axis", "s"),
        node("Add", "m s", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": [2, "T", 3]}, ["y"], AXIS, opset=18)


def backwards() -> onnx.ModelProto:
    proto = log_sum()
    (total,) = [n for n in proto.graph.node if n.op_type == "CumSum"]
    total.attribute.append(onnx.helper.make_attribute("reverse", 1))
    return proto


@pytest.mark.parametrize("make", [ratio, backwards])
def test_other_maxima_are_known_at_the_end_only(make: Any) -> None:
    proto, began = make(), time.process_time()
    with pytest.raises(pulsify.NotStreamable, match="known only when the stream has ended") as refused:
        pulsify.stream(proto, 2)
    assert refused.value.op == "Sub"
    assert time.process_time() - began < 5
