"""Pools: windows as of a convolution, with what counts beyond the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.facts import Window
from pulsify.core.reach import Reach
from pulsify.plan.plan import execute
from tests.models import frames, model, node, run_batch
from tests.unit.convert.contexts import check_plan, frames_made, made_by, planned, refused, run_window, wire_of


def pool(op: str = "MaxPool", dims: Any = (1, 2, "T"), outputs: str = "y", **attrs: Any) -> onnx.ModelProto:
    return model([node(op, "x", outputs, **attrs)], {"x": dims}, ["y"], opset=19)


@pytest.mark.parametrize(
    ("attrs", "reach"),
    [
        ({"kernel_shape": [3]}, Reach(1, 1, 0, 2)),
        ({"kernel_shape": [3], "pads": [1, 1]}, Reach(1, 1, -1, 1)),
        ({"kernel_shape": [2], "strides": [2]}, Reach(2, 1, 0, 1)),
        ({"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, Reach(2, 1, -1, 1)),
        ({"kernel_shape": [2], "dilations": [3]}, Reach(1, 1, 0, 3)),
        ({"kernel_shape": [3], "auto_pad": "SAME_UPPER"}, Reach(1, 1, -1, 1)),
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_frame_reaches_over_the_kernel(op: str, attrs: dict[str, Any], reach: Reach) -> None:
    proto = pool(op, **attrs)
    _, plan = planned(proto)
    assert plan.reads[0].reach == reach
    check_plan(proto, plan, tight=op == "AveragePool")


@pytest.mark.parametrize(("kernel", "stride", "pads"), [(3, 2, (0, 0)), (3, 3, (1, 1)), (2, 3, (0, 0)), (4, 3, (2, 0))])
def test_ceil_mode_rounds_the_number_of_frames_up(kernel: int, stride: int, pads: tuple[int, int]) -> None:
    proto = pool(kernel_shape=[kernel], strides=[stride], pads=list(pads), ceil_mode=1)
    _, plan = planned(proto, pulse=stride)
    assert plan.length is not None
    for length in range(6, 16):
        assert plan.length.at(length) == frames_made(proto, length)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_an_average_at_the_ends_counts_the_frames_that_are_there(include: int, ceil: int) -> None:
    attrs = {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "count_include_pad": include, "ceil_mode": ceil}
    proto = pool("AveragePool", **attrs)
    ctx, plan = planned(proto)
    execute(ctx, made_by(ctx, "y"), plan)
    window = ctx.windows["y"]
    assert window == Window(2, 0, 2)
    for length in (9, 10):
        ctx, plan = planned(proto)
        execute(ctx, made_by(ctx, "y"), plan)
        x = frames(1, 2, length)
        wanted = run_batch(proto, x)["y"]
        out = run_window(ctx, wire_of(ctx, "y").take(window), window, x, wanted.shape[-1])
        np.testing.assert_allclose(out, wanted, atol=1e-6)


def test_time_on_a_batch_or_channel_axis_is_frame_by_frame() -> None:
    for dims in (("T", 2, 8), (1, "T", 8)):
        _, plan = planned(pool(dims=dims, kernel_shape=[3]))
        assert plan.reads[0].reach.pointwise


def test_places_counted_over_the_whole_stream_are_refused() -> None:
    proto = model(
        [node("MaxPool", "x", "y places", kernel_shape=[3])],
        {"x": [1, 2, "T"]},
        ["y", "places"],
        dtypes={"places": np.int64},
    )
    problem = refused(proto)
    assert (problem.op, problem.node) == ("MaxPool", "y")
    assert "count over the whole stream" in problem.reason
