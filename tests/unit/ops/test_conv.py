"""Convolutions: how far a frame reaches and how many there are, against what batch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.core.reach import Reach
from pulsify.core.spec import Condition
from tests.models import model, node, weights
from tests.unit.convert.contexts import check_plan, planned, refused


def conv(kernel: int = 3, op: str = "Conv", dims: Any = (1, 2, "T"), **attrs: Any) -> onnx.ModelProto:
    w = weights(3, 2, kernel) if op == "Conv" else weights(2, 3, kernel)
    return model([node(op, "x w", "y", **attrs)], {"x": dims}, ["y"], {"w": w})


@pytest.mark.parametrize(
    ("kernel", "attrs", "reach"),
    [
        (3, {}, Reach(1, 1, 0, 2)),
        (3, {"pads": [1, 1]}, Reach(1, 1, -1, 1)),
        (3, {"pads": [2, 0]}, Reach(1, 1, -2, 0)),
        (3, {"dilations": [2], "pads": [4, 0]}, Reach(1, 1, -4, 0)),
        (4, {"strides": [2]}, Reach(2, 1, 0, 3)),
        (3, {"strides": [4], "pads": [1, 1]}, Reach(4, 1, -1, 1)),
        (1, {"strides": [3]}, Reach(3, 1, 0, 0)),
        (3, {"auto_pad": "SAME_UPPER"}, Reach(1, 1, -1, 1)),
        (4, {"auto_pad": "SAME_UPPER"}, Reach(1, 1, -1, 2)),
        (4, {"auto_pad": "SAME_LOWER"}, Reach(1, 1, -2, 1)),
        (3, {"auto_pad": "VALID"}, Reach(1, 1, 0, 2)),
    ],
)
def test_a_frame_reaches_over_the_kernel(kernel: int, attrs: dict[str, Any], reach: Reach) -> None:
    proto = conv(kernel, **attrs)
    _, plan = planned(proto)
    assert plan.reads[0].reach == reach
    check_plan(proto, plan)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        (4, {"strides": [2]}),
        (4, {"strides": [2], "pads": [1, 1]}),
        (3, {"strides": [3]}),
        (2, {"strides": [3], "output_padding": [1]}),
        (5, {"strides": [2], "output_padding": [1], "pads": [2, 1]}),
        (3, {"strides": [2], "dilations": [3]}),
        (3, {}),
    ],
)
def test_a_transposed_one_reads_the_frames_that_cover_it(kernel: int, attrs: dict[str, Any]) -> None:
    proto = conv(kernel, "ConvTranspose", **attrs)
    _, plan = planned(proto)
    check_plan(proto, plan, tight=kernel >= attrs.get("strides", [1])[0])


def test_a_stream_shorter_than_the_kernel_does_not_exist() -> None:
    ctx, plan = planned(conv(5))
    assert plan.length is not None
    assert Condition("y", plan.length, at_least=1) in ctx.ask.ledger.conditions
    assert [c.met(s) for c in ctx.ask.ledger.conditions for s in (4, 5)] == [False, True]


def test_quantised_padding_holds_the_zero_point() -> None:
    proto = model(
        [node("ConvInteger", "x w zero", "y", pads=[1, 1])],
        {"x": [1, 2, "T"]},
        ["y"],
        {"w": np.ones((3, 2, 3), np.uint8), "zero": np.array(7, np.uint8)},
        dtypes={"x": np.uint8, "y": np.int32},
    )
    fill = planned(proto)[1].reads[0].fill
    assert fill is not None and fill.value == 7


def test_time_on_the_second_spatial_axis_is_followed() -> None:
    proto = model(
        [node("Conv", "x w", "y", pads=[0, 2, 0, 0], strides=[1, 2])],
        {"x": [1, 2, 5, "T"]},
        ["y"],
        {"w": weights(3, 2, 3, 3)},
    )
    _, plan = planned(proto)
    assert plan.reads[0].reach == Reach(2, 1, -2, 0)
    check_plan(proto, plan)


def test_time_on_the_batch_axis_is_frame_by_frame() -> None:
    _, plan = planned(conv(3, dims=("T", 2, 8)))
    assert plan.reads[0].reach.pointwise and plan.length is not None and plan.length.rate == 1


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (conv(3, auto_pad="SAME_UPPER", strides=[2]), "pads the start differently depending on the length"),
        (conv(3, auto_pad="SAME_UPPER", dilations=[2]), "leaves the dilation out"),
        (conv(3, "ConvTranspose", output_shape=[40], strides=[2]), "its output shape is written down"),
    ],
)
def test_padding_that_follows_the_length_is_refused(proto: onnx.ModelProto, reason: str) -> None:
    problem = refused(proto)
    assert problem.node == "y" and reason in problem.reason


def test_the_lengths_at_which_auto_pad_is_regular_can_be_declared() -> None:
    ctx, plan = planned(conv(3, auto_pad="SAME_UPPER", strides=[2]), set={"T": "2*n"})
    assert plan.reads[0].reach == Reach(2, 1, 0, 2)
    assert plan.length is not None and plan.length.at(10) == 5
    assert ctx.ask.traces.tracer.time.step == 2


def test_a_kernel_that_is_data_is_refused() -> None:
    proto = model([node("Conv", "z x", "y")], {"x": ["T", 2, 3], "z": [1, 2, 9]}, ["y"])
    problem = refused(proto)
    assert (problem.op, problem.node) == ("Conv", "y")
    assert "its kernel varies over time" in problem.reason
