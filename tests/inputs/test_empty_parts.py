"""Joins with parts that have no entries: rotary positions for all of a head leave nothing of it as it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import pulsify
from tests.inputs.check import check
from tests.models import model, node, weights


def rotated(features: int, cut: int) -> onnx.ModelProto:
    """cat(relu(x[..., :cut]), x[..., cut:]), and a convolution of it."""
    return model(
        [
            node("Slice", "x zero cut last", "front"),
            node("Slice", "x cut all last", "rest"),
            node("Relu", "front", "turned"),
            node("Concat", "turned rest", "joined", axis=-1),
            node("Transpose", "joined", "frames_last", perm=[0, 2, 1]),
            node("Conv", "frames_last w", "y"),
        ],
        {"x": ["B", "T", features]},
        ["y"],
        {
            "zero": np.array([0]), "cut": np.array([cut]), "all": np.array([1 << 60]), "last": np.array([-1]),
            "w": weights(3, features, 3),
        },
    )  # fmt: skip


@pytest.mark.parametrize("cut", [4, 6, 9])
def test_a_part_without_entries_adds_nothing(cut: int) -> None:
    for batch in (1, 3):
        check(rotated(6, cut), 4, [3, 4, 5, 9, 20], batch=batch)


def test_all_parts_are_empty() -> None:
    """Nothing is left, and the cut that makes nothing is named."""
    proto = model(
        [node("Slice", "x far all last", "a"), node("Concat", "a a", "j", axis=2), node("Concat", "j x", "y", axis=2)],
        {"x": [1, "T", 6]},
        ["y"],
        {"far": np.array([6]), "all": np.array([1 << 60]), "last": np.array([2])},
    )
    with pytest.raises(pulsify.NotStreamable, match="has no entries, whatever the length") as refused:
        pulsify.stream(proto)
    assert refused.value.op == "Slice"


def test_frames_that_a_short_stream_does_not_have() -> None:
    """cat(x, x[:, 100:]) in time: empty up to 100 frames, and no longer after that."""
    proto = model(
        [node("Slice", "x far all time", "a"), node("Concat", "x a", "y", axis=2)],
        {"x": [1, "T", 6]},
        ["y"],
        {"far": np.array([100]), "all": np.array([1 << 60]), "time": np.array([1])},
    )
    with pytest.raises(pulsify.NotStreamable):  # x and x[:, 100:] never have as many frames
        pulsify.stream(proto)
