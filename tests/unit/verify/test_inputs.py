"""What the batch model is given in a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.api import Stream
from pulsify.core.runner import open_model
from pulsify.core.spec import Static
from pulsify.verify.inputs import make_inputs, random_array
from tests.models import causal, conditioned, model, node, weights, with_length
from tests.unit.specs import a_stream, an_input, remembers


def only(**fields: Any) -> Stream:
    """Of which only the spec is looked at."""
    return Stream(remembers()[0], a_stream(**fields))


def test_inputs_are_made_for_a_length_static_ones_and_the_length_itself_too() -> None:
    rng = np.random.default_rng(0)
    fed = make_inputs(open_model(with_length("B")), only(), 7, rng)
    assert fed["x"].shape == (1, 2, 7) and fed["length"].tolist() == [7] and fed["length"].dtype == np.int64
    own = only(statics=(Static("scale", np.dtype(np.float32), ("B", 3, 1)),))
    assert make_inputs(open_model(conditioned("B")), own, 7, rng)["scale"].shape == (1, 3, 1)
    twice = only(inputs=(an_input(rate=2),))
    assert make_inputs(open_model(causal("B")), twice, 7, rng)["x"].shape == (1, 2, 14)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float64"])
def test_numbers_made_up_are_of_the_type_and_indices_are_small(dtype: str) -> None:
    made = random_array((200,), np.dtype(dtype), np.random.default_rng(0))
    assert made.dtype == dtype and made.shape == (200,) and len(np.unique(made)) > 1
    if dtype in ("int32", "int64"):
        assert set(np.unique(made)) == {0, 1}, "an index into a table of unknown size, most likely"


def test_statics_that_are_called_like_a_length_are_tried_as_one() -> None:
    rng = np.random.default_rng(0)
    own = only(statics=(Static("max_len", np.dtype(np.int64), ("B",)),))
    batch = open_model(with_length("B", "max_len"))
    wide = [int(make_inputs(batch, own, 40, rng, wide=True)["max_len"][0]) for _ in range(60)]
    assert max(wide) > 20 and min(wide) < 20 and max(wide) <= 40
    assert all(make_inputs(batch, own, 40, rng)["max_len"][0] < 2 for _ in range(9))


def looked_up(name: str) -> onnx.ModelProto:
    """A row of a short table, beside the frames."""
    nodes = [node("Gather", f"table {name}", "row", axis=0), node("Add", "x row", "y")]
    return model(nodes, {"x": [1, "T", 3], name: [1]}, ["y"], {"table": weights(2, 3)}, dtypes={name: np.int64})


def test_an_index_that_is_called_like_a_length_is_verified_all_the_same() -> None:
    stream = pulsify.stream(looked_up("style_len"), pulse=2)
    assert [s.name for s in stream.statics] == ["style_len"]
    assert pulsify.verify(looked_up("style_len"), stream).runs > 0


@pytest.mark.parametrize(
    ("bind", "says"),
    [(None, ("length = number of frames (guessed)",)), ({"length": "T"}, ("length = number of frames",))],
)
def test_a_report_says_what_the_batch_model_was_fed(bind: Any, says: tuple[str, ...]) -> None:
    proto = with_length("B")
    stream = pulsify.stream(proto, pulse=4, bind=bind)
    assert stream.verification is not None and stream.verification.fed == says
    report = pulsify.verify(proto, stream)
    assert report.fed == says and f"fed {says[0]}" in str(report)
