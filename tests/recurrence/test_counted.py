"""Frames counted in floats: exact as far as the type goes, and a stream ends there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import model, node
from tests.side import Batch

MOST = (2**24 - 65) // 65  # steps of 65 that float32 tells apart


def mean_so_far(step: int = 65) -> onnx.ModelProto:
    """A running sum over 65 bands, divided by arange(65, 65 T + 1, 65) in floats."""
    nodes = [
        node("CumSum", "x axis", "sums"),
        node("Shape", "x", "sizes"),
        node("Gather", "sizes axis", "frames"),
        node("Cast", "frames", "many", to=onnx.TensorProto.FLOAT),
        node("Mul", "many step", "last"),
        node("Add", "last one", "end"),
        node("Range", "step end step", "count"),
        node("Div", "sums count", "y"),
    ]
    numbers = {"axis": np.array(1), "step": np.array(step, np.float32), "one": np.array(1, np.float32)}
    return model(nodes, {"x": [1, "T"]}, ["y"], numbers)


def test_the_limit_is_stated_and_kept() -> None:
    proto = mean_so_far()
    stream = pulsify.stream(proto, 1000)
    assert stream.proof.limit == MOST
    x = np.random.default_rng(0).standard_normal((1, MOST)).astype(np.float32)
    want = Batch(proto).run({"x": x})["y"]
    session = stream.session()
    got = [session.push(x[:, :200_000]), session.push(x[:, 200_000:])]
    with pytest.raises(pulsify.InvalidLength, match=f"'count' goes no further than {MOST}.*Nothing was taken"):
        session.push(x[:, :1])
    got.append(session.flush())
    np.testing.assert_allclose(np.concatenate(got, 1), want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_a_limit_that_is_no_use_is_refused() -> None:
    with pytest.raises(pulsify.NotStreamable, match="hold exactly only up to") as refused:
        pulsify.stream(mean_so_far(65 * 257), 4)
    assert "set={" in refused.value.hint
