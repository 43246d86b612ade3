"""The model that is built in: small, the same every time, and one frame for every sixteen samples."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.demo.model import BLOCKS, HOP, build
from tests.models import frames, run_batch


def test_it_is_a_valid_model_and_the_same_every_time() -> None:
    proto = build()
    onnx.checker.check_model(proto, full_check=True)
    assert proto.SerializeToString() == build().SerializeToString()


@pytest.mark.parametrize("length", [HOP + 1, 5 * HOP, 5 * HOP + 7])
def test_sound_comes_out_as_long_as_it_went_in_but_for_a_frame_that_is_not_whole(length: int) -> None:
    clean = run_batch(build(), frames(2, 1, length))["clean"]
    assert clean.shape == (2, 1, length // HOP * HOP) and np.isfinite(clean).all() and clean.std() > 0


def test_two_of_its_blocks_look_ahead_which_is_what_it_shows() -> None:
    ahead = sum(a for _, a in BLOCKS)
    x = frames(1, 1, 100 * HOP)
    other = x.copy()
    at = 50 * HOP
    other[..., at + HOP :] = 0
    differs = np.flatnonzero((run_batch(build(), x)["clean"] != run_batch(build(), other)["clean"])[0, 0])
    assert ahead == 3 and at - (ahead + 2) * HOP < differs[0] < at + HOP
