"""Chunks of any size through a stage: cut to pulses, one of each stream a step, and a failure is one stream's alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.serve.engine import Alone, Pooled, open_engine
from pulsify.serve.stage import Seat, Stage
from tests.models import frames, look_ahead

PROTOS = {"pooled": look_ahead("B"), "alone": look_ahead(1)}


def staged(kind: str, most: int = 8) -> Stage:
    return Stage(open_engine(pulsify.stream(PROTOS[kind], 4, verify=False), most, "ort", {}))


def fed(seat: Seat, x: Any) -> None:
    seat.feed("x", x, x.shape[2])


def test_what_can_be_pooled_is() -> None:
    assert isinstance(staged("pooled").engine, Pooled) and isinstance(staged("alone").engine, Alone)


@pytest.mark.parametrize("kind", PROTOS)
def test_a_step_takes_one_pulse_of_each(kind: str) -> None:
    stage = staged(kind)
    long, short = stage.open("long"), stage.open("short")
    fed(long, frames(1, 2, 17))
    fed(short, frames(1, 2, 4))
    taken = []
    while stage.ready:
        taken.append([step.seat.owner for step in stage.step()])
    assert taken == [["long", "short"], ["long"], ["long"], ["long"]]
    assert long.waiting == {"x": 1}


@pytest.mark.parametrize("kind", PROTOS)
@pytest.mark.parametrize("sizes", [[1], [4], [3, 9], [50]])
def test_all_frames_come_out(kind: str, sizes: list[int]) -> None:
    stage, x = staged(kind), frames(1, 2, 50)
    seat, at, turn, made, last = stage.open(None), 0, 0, [], False
    while at < 50:
        fed(seat, x[:, :, at : at + sizes[turn % len(sizes)]])
        at, turn = at + sizes[turn % len(sizes)], turn + 1
    seat.end()
    while stage.ready:
        for step in stage.step():
            assert step.error is None
            made.append(step.made["y"])
            last = step.last
    want = ort.InferenceSession(PROTOS[kind].SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.concatenate(made, 2), want, atol=1e-5)
    assert last and seat.closed


def test_one_that_fails_ends_alone() -> None:
    stage = staged("pooled")
    seats = [stage.open(i) for i in range(7)]
    for i, seat in enumerate(seats):
        fed(seat, np.full((1, 2, 4), np.nan, np.float32) if i in (2, 5) else frames(1, 2, 4))
    steps = stage.step()
    assert [s.seat.owner for s in steps if s.error is not None] == [2, 5]
    assert [seat.closed for seat in seats] == [i in (2, 5) for i in range(7)]
    assert all(s.made["y"].shape[2] == 1 for s in steps if s.error is None)


def test_a_seat_that_is_left_is_free_and_clean() -> None:
    stage, x = staged("pooled", most=1), frames(1, 2, 20)
    first = stage.open(None)
    fed(first, 100 * x)
    stage.step()
    first.close()
    second = stage.open(None)
    fed(second, x)
    second.end()
    made = []
    while stage.ready:
        made += [s.made["y"] for s in stage.step()]
    want = ort.InferenceSession(PROTOS["pooled"].SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.concatenate(made, 2), want, atol=1e-5)
