"""Buffers: one a wire, whatever windows are asked for, over several pulses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import ALL, Layout, Window
from pulsify.core.errors import NotStreamable
from pulsify.core.spec import PAST
from pulsify.emit.buffer import Buffer, check_growing
from pulsify.emit.state import State
from pulsify.plan.context import Context
from tests.models import Array
from tests.unit.convert.contexts import Steps, emitting, opened, wire_model, wire_of

P = 4
OWN = Window(P, 0, P)


def buffer(
    dims: list[int | str], *windows: Window, own: Window = OWN, batch: str | None = None, zero: bool = True
) -> tuple[Context, Buffer]:
    """Of the input, of which these windows are read."""
    ctx = emitting(wire_model(dims), P)
    b = Buffer(ctx.builder, replace(ctx.stored["x"], window=own), ctx.builder.inputs["x"], windows, batch)
    b.fill(zero)
    return ctx, b


def state_of(b: Buffer) -> State:
    assert b.state is not None
    return b.state


def pulses(count: int, dims: tuple[int, ...] = (1, 1)) -> Array:
    """Frame k holds k, from 0 on."""
    return np.broadcast_to(np.arange(count * P, dtype=np.float32), (*dims, count * P))


def test_its_own_window_is_the_wire_itself() -> None:
    _, b = buffer([1, 1, "T"])
    assert b.take(OWN) is b.value
    assert b.state is None, "and takes no state"


def test_a_window_into_the_past_holds_the_frames_of_earlier_pulses() -> None:
    windows = {"late": Window(P, -3, 1), "wide": Window(P, -6, 4), "inner": Window(P, 1, 3)}
    ctx, b = buffer([1, 1, "T"], *windows.values())
    state = state_of(b)
    assert state.shape == (1, 1, 6) and (state.kind, state.axis, state.frames) == ("buffer", 2, 6)
    steps = Steps(ctx, {name: b.take(w) for name, w in windows.items()}, [state])
    x = pulses(3)
    for n in range(3):
        made = steps.step({"x": x[..., n * P : n * P + P]})
        for name, w in windows.items():
            wanted = np.arange(n * P + w.start, n * P + w.end)
            np.testing.assert_array_equal(made[name][0, 0], np.where(wanted < 0, 0, wanted), f"{name} at pulse {n}")


def test_all_readers_share_the_longest_history() -> None:
    _, b = buffer([1, 1, "T"], Window(P, -3, 1), Window(P, -9, -5))
    assert state_of(b).frames == 9


def test_a_history_longer_than_several_pulses_goes_on() -> None:
    ctx, b = buffer([1, 1, "T"], old := Window(P, -11, -10))
    steps = Steps(ctx, {"old": b.take(old)}, [state_of(b)])
    x = pulses(5)
    seen = [steps.step({"x": x[..., n * P : n * P + P]})["old"].item() for n in range(5)]
    assert seen == [0, 0, 0, 1, 5]


def test_a_start_that_does_not_matter_is_not_marked_zero() -> None:
    _, b = buffer([1, 1, "T"], Window(P, -1, 4), zero=False)
    assert not state_of(b).zero


def test_a_window_wider_than_the_pulse_keeps_less() -> None:
    """Frames -2 ... 4 come anew at every pulse: of a window from -3 on one frame is kept."""
    ctx = emitting(wire_model([1, 1, "T"]), P)
    value = ctx.builder.input("wide", ir.DataType.FLOAT, [1, 1, P + 2])
    b = Buffer(ctx.builder, replace(ctx.stored["x"], window=Window(P, -2, P)), value, (back := Window(P, -3, 1),))
    b.fill(zero=True)
    assert state_of(b).frames == 1
    steps = Steps(ctx, {"back": b.take(back)}, [state_of(b)])
    for n in range(3):
        x = np.arange(n * P - 2, n * P + P, dtype=np.float32)[None, None]
        made = steps.step({"wide": x})["back"][0, 0]
        np.testing.assert_array_equal(made[1:], np.arange(n * P - 2, n * P + 1))
        assert made[0] == (n * P - 3 if n else 0)


def test_a_batch_that_is_free_comes_first_in_the_state() -> None:
    ctx, b = buffer(["B", 2, "T"], wide := Window(P, -2, P), batch="B")
    assert state_of(b).shape == ("B", 2, 2)
    steps = Steps(ctx, {"wide": b.take(wide)}, [state_of(b)])
    steps.held = [np.zeros((3, 2, 2), np.float32)]
    x = np.arange(3 * 2 * 8, dtype=np.float32).reshape(3, 2, 8)
    steps.step({"x": x[..., :P]})
    np.testing.assert_array_equal(steps.step({"x": x[..., P:]})["wide"], x[..., 2:])


def test_time_in_front_is_kept_apart_from_the_batch() -> None:
    ctx, b = buffer(["T", 3], wide := Window(P, -2, P))
    state = state_of(b)
    assert (state.shape, state.axis) == ((1, 2, 3), 1)
    steps = Steps(ctx, {"wide": b.take(wide)}, [state])
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    steps.step({"x": x[:P]})
    np.testing.assert_array_equal(steps.step({"x": x[P:]})["wide"], x[2:])


def test_time_folded_behind_other_rows_is_cut_row_by_row() -> None:
    """[2 rows * T, 3]: a window into the past takes frames of both rows."""
    ctx = emitting(wire_model([2, "T", 3]), P)
    value = ctx.builder.input("folded", ir.DataType.FLOAT, [2 * P, 3])
    stored = replace(ctx.stored["x"], layout=Layout((0, 3), 0, (2, 2)), window=OWN)
    b = Buffer(ctx.builder, stored, value, (back := Window(P, -1, 2),))
    b.fill(zero=True)
    steps = Steps(ctx, {"back": b.take(back)}, [state_of(b)])
    x = np.arange(2 * 8 * 3, dtype=np.float32).reshape(2, 8, 3)
    steps.step({"folded": x[:, :P].reshape(-1, 3)})
    made = steps.step({"folded": x[:, P:].reshape(-1, 3)})["back"]
    np.testing.assert_array_equal(made.reshape(2, 3, 3), x[:, 3:6])


def test_a_cache_holds_everything_so_far() -> None:
    ctx, b = buffer([1, "T", 2], everything := Window(P, ALL, P))
    state = b.cache
    assert b.state is None
    assert state is not None and (state.kind, state.shape) == ("cache", (1, PAST, 2))
    steps = Steps(ctx, {"all": b.take(everything)}, [state])
    x = np.arange(3 * P * 2, dtype=np.float32).reshape(1, 3 * P, 2)
    for n in range(3):
        made = steps.step({"x": x[:, n * P : n * P + P]})["all"]
        np.testing.assert_array_equal(made, x[:, : n * P + P])


def test_no_cache_is_made_if_nobody_asks() -> None:
    _, b = buffer([1, "T", 2], Window(P, -2, P))
    assert b.cache is None


@pytest.mark.parametrize(
    ("dims", "own", "wanted"),
    [
        (["T", 2], OWN, Window(P, ALL, P)),  # time in front
        ([3, "T", 2], OWN, Window(P, ALL, P)),  # three rows on the first axis
        ([1, "T", 2], Window(P, -1, P), Window(P, ALL, P)),  # frames come twice
        ([1, "T", 2], OWN, Window(P, ALL, P - 1)),  # the last frame is not wanted yet
    ],
)
def test_a_cache_of_what_is_not_laid_out_for_it_is_refused(dims: list[int | str], own: Window, wanted: Window) -> None:
    stored = replace(opened(wire_model(dims), P).stored["x"], window=own)
    with pytest.raises(NotStreamable, match="all of its frames would have to be kept") as caught:
        check_growing(stored, wanted)
    assert caught.value.node == "x" and "look-back" in caught.value.hint


def test_frames_that_are_not_there_yet_cannot_be_planned() -> None:
    with pytest.raises(AssertionError):
        wire_of(opened(wire_model([1, 1, "T"]), P), "x").take(Window(P, 0, P + 1))


def test_a_window_that_is_not_planned_cannot_be_taken() -> None:
    _, b = buffer([1, 1, "T"], Window(P, -2, P))
    with pytest.raises(AssertionError, match="is not planned"):
        b.take(Window(P, -1, P))
