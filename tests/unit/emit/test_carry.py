"""Carries: a running value over pulses, its start, and frames that are not real."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import Window
from pulsify.core.length import Length
from pulsify.emit.carry import carry, per_stream, real_count, skipped
from pulsify.plan.context import Context
from pulsify.plan.wanted import wanted_by_anyone, zero
from tests.models import model, node
from tests.unit.convert.contexts import Steps, emitting, wire_model

P, FLOAT = 4, ir.DataType.FLOAT


def summed(ctx: Context, initial: float | None, window: Window) -> Steps:
    """A running sum of the last frame of every pulse."""
    b = ctx.builder
    start = None if initial is None else b.constant(np.full((1, 1), initial, np.float32))
    running = carry(ctx, "sum", FLOAT, (1, 1), start, window)
    last = b.reshape(b.slice(ctx.builder.inputs["x"], 2, P - 1, P), [1, 1])
    after = b.op("Add", running.value, last)
    running.keep(after)
    return Steps(ctx, {"found": running.value, "left": after}, ctx.carries)


def pulse(value: float) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"x": np.full((1, 1, P), value, np.float32)}


def test_what_a_pulse_leaves_the_next_one_finds() -> None:
    ctx = emitting(wire_model(), P)
    steps = summed(ctx, None, Window(P, 0, P))
    assert [steps.step(pulse(v))["found"].item() for v in (1, 2, 3)] == [0, 1, 3]
    (state,) = ctx.carries
    assert (state.kind, state.zero, state.shape) == ("carry", True, (1, 1))


def test_it_starts_at_what_it_is_told() -> None:
    steps = summed(emitting(wire_model(), P), 10, Window(P, 0, P))
    assert [steps.step(pulse(v))["found"].item() for v in (1, 2, 3)] == [10, 11, 13]


def test_it_starts_when_the_first_real_frame_comes() -> None:
    """With a delay of six frames, the first real one comes in the second pulse: what came before counts for nothing."""
    steps = summed(emitting(wire_model(), P), 10, Window(P, -6, -2))
    assert [steps.step(pulse(v))["found"].item() for v in (7, 2, 3)] == [10, 10, 12]


@pytest.mark.parametrize(
    ("window", "counts"),
    [(Window(P, -2, 2), [2, 0, 0]), (Window(P, -6, -2), [4, 2, 0]), (Window(P, -1, 3), [1, 0, 0])],
)
def test_frames_before_the_first_are_skipped(window: Window, counts: list[int]) -> None:
    ctx = emitting(wire_model(), P)
    missing = skipped(ctx, window)
    assert missing is not None
    steps = Steps(ctx, {"out": missing})
    assert [steps.step({})["out"].item() for _ in counts] == counts


def test_without_a_delay_nothing_is_ever_skipped() -> None:
    assert skipped(emitting(wire_model(), P), Window(P, 0, P)) is None


@pytest.mark.parametrize(
    ("length", "counts"), [(1, [1, 0, 0]), (2, [2, 0, 0]), (5, [2, 3, 0]), (6, [2, 4, 0]), (99, [2, 4, 4])]
)
def test_real_frames_are_counted_between_start_and_end(length: int, counts: list[int]) -> None:
    """A delay of two frames: two come in the first pulse, four in every other, up to the last."""
    ctx, window = emitting(wire_model(), P), Window(P, -2, 2)
    steps = Steps(ctx, {"out": real_count(ctx, window, Length(), skipped(ctx, window))})
    assert [steps.step({}, length)["out"].item() for _ in counts] == counts


def test_without_an_end_or_a_delay_all_frames_are_real() -> None:
    ctx = emitting(wire_model(), P)
    steps = Steps(ctx, {"out": real_count(ctx, Window(P, 0, P), None, None)})
    assert steps.step({})["out"].item() == P
    assert ctx.clock.position is None


@pytest.mark.parametrize(
    ("sizes", "shape"), [((1, -1, 5), (1, 2, 1)), ((-3, 5), (6, 1)), ((5, -1), (1, 2)), ((-1,), (2,))]
)
def test_a_number_of_every_stream_meets_a_value_without_time(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    ctx = emitting(wire_model(("B", 1, "T")), P)
    number = ctx.builder.input("number", FLOAT, ["B", 1])
    made = Steps(ctx, {"out": per_stream(ctx, number, sizes)}).step({"number": np.array([[1], [2]], np.float32)})["out"]
    assert made.shape == shape
    np.testing.assert_array_equal(made.reshape(-1), np.repeat([1, 2], made.size // 2))


def test_one_stream_alone_meets_anything() -> None:
    ctx = emitting(wire_model(), P)
    out = per_stream(ctx, ctx.builder.constant(np.array([[3.0]], np.float32)), (4, 5))
    assert Steps(ctx, {"out": out}).step({})["out"].shape == (1, 1)


START = model(
    [
        node("Shape", "x", "dims"),
        node("Gather", "dims last", "t", axis=0),
        node("Sub", "t t", "nothing"),
        node("Cast", "nothing", "nothing_too", to=1),
        node("Expand", "half dims", "wide"),
        node("Sub", "wide wide", "none"),
        node("Add", "x none", "sum"),
        node("Sum", "sum nothing_too zeros ones", "h"),
        node("Neg", "h", "y"),
    ],
    {"x": [1, 1, "T"]},
    ["y"],
    {
        "last": np.array(2),
        "half": np.zeros((1, 1, 1), np.float32),
        "zeros": np.zeros(1, np.float32),
        "ones": np.ones(1, np.float32),
    },
)


def test_a_first_state_of_zeros_is_found_to_be_zero() -> None:
    ctx = emitting(START)
    assert {n: zero(ctx, n) for n in ("zeros", "ones", "t", "nothing", "wide", "x")} == {
        "zeros": True, "ones": False, "t": False, "nothing": True, "wide": True, "x": False,
    }  # fmt: skip


def test_outputs_and_what_nodes_read_are_wanted() -> None:
    ctx = emitting(START)
    assert wanted_by_anyone(ctx, "y") and wanted_by_anyone(ctx, "h")
    assert not wanted_by_anyone(ctx, "nobody's")
