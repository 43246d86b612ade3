"""Reshapes: time kept, merged, split and folded; blocks of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.core.reach import Reach
from pulsify.plan.plan import execute
from tests.models import frames, model, node, run_batch
from tests.unit.convert.contexts import check_plan, made_by, planned, refused, run_window, wire_of


def reshape(dims: Any, target: list[int]) -> onnx.ModelProto:
    return model([node("Reshape", "x to", "y")], {"x": dims}, ["y"], {"to": np.array(target)})


@pytest.mark.parametrize(
    ("dims", "target", "axes", "reach", "lengths"),
    [
        ((1, 4, "T"), [2, 2, -1], (2, 2), Reach(), (9, 10)),
        ((1, "T", 6), [1, -1, 2, 3], (1, 1), Reach(), (9, 10)),
        ((1, "T", 6), [1, -1, 2], (1, 1), Reach(1, 3, 0, 0), (9, 10)),  # a frame of six becomes three of two
        ((1, "T", 2), [1, -1, 6], (1, 1), Reach(3, 1, 0, 2), (9, 12)),  # three frames are stacked
        ((1, "T", 4), [1, -1, 6], (1, 1), Reach(3, 2, 0, 2), (9, 12)),  # three frames of four are two of six
    ],
)
def test_elements_are_regrouped_into_frames(
    dims: Any, target: list[int], axes: tuple[int, int], reach: Reach, lengths: tuple[int, ...]
) -> None:
    proto = reshape(dims, target)
    ctx, plan = planned(proto, pulse=12)
    assert plan.reads[0].reach == reach and plan.regroups
    check_plan(proto, plan, lengths, axes, tight=reach.den != 2)
    execute(ctx, made_by(ctx, "y"), plan)
    window, x = ctx.windows["y"], frames(*(12 if d == "T" else d for d in dims))
    wanted = run_batch(proto, x)["y"]
    if axes[0] == axes[1]:
        out = run_window(ctx, wire_of(ctx, "y").take(window), window, x, wanted.shape[axes[1]], axes[1])
        np.testing.assert_array_equal(out, wanted)


def test_stacking_needs_a_multiple() -> None:
    ctx, _ = planned(reshape((1, "T", 2), [1, -1, 6]), pulse=3)
    assert [all(c.met(s) for c in ctx.ask.ledger.conditions) for s in (9, 10, 12)] == [True, False, True]


def test_rows_in_front_are_folded_with_time() -> None:
    _, plan = planned(reshape((3, "T", 4), [-1, 4]))
    layout = plan.layouts[0]
    assert layout is not None and layout.folded and (layout.outer, layout.axis) == ((3, 3), 0)
    assert layout.shape(5) == [15, 4]


def test_a_free_batch_is_folded_with_time_as_it_comes() -> None:
    _, plan = planned(reshape(("B", "T", 4), [-1, 4]))
    layout = plan.layouts[0]
    assert layout is not None and layout.outer == (3, 2) and layout.shape(5) == [-1, 4]


def test_what_reads_across_time_folded_with_rows_is_refused() -> None:
    proto = model(
        [node("Reshape", "x to", "h"), node("Pad", "h pads", "y")],
        {"x": [3, "T", 4]},
        ["y"],
        {"to": np.array([-1, 4]), "pads": np.array([1, 0, 0, 0])},
    )
    problem = refused(proto)
    assert (problem.op, problem.node) == ("Pad", "y")
    assert "merged with another axis" in problem.reason


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Flatten", "x", "y", axis=0)], "merged with another axis"),
        (
            [node("Transpose", "x", "h", perm=[1, 2, 0]), node("Reshape", "h to", "y")],
            "time and batch are merged (T*B) in this Reshape",
        ),
    ],
)
def test_time_that_would_be_lost_is_refused(nodes: list[onnx.NodeProto], reason: str) -> None:
    given = {"to": np.array([-1])} if len(nodes) > 1 else {}
    problem = refused(model(nodes, {"x": ["B", "T", 4]}, ["y"], given))
    assert problem.node == "y" and reason in problem.reason


def test_an_axis_of_one_comes_and_goes_frame_by_frame() -> None:
    proto = model(
        [node("Unsqueeze", "x last", "h"), node("Squeeze", "h last", "y")],
        {"x": [1, 2, "T"]},
        ["y"],
        {"last": np.array([3])},
    )
    ctx, plan = planned(proto)
    assert plan.reads[0].reach.pointwise and plan.layouts[0] is not None and plan.layouts[0].sizes == (1, 2, 0)
    assert not ctx.ask.ledger.conditions


def test_squeezing_every_axis_of_one_needs_more_than_one_frame() -> None:
    ctx, _ = planned(model([node("Squeeze", "x", "y")], {"x": [1, 2, "T"]}, ["y"]))
    assert [all(c.met(s) for c in ctx.ask.ledger.conditions) for s in (1, 2)] == [False, True]


def test_a_shape_that_is_not_what_it_looks_like_at_every_length_is_refused() -> None:
    """[T, 2, 1 or 2 in turn ...]: where it changes past the traced lengths, that is found out."""
    proto = model(
        [
            node("Shape", "x", "dims"), node("Gather", "dims one", "t", axis=0), node("Greater", "t far", "late"),
            node("Cast", "late", "more", to=7), node("Add", "more one", "n"), node("Reshape", "n row", "n1"),
            node("Div", "four n1", "rest"), node("Concat", "one1 minus n1 rest", "to", axis=0),
            node("Reshape", "x to", "y"),
        ],
        {"x": [1, "T", 4]}, ["y"],
        {"one": np.array(1), "far": np.array(5000), "row": np.array([1]), "four": np.array([4]),
         "one1": np.array([1]), "minus": np.array([-1])},
    )  # fmt: skip
    problem = refused(proto)
    assert (problem.op, problem.node) == ("Reshape", "y")
    assert "changes with the length of the stream" in problem.reason


def blocks(op: str, dims: Any) -> onnx.ModelProto:
    return model([node(op, "x", "y", blocksize=2)], {"x": dims}, ["y"])


def test_blocks_unfold_into_time_and_back() -> None:
    for op, dims, reach in (
        ("DepthToSpace", (1, 8, 2, "T"), Reach(1, 2)),
        ("SpaceToDepth", (1, 2, 2, "T"), Reach(2, 1, 0, 1)),
    ):
        proto = blocks(op, dims)
        ctx, plan = planned(proto)
        assert plan.reads[0].reach == reach
        check_plan(proto, plan, (8, 10))
        if op == "SpaceToDepth":
            assert [all(c.met(s) for c in ctx.ask.ledger.conditions) for s in (8, 9)] == [True, False]
