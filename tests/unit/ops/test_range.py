"""Positions, running sums and values spread over time: formulas of the clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Static, Window
from pulsify.plan.plan import execute
from tests.models import close, frames, model, node, run_batch
from tests.unit.convert.contexts import Steps, made_by, opened, planned, refused, run_window, wire_of

SIZE = [node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0)]


def ranged(start: Any, step: Any, dtype: Any = np.float32, pace: int = 1) -> onnx.ModelProto:
    """x plus start + step * k."""
    nodes = [
        *SIZE, node("Mul", "t pace", "count"), node("Cast", "count", "n", to=onnx.helper.np_dtype_to_tensor_dtype(
            np.dtype(dtype))), node("Mul", "n step", "far"), node("Add", "far start", "limit"),
        node("Range", "start limit step", "p"), node("Cast", "p", "f", to=1), node("Add", "x f", "y"),
    ]  # fmt: skip
    given = {
        "time": np.array(2),
        "pace": np.array(pace),
        "start": np.array(start, dtype),
        "step": np.array(step, dtype),
    }
    return model(nodes, {"x": [1, 1, "T"]}, ["y"], given)


@pytest.mark.parametrize(
    ("start", "step", "dtype"), [(0, 1, np.int64), (5, 3, np.int64), (9, -2, np.int64), (0.5, 0.25, np.float32)]
)
def test_positions_are_counted_by_the_clock(start: Any, step: Any, dtype: Any) -> None:
    ctx = opened(ranged(start, step, dtype))
    p = wire_of(ctx, "p")
    assert p.end is None and p.length is None, "any window can be had"
    window = Window(4, -2, 5)
    steps = Steps(ctx, {"out": p.take(window)})
    for n in range(3):
        made = steps.step({})["out"]
        assert made.dtype == dtype
        np.testing.assert_array_equal(made, start + step * np.arange(4 * n - 2, 4 * n + 5))
    assert ctx.clock.absolute


def test_floats_that_count_are_exact_up_to_a_length() -> None:
    ctx = opened(ranged(0.5, 0.25))
    wire_of(ctx, "p")
    assert ctx.ask.ledger.limit == 2**24 - 2 and ctx.ask.ledger.limited_by == "p"


def test_a_step_that_rounds_every_time_is_refused() -> None:
    problem = refused(ranged(0, 0.1))
    assert (problem.op, problem.node) == ("Range", "p")
    assert "rounds every time" in problem.reason


def test_a_range_of_fixed_size_is_a_constant() -> None:
    nodes = [node("Range", "a b c", "p"), node("Cast", "p", "f", to=1), node("Reshape", "f to", "r"),
             node("Add", "x r", "y")]  # fmt: skip
    given = {"a": np.array(0), "b": np.array(3), "c": np.array(1), "to": np.array([1, 3, 1])}
    ctx = opened(model(nodes, {"x": [1, 3, "T"]}, ["y"], given))
    assert isinstance(ctx.ask.fact("r"), Static)


@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sums_go_on_from_pulse_to_pulse(exclusive: int) -> None:
    proto = model(
        [node("CumSum", "x axis", "y", exclusive=exclusive)], {"x": [1, 2, "T"]}, ["y"], {"axis": np.array(2)}
    )
    ctx, plan = planned(proto)
    assert plan.exact
    execute(ctx, made_by(ctx, "y"), plan)
    x = frames(1, 2, 10)
    out = run_window(ctx, wire_of(ctx, "y").take(ctx.windows["y"]), ctx.windows["y"], x, 10)
    close(out, run_batch(proto, x)["y"])


def test_a_sum_behind_a_delay_counts_no_frame_before_the_first() -> None:
    """Convolved behind: frames come two late, and what a bias makes of those before 0 must not be summed up."""
    given = {"w": np.ones((1, 1, 3), np.float32), "b": np.ones(1, np.float32), "axis": np.array(2)}
    nodes = [node("Conv", "x w b", "h", pads=[0, 2]), node("CumSum", "h axis", "y")]
    proto = model(nodes, {"x": [1, 1, "T"]}, ["y"], given)
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    assert ctx.windows["y"].start < 0
    x = frames(1, 1, 7)
    out = run_window(ctx, wire_of(ctx, "y").take(ctx.windows["y"]), ctx.windows["y"], x, 7)
    close(out, run_batch(proto, x)["y"])


def test_a_sum_from_the_end_is_refused() -> None:
    proto = model([node("CumSum", "x axis", "y", reverse=1)], {"x": [1, 2, "T"]}, ["y"], {"axis": np.array(2)})
    problem = refused(proto)
    assert problem.op == "CumSum" and "from the end of the stream" in problem.reason


def test_a_sum_across_time_is_frame_by_frame() -> None:
    proto = model([node("CumSum", "x axis", "y", reverse=1)], {"x": [1, 2, "T"]}, ["y"], {"axis": np.array(1)})
    assert planned(proto)[1].reads[0].reach.pointwise


def test_a_sum_of_ones_is_the_clock() -> None:
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [
        *SIZE, node("Reshape", "t row", "dims1"), node("ConstantOfShape", "dims1", "ones", value=one),
        node("CumSum", "ones axis", "count"), node("Add", "x count", "y"),
    ]  # fmt: skip
    given = {"time": np.array(2), "row": np.array([1]), "axis": np.array(0)}
    ctx = opened(model(nodes, {"x": [1, 1, "T"]}, ["y"], given))
    steps = Steps(ctx, {"out": wire_of(ctx, "count").take(Window(4, 0, 4))})
    assert [steps.step({})["out"].reshape(-1).tolist() for _ in range(2)] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert ctx.ask.ledger.limit == 2**24


def expanded(op: str, dims: Any, target: list[int]) -> onnx.ModelProto:
    return model([node(op, "x to", "y")], {"x": dims}, ["y"], {"to": np.array(target)})


def test_a_stream_is_repeated_across_other_axes_as_a_copy() -> None:
    for op, target in (("Expand", [1, 5, 1]), ("Tile", [1, 5, 1])):
        _, plan = planned(expanded(op, [1, 1, "T"], target))
        assert plan.copies and plan.reads[0].reach.pointwise
        assert plan.layouts[0] is not None and plan.layouts[0].sizes == (1, 5, 0)


def test_a_stream_repeated_as_a_whole_is_refused() -> None:
    problem = refused(expanded("Tile", [1, 1, "T"], [1, 1, 2]))
    assert (problem.op, problem.node) == ("Tile", "y")
    assert "repeats the whole stream" in problem.reason


def test_a_value_without_time_is_the_same_at_every_frame() -> None:
    """z [1, 2, 1], a static input, spread over the frames of x."""
    nodes = [node("Shape", "x", "dims"), node("Expand", "z dims", "wide"), node("Add", "x wide", "y")]
    ctx = opened(model(nodes, {"x": [1, 2, "T"], "z": [1, 2, 1]}, ["y"]))
    ctx.node_rule(ctx, made_by(ctx, "wide"))
    wide = wire_of(ctx, "wide")
    assert wide.constant_frame is not None and wide.end is None
    made = Steps(ctx, {"out": wide.take(Window(4, 0, 3))}).step({"z": np.array([[[1], [2]]], np.float32)})["out"]
    np.testing.assert_array_equal(made, [[[1, 1, 1], [2, 2, 2]]])
