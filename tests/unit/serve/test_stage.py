"""Chunks of any size through a stage: cut to pulses, a few of each stream a step; a failure is one stream's alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.serve.engine import TOGETHER, Alone, Pooled, open_engine
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
def test_what_cannot_be_had_is_said_when_it_is_made(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(pulsify.InvalidArgument, match="no such program"):
        open_engine(pulsify.stream(PROTOS[kind], 4, verify=False), 2, "native", {})


@pytest.mark.parametrize("kind", PROTOS)
def test_a_step_takes_as_many_pulses_of_each_as_all_have(kind: str) -> None:
    stage = staged(kind)
    long, short = stage.open("long"), stage.open("short")
    fed(long, frames(1, 2, 17))
    fed(short, frames(1, 2, 4))
    taken = []
    while stage.ready:
        taken.append([step.seat.owner for step in stage.step()])
    assert taken == [["long", "short"], *[["long"]] * (1 if kind == "pooled" else 3)]
    assert long.backlog["x"].frames == 1


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


def test_somebody_who_sends_much_does_not_hold_others_back() -> None:
    stage = staged("pooled")
    seat = stage.open(None)
    fed(seat, frames(1, 2, 4 * (2 * TOGETHER + 1)))
    steps = 0
    while stage.ready:
        stage.step()
        steps += 1
    assert steps == 3


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("kind", PROTOS)
def test_frames_before_a_failure_come_out(kind: str, bad: int) -> None:
    """Five pulses of four streams at once; NaN in one pulse of one: what was before it, and all of the others."""
    stage, given = staged(kind), [frames(1, 2, 20, seed=i) for i in range(4)]
    given[2][:, :, bad * 4 + 1] = np.nan
    seats = [stage.open(i) for i in range(4)]
    made: dict[int, list[Any]] = {i: [] for i in range(4)}
    errors = []
    for seat, x in zip(seats, given):
        fed(seat, x)
        if seat.owner != 2:
            seat.end()
    while stage.ready:
        for step in stage.step():
            made[step.seat.owner] += [step.made["y"]] if "y" in step.made else []
            errors += [step.seat.owner] if step.error is not None else []
    assert errors == [2] and all(seat.closed for seat in seats)
    session = ort.InferenceSession(PROTOS[kind].SerializeToString())
    for i in (0, 1, 3):
        np.testing.assert_allclose(np.concatenate(made[i], 2), session.run(None, {"x": given[i]})[0], atol=1e-5)
    before = session.run(None, {"x": np.nan_to_num(given[2])})[0][:, :, : sum(m.shape[2] for m in made[2])]
    assert before.shape[2] == max(bad * 4 - 3, 0)
    if made[2]:
        np.testing.assert_allclose(np.concatenate(made[2], 2), before, atol=1e-5)


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


def held(seat: Seat) -> int:
    """Bytes that are kept for what waits."""
    whole = [piece if piece.base is None else piece.base for piece in seat.backlog["x"].pieces]
    return sum(len(b) if isinstance(b, bytes) else b.nbytes for b in whole)


def test_frames_that_wait_keep_no_more_than_themselves() -> None:
    """Neither the message they came in, nor the batch they were computed in."""
    stage = staged("pooled")
    a, b = stage.open("a"), stage.open("b")
    fed(a, np.frombuffer(frames(1, 2, 4 * 1000 + 1).tobytes(), np.float32).reshape(1, 2, -1))
    batch = frames(500, 2, 3)
    b.feed("x", batch[7:8], 3, shared=True)
    while stage.ready:
        stage.step()
    assert (a.backlog["x"].frames, b.backlog["x"].frames) == (1, 3)
    assert held(a) <= 8 * 8 and held(b) == 3 * 8
    np.testing.assert_array_equal(b.rest()["x"], batch[7:8])
