"""Buffers: one a wire, whatever windows are asked for, over several pulses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import ALL, Layout, Window
from pulsify.convert.context import Context
from pulsify.convert.primitives.buffer import Buffer
from pulsify.convert.primitives.state import State
from pulsify.core.errors import NotStreamable
from pulsify.core.spec import PAST
from tests.models import Array
from tests.unit.convert.contexts import Steps, opened, wire_model

P = 4
OWN = Window(P, 0, P)


def buffer(dims: list[int | str], window: Window = OWN) -> tuple[Context, Buffer]:
    ctx = opened(wire_model(dims), P)
    made = ctx.buffers["x"]
    return ctx, Buffer(ctx.builder, "x", made.value, made.dtype, made.layout, window, "x")


def finished(b: Buffer, batch: str | None = None, zero: bool = True) -> list[State]:
    state = b.finish(batch, zero)
    return [] if state is None else [state]


def pulses(count: int, dims: tuple[int, ...] = (1, 1)) -> Array:
    """Frame k holds k, from 0 on."""
    return np.broadcast_to(np.arange(count * P, dtype=np.float32), (*dims, count * P))


def test_its_own_window_is_the_wire_itself() -> None:
    _, b = buffer([1, 1, "T"])
    assert b.take(OWN) is b.value
    assert b.finish(None, True) is None, "and takes no state"


def test_a_window_into_the_past_holds_the_frames_of_earlier_pulses() -> None:
    ctx, b = buffer([1, 1, "T"])
    late, wide, inner = b.take(Window(P, -3, 1)), b.take(Window(P, -6, 4)), b.take(Window(P, 1, 3))
    (state,) = finished(b)
    assert state.shape == (1, 1, 6) and (state.kind, state.axis, state.frames) == ("buffer", 2, 6)
    steps = Steps(ctx, {"late": late, "wide": wide, "inner": inner}, [state])
    x = pulses(3)
    for n in range(3):
        made = steps.step({"x": x[..., n * P : n * P + P]})
        for name, (start, end) in {"late": (-3, 1), "wide": (-6, 4), "inner": (1, 3)}.items():
            wanted = np.arange(n * P + start, n * P + end)
            np.testing.assert_array_equal(made[name][0, 0], np.where(wanted < 0, 0, wanted), f"{name} at pulse {n}")


def test_all_readers_share_the_longest_history() -> None:
    _, b = buffer([1, 1, "T"])
    b.take(Window(P, -3, 1))
    b.take(Window(P, -9, -5))
    (state,) = finished(b)
    assert state.frames == 9


def test_a_history_longer_than_several_pulses_goes_on() -> None:
    ctx, b = buffer([1, 1, "T"])
    old = b.take(Window(P, -11, -10))
    steps = Steps(ctx, {"old": old}, finished(b))
    x = pulses(5)
    seen = [steps.step({"x": x[..., n * P : n * P + P]})["old"].item() for n in range(5)]
    assert seen == [0, 0, 0, 1, 5]


def test_a_start_that_does_not_matter_is_not_marked_zero() -> None:
    _, b = buffer([1, 1, "T"])
    b.take(Window(P, -1, 4))
    assert not finished(b, zero=False)[0].zero


def test_a_window_wider_than_the_pulse_keeps_less() -> None:
    """Frames -2 ... 4 come anew at every pulse: of a window from -3 on one frame is kept."""
    ctx, b = buffer([1, 1, "T"], Window(P, -2, P))
    b.value = ctx.builder.input("wide", ir.DataType.FLOAT, [1, 1, P + 2])
    back = b.take(Window(P, -3, 1))
    (state,) = finished(b)
    assert state.frames == 1
    steps = Steps(ctx, {"back": back}, [state])
    for n in range(3):
        x = np.arange(n * P - 2, n * P + P, dtype=np.float32)[None, None]
        made = steps.step({"wide": x})["back"][0, 0]
        np.testing.assert_array_equal(made[1:], np.arange(n * P - 2, n * P + 1))
        assert made[0] == (n * P - 3 if n else 0)


def test_a_batch_that_is_free_comes_first_in_the_state() -> None:
    ctx = opened(wire_model(["B", 2, "T"]))
    b = ctx.buffers["x"]
    wide = b.take(Window(P, -2, P))
    (state,) = finished(b, "B")
    assert state.shape == ("B", 2, 2)
    steps = Steps(ctx, {"wide": wide}, [state])
    steps.held = [np.zeros((3, 2, 2), np.float32)]
    x = np.arange(3 * 2 * 8, dtype=np.float32).reshape(3, 2, 8)
    steps.step({"x": x[..., :P]})
    np.testing.assert_array_equal(steps.step({"x": x[..., P:]})["wide"], x[..., 2:])


def test_time_in_front_is_kept_apart_from_the_batch() -> None:
    ctx, b = buffer(["T", 3])
    wide = b.take(Window(P, -2, P))
    (state,) = finished(b)
    assert (state.shape, state.axis) == ((1, 2, 3), 1)
    steps = Steps(ctx, {"wide": wide}, [state])
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    steps.step({"x": x[:P]})
    np.testing.assert_array_equal(steps.step({"x": x[P:]})["wide"], x[2:])


def test_time_folded_behind_other_rows_is_cut_row_by_row() -> None:
    """[2 rows * T, 3]: a window into the past takes frames of both rows."""
    ctx = opened(wire_model([2, "T", 3]), P)
    value = ctx.builder.input("folded", ir.DataType.FLOAT, [2 * P, 3])
    b = Buffer(ctx.builder, "x", value, ir.DataType.FLOAT, Layout((0, 3), 0, (2, 2)), OWN, "x")
    back = b.take(Window(P, -1, 2))
    steps = Steps(ctx, {"back": back}, finished(b))
    x = np.arange(2 * 8 * 3, dtype=np.float32).reshape(2, 8, 3)
    steps.step({"folded": x[:, :P].reshape(-1, 3)})
    made = steps.step({"folded": x[:, P:].reshape(-1, 3)})["back"]
    np.testing.assert_array_equal(made.reshape(2, 3, 3), x[:, 3:6])


def test_a_cache_holds_everything_so_far() -> None:
    ctx, b = buffer([1, "T", 2])
    everything = b.take(Window(P, ALL, P))
    assert b.finish(None, True) is None
    state = b.finish_growing(None)
    assert state is not None and (state.kind, state.shape) == ("cache", (1, PAST, 2))
    steps = Steps(ctx, {"all": everything}, [state])
    x = np.arange(3 * P * 2, dtype=np.float32).reshape(1, 3 * P, 2)
    for n in range(3):
        made = steps.step({"x": x[:, n * P : n * P + P]})["all"]
        np.testing.assert_array_equal(made, x[:, : n * P + P])


def test_no_cache_is_made_if_nobody_asks() -> None:
    _, b = buffer([1, "T", 2])
    b.take(Window(P, -2, P))
    assert b.finish_growing(None) is None


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
    _, b = buffer(dims, own)
    with pytest.raises(NotStreamable, match="all of its frames would have to be kept") as caught:
        b.take(wanted)
    assert caught.value.node == "x" and "look-back" in caught.value.hint


def test_frames_that_are_not_there_yet_cannot_be_taken() -> None:
    _, b = buffer([1, 1, "T"])
    with pytest.raises(AssertionError):
        b.take(Window(P, 0, P + 1))
