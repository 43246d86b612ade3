"""Models as ONNX Runtime opens them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from pulsify.core.runner import open_model, run_model
from tests.models import model, node


@pytest.mark.parametrize("kind", ["file", "bytes", "proto"])
def test_a_pad_and_the_pool_behind_it_stay_apart(tmp_path: Path, kind: str) -> None:
    """Fused by the runtime, the zeros of the pad would count for nothing."""
    pool = node("MaxPool", "p", "y", kernel_shape=[2], strides=[2])
    proto = model([node("Pad", "x pads", "p"), pool], {"x": [1, 1, "T"]}, ["y"], {"pads": np.array([0, 0, 1, 0, 0, 1])})
    onnx.save(proto, tmp_path / "m.onnx")
    source = {"file": str(tmp_path / "m.onnx"), "bytes": proto.SerializeToString(), "proto": proto}[kind]
    x = -np.ones((1, 1, 4), np.float32)
    np.testing.assert_array_equal(run_model(open_model(source), {"x": x})["y"], [[[0, -1, 0]]])
