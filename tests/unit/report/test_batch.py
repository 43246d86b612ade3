"""Two results side by side, and whether a stream belongs to a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulsify.api import Stream
from pulsify.core.errors import InvalidArgument
from pulsify.core.runner import open_model
from pulsify.report.batch import check_belongs, difference, run_batch
from tests.models import causal, conditioned, frames, with_length
from tests.unit.specs import remembered, remembers

F = np.float32


def test_the_largest_difference_is_absolute_and_of_scale() -> None:
    found = difference(np.array([1, 4], F), np.array([1, 5], F))
    assert found["largest"] == 1.0 and found["error"] == pytest.approx(0.2) and not found["ok"]
    assert difference(np.array([np.nan, 5], F), np.array([np.nan, 5], F)) == {
        "largest": 0.0, "error": 0.0, "ok": True, "note": "",
    }  # fmt: skip
    assert difference(np.array([1]), np.array([2]))["ok"] is False


def test_other_shapes_are_told() -> None:
    found = difference(np.zeros((1, 2), F), np.zeros((1, 3), F))
    assert found["note"] == "shape [1, 2], batch has [1, 3]" and found["error"] == "inf"


def test_a_stream_of_another_model_is_told_what_is_missing() -> None:
    own = Stream(*remembers("B"))
    check_belongs(open_model(causal("B")), own)
    check_belongs(open_model(with_length("B")), own)  # what is left over may be the length
    with pytest.raises(InvalidArgument, match=r"it needs input \['scale'\]"):
        check_belongs(open_model(conditioned("B")), own)
    other = Stream(own.model, replace(own.spec, inputs=(replace(own.spec.inputs[0], name="audio"),)))
    with pytest.raises(InvalidArgument, match=r"it has no input \['audio'\], it needs input \['x'\]"):
        check_belongs(open_model(causal("B")), other)


@pytest.mark.parametrize("streams", [1, 3])
def test_inputs_that_hold_the_length_are_filled_in(streams: int) -> None:
    own, x = Stream(*remembers("B")), frames(streams, 2, 9)
    np.testing.assert_allclose(run_batch(open_model(causal("B")), own, {"x": x})["y"], remembered(x), atol=1e-5)
    made = run_batch(open_model(with_length("B")), own, {"x": x})
    assert made["encoded_lengths"].tolist() == [5] * streams
