"""Resize: which frames an interpolated one is made of, and what the factor may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.core.reach import Reach
from tests.models import model, node
from tests.unit.convert.contexts import check_plan, frames_made, planned, refused


def resize(scale: float, mode: str = "nearest", dims: Any = (1, 2, "T"), **attrs: Any) -> onnx.ModelProto:
    scales = {"scales": np.array([1, 1, scale], np.float32)}
    return model([node("Resize", "x _ scales", "y", mode=mode, **attrs)], {"x": dims}, ["y"], scales, opset=18)


@pytest.mark.parametrize("where", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [2.0, 0.5, 0.25, 1.5, 3.0])
def test_every_frame_that_batch_reads_is_reached(scale: float, mode: str, where: str) -> None:
    proto = resize(scale, mode, coordinate_transformation_mode=where)
    _, plan = planned(proto, pulse=12)
    check_plan(proto, plan, tight=False)
    reach = plan.reads[0].reach
    assert reach.ratio == scale
    assert reach.last(0) - reach.first(0) <= 7, "and not much more than those"


@pytest.mark.parametrize(
    ("how", "hi"), [("floor", Reach(1, 2, 0, 0)), ("ceil", Reach(1, 2, 0, 1)), ("round_prefer_floor", None)]
)
def test_the_nearest_frame_is_the_one_it_says(how: str, hi: Reach | None) -> None:
    proto = resize(2.0, coordinate_transformation_mode="asymmetric", nearest_mode=how)
    _, plan = planned(proto)
    check_plan(proto, plan)
    assert hi is None or plan.reads[0].reach.last(1) == hi.last(1)


def test_a_factor_of_one_is_frame_by_frame() -> None:
    _, plan = planned(resize(1.0, "linear"))
    assert plan.reads[0].reach.pointwise and plan.reads[0].fill is None


def test_beyond_the_ends_the_nearest_frame_goes_on() -> None:
    fill = planned(resize(2.0, "linear"))[1].reads[0].fill
    assert fill is not None and fill.mode == "edge" and fill.past == 1


def test_sizes_that_are_a_multiple_at_every_length_are_a_factor() -> None:
    proto = model(
        [node("Shape", "x", "dims"), node("Mul", "dims by", "sizes"), node("Resize", "x _ _ sizes", "y")],
        {"x": [1, 2, "T"]},
        ["y"],
        {"by": np.array([1, 1, 3])},
        opset=18,
    )
    _, plan = planned(proto)
    assert plan.length is not None and plan.length.at(7) == frames_made(proto, 7) == 21


def test_a_factor_that_float32_rounds_is_worked_out_by_the_clock_and_ends() -> None:
    """160/147: the runtime's places are not those of fractions, so they follow from the position."""
    ctx, plan = planned(resize(160 / 147, "linear"), pulse=147)
    assert plan.reads[0].fill is None, "places are held inside the stream by hand"
    bounds = [c.at_most for c in ctx.ask.ledger.conditions if c.at_most is not None]
    assert bounds == [1 << 22]
    assert any(c.scaled is not None for c in ctx.ask.ledger.conditions)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (resize(2.0, "linear", coordinate_transformation_mode="align_corners"), "align_corners every position depends"),
        (resize(0.5, "linear", antialias=1), "antialias and exclude_outside"),
        (resize(0.7071067, "linear"), "is no simple fraction"),
    ],
)
def test_places_that_follow_the_length_are_refused(proto: onnx.ModelProto, reason: str) -> None:
    problem = refused(proto, pulse=12)
    assert (problem.op, problem.node) == ("Resize", "y")
    assert reason in problem.reason


def test_a_size_that_is_no_multiple_is_refused() -> None:
    proto = model(
        [node("Shape", "x", "dims"), node("Add", "dims by", "sizes"), node("Resize", "x _ _ sizes", "y")],
        {"x": [1, 2, "T"]},
        ["y"],
        {"by": np.array([0, 0, 3])},
        opset=18,
    )
    assert "factor depends on the total length" in refused(proto).reason


def test_a_stream_that_would_shrink_to_one_frame_is_turned_down_where_that_has_rules_of_its_own() -> None:
    ctx, plan = planned(resize(0.5, "linear", coordinate_transformation_mode="pytorch_half_pixel"))
    assert plan.length is not None
    assert [all(c.met(s) for c in ctx.ask.ledger.conditions) for s in (3, 4)] == [False, True]
