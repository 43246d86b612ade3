"""The Fold: each real frame once, whatever lies around the stream; first frames are kept."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.analysis.facts import Awaited, Window
from pulsify.core.length import constant
from pulsify.emit.fold import DOUBLE, Fold
from pulsify.ops.fold import extreme, neutral
from pulsify.plan.boundary import after_first
from tests.models import frames
from tests.unit.convert.contexts import Steps, emitting, made_by, opened, wire_model, wire_of, written

NAN = np.full((1, 1, 4), np.nan, np.float32)


def fed(steps: Steps, x: np.ndarray, delay: int = 0) -> list[dict[str, np.ndarray]]:
    """Pulse by pulse, the end known in the last, NaN around."""
    length = x.shape[-1]
    count = -(-(length + delay) // 4)
    padded = np.concatenate([x, np.repeat(NAN, count, 0).reshape(1, 1, -1)], 2)
    return [
        steps.step({"x": padded[..., 4 * n : 4 * n + 4]}, *([length] if 4 * (n + 1) >= length else []))
        for n in range(count)
    ]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 11])
def test_frames_outside_the_stream_count_for_nothing(length: int) -> None:
    ctx = opened(wire_model())
    wire, node = wire_of(ctx, "x"), made_by(ctx, "y")
    window = Window(4, -2, 2)  # two frames late: the first pulse holds two that are none
    assert wire.length is not None
    taken = wire.take(window)
    written(ctx, taken)
    fold, x = Fold(ctx, node, wire.length, window), taken.value
    sizes = (1, 1, 1)
    real = {how: fold.only(x, wire.layout, wire.dtype, neutral(how, wire.dtype)) for how in ("Max", "Min")}
    made = {
        "sum": fold.total(
            "sum", fold.reduced("ReduceSum", fold.only(x, wire.layout, wire.dtype, 0), [2]), wire.dtype, sizes
        ),
        "max": extreme(fold, "Max", fold.reduced("ReduceMax", real["Max"], [2]), wire.dtype, sizes)[1],
        "min": extreme(fold, "Min", fold.reduced("ReduceMin", real["Min"], [2]), wire.dtype, sizes)[1],
        "count": fold.count(sizes),
        "last": fold.last(x, wire.layout, wire.dtype, 1),
    }
    values = frames(1, 1, length)
    last = fed(Steps(ctx, made), values, delay=2)[-1]
    want = {"sum": values.sum(), "max": values.max(), "min": values.min(), "count": length, "last": values[0, 0, -1]}
    for name, value in want.items():
        np.testing.assert_allclose(last[name].item(), value, rtol=1e-6, err_msg=name)
    assert {c.kind for c in ctx.carries} == {"fold"} and last["sum"].dtype == DOUBLE.numpy()


def test_frames_of_one_window_are_counted_once() -> None:
    ctx = emitting(wire_model())
    wire, node = wire_of(ctx, "x"), made_by(ctx, "y")
    assert wire.length is not None
    for _ in range(2):
        Fold(ctx, node, wire.length, Window(4, 0, 4)).count((1, 1, 1))
    assert len(ctx.carries) == 1


@pytest.mark.parametrize("count", [1, 4, 6, 9])
def test_first_frames_are_kept(count: int) -> None:
    ctx = emitting(wire_model())
    wire, window = wire_of(ctx, "x"), Window(4, 0, 4)
    assert wire.length is not None
    fold = Fold(ctx, made_by(ctx, "y"), wire.length, window)
    value = fold.first(wire.take(window).value, wire.layout, wire.dtype, count)
    x, first = frames(1, 1, 16), Awaited(constant(count), window)
    shown = fed(Steps(ctx, {"out": value}, ctx.carries), x)
    for n in range(first.pulse, 4):
        np.testing.assert_array_equal(shown[n]["out"], x[..., :count])
    assert first.pulse == (count - 1) // 4
    assert not np.array_equal(shown[first.pulse - 1]["out"], x[..., :count]) or not first.pulse


def test_frame_zero_comes_when_first_frames_are_there() -> None:
    ctx = opened(wire_model())
    early, late = (Awaited(constant(n), Window(4, 0, 4)) for n in (3, 9))
    assert after_first(ctx, [early], 4, 4) == 4 and not ctx.waited, "at the first pulse anyway"
    assert late.pulse == 2 and after_first(ctx, [early, late], 4, 4) == -4
    (over,) = ctx.waited
    assert [over(n) for n in (1, 2, 3)] == [False, False, True], "an opening of three pulses has them all"
    ctx.started = True
    assert after_first(ctx, [late], 4, 4) == 4, "behind an opening nothing waits"
