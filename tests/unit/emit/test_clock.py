"""The clock: where a pulse is and where the stream ends, worked out in the graph as in Python."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.analysis.facts import ALL, Window
from pulsify.core.length import Length, Table, constant
from pulsify.plan.context import Context
from tests.unit.convert.contexts import Steps, emitting, wire_model

P = 4


@pytest.fixture
def ctx() -> Context:
    return emitting(wire_model(), P)


def test_nobody_asked_so_there_are_no_counters(ctx: Context) -> None:
    assert ctx.clock.position is None and ctx.clock.length is None and not ctx.clock.absolute


@pytest.mark.parametrize(
    ("window", "per"),
    [
        (Window(4, 0, 4), 4),  # one frame for one of the stream
        (Window(4, -3, 5), 4),
        (Window(8, -1, 8), 8),  # twice as many
        (Window(2, 0, 2), 2),  # half as many
        (Window(6, 1, 3), 6),  # three for two
    ],
)
def test_frames_are_numbered_from_the_start_of_the_stream(ctx: Context, window: Window, per: int) -> None:
    steps = Steps(ctx, {"out": ctx.clock.frames(window)})
    for n in range(4):
        wanted = np.arange(n * per + window.start, n * per + window.end)
        np.testing.assert_array_equal(steps.step({})["out"], wanted[None])
    assert not ctx.clock.absolute, "only the ends depend on it so far"


def test_positions_are_frames_that_may_never_be_set_back(ctx: Context) -> None:
    window = Window(P, 0, P)
    assert ctx.clock.positions(window) is ctx.clock.frames(window)
    assert ctx.clock.absolute


def test_phases_turn_with_the_pulses(ctx: Context) -> None:
    steps = Steps(ctx, {"out": ctx.clock.phase(3)})
    assert [steps.step({})["out"].item() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert ctx.clock.phases == {3}


def test_phases_at_a_pulse_of_one() -> None:
    ctx = emitting(wire_model(), 1)
    steps = Steps(ctx, {"out": ctx.clock.phase(2)})
    assert [steps.step({})["out"].item() for _ in range(4)] == [0, 1, 0, 1]


def test_a_window_that_grows_is_counted_from_its_end(ctx: Context) -> None:
    window = Window(P, ALL, 3)
    size = ctx.builder.input("size", ctx.builder.ints(1).dtype, [1])  # type: ignore[arg-type]
    ctx.clock.grown[window] = size
    steps = Steps(ctx, {"out": ctx.clock.frames(window)})
    for n in range(3):
        count = n * P + 5
        out = steps.step({"size": np.array([count])})["out"]
        np.testing.assert_array_equal(out[0], np.arange(n * P + 3 - count, n * P + 3))
    assert ctx.clock.absolute


LENGTHS = [
    Length(),
    Length().then(2),
    Length().then(1, 3, 4),
    Length().then(1, -5, 2),  # below zero for short ones: floor, not truncated
    Length().then(1, -5, floor=True),
    Length().then(1, -7, 2, floor=True).then(3, 1),
    Length(table=Table(3, 2, (0, 5, 1))),
    Length(table=Table(3, 2, (0, 5, 1))).then(1, 1, 2),
    Length(short=(0, 0, 7)).then(1, 1),
    constant(5),
    Length(cap=6),
]


@pytest.mark.parametrize("length", LENGTHS, ids=repr)
def test_the_end_is_the_same_in_the_graph_as_in_python(ctx: Context, length: Length) -> None:
    steps = Steps(ctx, {"out": ctx.clock.end(length)})
    for s in range(15):
        assert steps.step({}, s)["out"].item() == length.at(s), f"of {s} frames"


def test_an_end_that_comes_before_the_streams_depends_on_the_position(ctx: Context) -> None:
    ctx.clock.end(Length())
    assert not ctx.clock.absolute
    ctx.clock.end(Length(cap=6))
    assert ctx.clock.absolute


def test_the_same_length_is_worked_out_once(ctx: Context) -> None:
    assert ctx.clock.end(Length().then(1, 1, 2)) is ctx.clock.end(Length().then(1, 1, 2))
