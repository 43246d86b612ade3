"""The first pulses as one: when they are there, what they are given, and where the frames go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.core.errors import InvalidChunk
from pulsify.runtime.framer import Framer, ports
from pulsify.runtime.opening import run_opening
from tests.models import Array
from tests.unit.specs import a_stream, an_output

PULSE, COUNT = 2, 3


class Handed:
    """A step of so many pulses that hands its frames on, `delay` late, and remembers what it was given."""

    def __init__(self, pulses: int, delay: int, fails: bool = False) -> None:
        self.inputs = {"x": np.zeros((1, 2, pulses * PULSE), np.float32)}
        self.outputs: dict[str, Array] = {}
        self.past, self.fails = np.full((1, 2, delay), np.nan, np.float32), fails

    def run(self, length: int | None = None) -> Mapping[str, Array]:
        if self.fails:
            raise RuntimeError("out of its depth")
        full = np.concatenate([self.past, self.inputs["x"]], 2)
        self.past = full[..., self.inputs["x"].shape[2] :]
        return {"y": full[..., : self.inputs["x"].shape[2]]}

    def states(self) -> dict[str, Array]:
        return {"past": self.past}

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody should ask for {name}")


def framer(delay: int = 0) -> Framer:
    outputs = (an_output(dims=(1, 2, PULSE), delay=delay),)
    return Framer(ports(a_stream(PULSE, outputs=outputs, opening=COUNT), 1), np.nan, True)


@given(sizes=st.lists(st.integers(0, 5), max_size=8), delay=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_all_frames_come_out_once_and_in_order(sizes: list[int], delay: int) -> None:
    f, length = framer(delay), sum(sizes)
    x = np.tile(np.arange(1, length + 1, dtype=np.float32), (1, 2, 1))
    step = Handed(1, delay)

    def call(total: int | None) -> None:
        if f.step > 1:
            step.past = run_opening(Handed(COUNT, delay), f, total)["past"]
            return
        f.load(step.inputs, padded=total is not None)
        f.collect(step.run(), total)

    for i, size in enumerate(sizes):
        at = sum(sizes[:i])
        pieces = f.checked(x[..., at : at + size], {})
        f.received = f.counted(pieces)
        f.queue(pieces)
        while f.ready():
            call(None)
        came = sum(sizes[: i + 1])
        given_out = f.pulses * PULSE
        assert given_out == (0 if came < COUNT * PULSE else came // PULSE * PULSE)
    if length:
        ended = False
        while not ended or f.unfinished(length):
            call(length)
            ended = True
        np.testing.assert_array_equal(f.joined(f.parts, final=True), x)


def test_a_stream_is_opened_again_after_a_reset_and_where_a_state_was_taken_before_it() -> None:
    f = framer()
    counts = f.counts()
    f.queue({"x": np.zeros((1, 2, 7), np.float32)})
    assert f.ready() and f.fork().step == COUNT
    run_opening(Handed(COUNT, 0), f, None)
    assert (f.step, f.pulses, f.position, f.backlog["x"].frames) == (1, COUNT, COUNT * PULSE, 1)
    assert f.fork().step == 1
    f.restore(f.waiting_frames(), f.counts())
    assert f.step == 1
    f.restore(f.waiting_frames(), counts)
    assert f.step == COUNT
    f.reset()
    assert f.step == COUNT


def test_a_model_that_fails_is_said_to() -> None:
    f = framer()
    f.queue({"x": np.zeros((1, 2, 6), np.float32)})
    with pytest.raises(InvalidChunk, match=r"failed on the first chunks \(out of its depth\)"):
        run_opening(Handed(COUNT, 0, fails=True), f, None)


def test_a_whole_pulse_goes_the_short_way_only_after_the_opening() -> None:
    direct = framer()._ports.direct
    assert direct is not None and direct.settled == COUNT
