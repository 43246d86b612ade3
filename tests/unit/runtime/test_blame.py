"""Of several streams in step, the one whose frames are bad is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.runtime.blame import first_stream, guilty, said
from tests.models import Array, frames, look_ahead, model, node, weights
from tests.unit.specs import a_stream, an_input


class Picky:
    """Fails on numbers from 100 on, in any stream."""

    def __init__(self, x: Array, always: bool = False) -> None:
        self.inputs, self.outputs, self.always = {"x": x.copy()}, dict[str, Array](), always

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        if self.always or self.inputs["x"].max() >= 100:
            raise RuntimeError("too large")
        return {}


def blamed(dims: tuple[Any, ...], x: Array, batch: int, always: bool = False) -> tuple[int, ...]:
    spec = a_stream(inputs=(an_input(dims=dims),), batch="B")
    return guilty(Picky(x, always), spec, batch, None)  # type: ignore[arg-type]


def test_those_whose_frames_alone_make_it_fail() -> None:
    x = np.zeros((4, 2, 3), np.float32)
    x[1, 0, 2] = x[3, 1, 0] = 100
    assert blamed(("B", 2, 3), x, 4) == (1, 3)
    assert blamed((2, "B", 3), x.swapaxes(0, 1), 4) == (1, 3)
    assert blamed(("2*B", 2, 3), np.concatenate([x, x * 0]), 4) == (0, 1), "two rows are one stream"


def test_nobody_is_blamed_where_it_cannot_be_told() -> None:
    x = np.zeros((3, 2, 3), np.float32)
    assert blamed(("B", 2, 3), x, 3, always=True) == () == blamed(("B", 2, 3), x, 3)
    assert blamed(("B", 2, 3), x[:1] + 100, 1) == ()


def test_the_first_stream_with_a_mark() -> None:
    marked = np.zeros((4, 2), bool)
    marked[2:, 1] = True
    assert first_stream(marked, ("B", 2), 4) == 2 and first_stream(marked, ("2*B", 2), 2) == 1
    assert first_stream(marked[:1], ("B", 2), 1) is None
    assert said((), 4) == "" and said((2,), 4) == "stream 2 of 4, counted from 0"
    assert said(tuple(range(9)), 20).startswith("streams 0, 1, 2, 3, 4, 5, 6, 7, ... of 20")


@pytest.mark.parametrize("backend", ["ort", "reference", "torch"])
def test_a_session_names_the_stream_and_goes_on_after_a_reset(backend: str) -> None:
    nodes = [
        node("Gather", "table x", "e", axis=0), node("Transpose", "e", "t", perm=[0, 2, 1]),
        node("Conv", "t w", "y", pads=[1, 1]),
    ]  # fmt: skip
    proto = model(
        nodes, {"x": ["B", "T"]}, ["y"], {"table": weights(7, 2), "w": weights(3, 2, 3)}, dtypes={"x": np.int64}
    )
    if backend == "torch":
        pytest.importorskip("torch", reason="pip install 'pulsify[torch]'")
    own = {"device": "cpu"} if backend == "torch" else {}  # a card does not say: it wraps around
    session = pulsify.stream(proto, pulse=4, verify=False).session(batch=8, backend=backend, options=own)
    x = np.zeros((8, 40), np.int64)
    want = session.push(x[:, :8])
    session.reset()
    x[5, 33] = 77  # there are seven
    with pytest.raises(pulsify.InvalidChunk, match=r"stream 5 of 8, counted from 0: ") as caught:
        session.push(x)
    assert caught.value.lane == 5
    with pytest.raises(pulsify.SessionClosed, match="stream 5 of 8"):
        session.push(x[:, :1])
    session.reset()
    np.testing.assert_array_equal(session.push(x[:, :8]), want)


def test_numbers_that_are_none_are_found_in_their_stream() -> None:
    session = pulsify.stream(look_ahead("B"), pulse=4, verify=False).session(batch=8)
    x = frames(8, 2, 40)
    x[3, 1, 7] = x[6, 1, 9] = np.nan
    with pytest.raises(pulsify.InvalidChunk, match="NaN at frame 7 of stream 3 of 8") as caught:
        session.push(x)
    assert caught.value.lane == 3
    x[3], x[6, 0, 1] = 0, np.inf
    with pytest.raises(pulsify.InvalidChunk, match="an infinite number at frame 1 of stream 6 of 8"):
        session.push(x)
