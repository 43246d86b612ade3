"""Places that a mask keeps: as many, and where, at lengths that nobody looked at."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.analysis.proof.numbers import follower
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.series import Unsure
from tests.models import model, node
from tests.unit.convert.contexts import opened


def kept(pattern: np.ndarray, stride: int) -> onnx.ModelProto:
    """Places of the frames behind a stride that a pattern shows."""
    nodes = [
        node("Conv", "x w", "c", strides=[stride]),
        node("Shape", "c", "t", start=2, end=3),
        node("Squeeze", "t", "n"),
        node("Range", "zero n one", "i"),
        node("Mod", "i period", "r"),
        node("Gather", "pattern r", "mask"),
        node("NonZero", "mask", "places"),
        node("Gather", "c places", "y", axis=2),
    ]
    given = {
        "w": np.ones((1, 1, 2), np.float32), "zero": np.array(0), "one": np.array(1),
        "period": np.array(len(pattern)), "pattern": pattern,
    }  # fmt: skip
    return model(nodes, {"x": [1, 1, "T"]}, ["y"], given)


@pytest.mark.parametrize("seed", range(8))
def test_places_lie_on_a_line_but_for_what_repeats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pattern, stride = rng.random(int(rng.integers(2, 9))) < 0.5, int(rng.integers(1, 4))
    pattern[int(rng.integers(len(pattern)))] = True
    ask = opened(kept(pattern, stride)).ask
    found = follower(ask).value("places")
    assert isinstance(found, Spread)
    slope = found.slope.get(1, 0)
    for length in (*range(2, 40), 400, 1001):
        frames = (length - 2) // stride + 1
        places = np.flatnonzero(np.resize(pattern, frames))
        assert found.sizes[1].at(length) == len(places), f"at {length}"
        off = places - np.arange(len(places)) * float(slope)
        assert len(off) == 0 or (off.min() >= found.lo - 1e-9 and off.max() <= found.hi + 1e-9)
        turn = int(found.period * found.sizes[1].pace)
        np.testing.assert_allclose(off[turn:], off[: len(off) - turn] if turn < len(off) else off[turn:], atol=1e-9)


def test_a_mask_of_the_first_frames_is_unsure() -> None:
    nodes = [
        node("Shape", "x", "t", start=2, end=3),
        node("Squeeze", "t", "n"),
        node("Range", "zero n one", "i"),
        node("Less", "i five", "mask"),
        node("NonZero", "mask", "places"),
        node("Gather", "x places", "y", axis=2),
    ]
    given = {"zero": np.array(0), "one": np.array(1), "five": np.array(5)}
    ask = opened(model(nodes, {"x": [1, 1, "T"]}, ["y"], given)).ask
    with pytest.raises(Unsure, match="changes with the length"):
        follower(ask).value("places")
