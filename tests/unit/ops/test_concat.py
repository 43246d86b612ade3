"""Concat: side by side, fixed frames at either end, the first frames once more."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Window, Wire
from pulsify.core.reach import shift
from pulsify.core.spec import Condition
from pulsify.plan.boundary import fill
from pulsify.plan.plan import execute, made_in
from tests.models import frames, model, node, run_batch, weights
from tests.unit.convert.contexts import asked_rule, made_by, planned, refused, run_window, wire_of

FRONT, TAIL = weights(1, 2, 3), weights(1, 2, 2, seed=5)


def joined(inputs: str, nodes: list[onnx.NodeProto] | None = None, axis: int = 2) -> onnx.ModelProto:
    used = {n: v for n, v in {"front": FRONT, "tail": TAIL}.items() if n in inputs.split()}
    cuts = {"zero": np.array([0]), "two": np.array([2]), "time": np.array([2])} if nodes else {}
    return model([*(nodes or []), node("Concat", inputs, "y", axis=axis)], {"x": [1, 2, "T"]}, ["y"], {**used, **cuts})


@pytest.mark.parametrize(("inputs", "before", "after"), [("front x", 3, 0), ("x tail", 0, 2), ("front x tail", 3, 2)])
def test_fixed_frames_stand_in_front_and_behind(inputs: str, before: int, after: int) -> None:
    proto = joined(inputs)
    for length in (5, 8):
        ctx, plan = planned(proto)
        assert plan.reads[0].reach == shift(-before)
        assert plan.length is not None and plan.length.at(7) == 7 + before + after
        assert plan.tail == (after > 0)
        execute(ctx, made_by(ctx, "y"), plan)
        window = Window(4, 0, ctx.windows["y"].end)  # all that could be had, the frames in front too
        given = fill(ctx, wire_of(ctx, "x"), plan.reads[0].reach, None, window, plan.length)
        (made,) = made_in(ctx, made_by(ctx, "y"), plan, [given], window)
        x = frames(1, 2, length)
        wanted = run_batch(proto, x)["y"]
        np.testing.assert_array_equal(run_window(ctx, made, window, x, wanted.shape[-1]), wanted)


def test_frames_in_front_can_be_had_early_and_cost_no_delay() -> None:
    ctx, plan = planned(joined("front x"))
    execute(ctx, made_by(ctx, "y"), plan)
    assert ctx.windows["y"] == Window(4, 3, 7)
    assert wire_of(ctx, "y").known == 3, "they are the same in every stream, and what a buffer begins with"


def test_wires_of_different_lengths_side_by_side_are_required_to_agree() -> None:
    """Every second frame, and a pool of two: the same number if that is even."""
    proto = model(
        [
            node("Slice", "x zero far time two", "h"),
            node("AveragePool", "x", "p", kernel_shape=[2], strides=[2]),
            node("Concat", "h p", "y", axis=1),
        ],
        {"x": [1, 2, "T"]},
        ["y"],
        {"zero": np.array([0]), "far": np.array([1 << 40]), "time": np.array([2]), "two": np.array([2])},
    )
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    (condition,) = [c for c in ctx.ask.ledger.conditions if c.equals is not None]
    assert isinstance(condition, Condition) and condition.node == "y"
    assert [condition.met(s) for s in (6, 7, 8)] == [True, False, True]


def test_the_first_frames_once_more_in_front() -> None:
    ctx, plan = asked_rule(joined("first x", [node("Slice", "x zero two time", "first")]))
    fact = ctx.ask.facts["y"]
    assert plan is None and isinstance(fact, Wire) and fact.mirror is not None
    assert (fact.mirror.mode, fact.mirror.before) == ("repeat", 2)
    assert fact.length is not None and [fact.length.at(s) for s in (1, 2, 9)] == [2, 4, 11]


@pytest.mark.parametrize(
    ("inputs", "nodes", "reason"),
    [
        ("x h", [node("Neg", "x", "h"), node("Slice", "x zero two time", "unused")], "which never comes"),
    ],
)
def test_what_comes_behind_the_end_of_a_stream_must_be_fixed(
    inputs: str, nodes: list[onnx.NodeProto], reason: str
) -> None:
    problem = refused(joined(inputs, nodes))
    assert (problem.op, problem.node) == ("Concat", "y")
    assert reason in problem.reason


def test_a_clock_beside_data_is_repeated_for_every_stream() -> None:
    proto = model(
        [
            node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0), node("Range", "zero t one", "p"),
            node("Cast", "p", "f", to=1), node("Reshape", "f row", "row3"), node("Expand", "row3 wide", "k"),
            node("Concat", "x k", "y", axis=1),
        ],
        {"x": [1, 2, "T"]}, ["y"],
        {"time": np.array(2), "zero": np.array(0), "one": np.array(1), "row": np.array([1, 1, -1]),
         "wide": np.array([1, 1, 1])},
    )  # fmt: skip
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    x = frames(1, 2, 6)
    out = run_window(ctx, wire_of(ctx, "y").take(ctx.windows["y"]), ctx.windows["y"], x, 6)
    np.testing.assert_array_equal(out, run_batch(proto, x)["y"])
