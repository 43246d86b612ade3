"""Operators of old opsets mean what they meant, whatever ONNX's converter makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import pulsify
from tests.models import frames, model, node, run_batch


def streamed(nodes: list[Any], held: dict[str, Any], dims: list[Any], opset: int, length: int) -> None:
    proto = model(nodes, {"x": dims}, ["y"], held, opset=opset)
    at = dims.index("T")
    x = frames(*(length if d == "T" else d for d in dims))
    stream = pulsify.stream(proto, time={"x": at}, verify=False)
    want = run_batch(proto, x)["y"]
    for padding in (0.0, np.nan):
        session = stream.session(padding=padding)
        got = [session.push(part) for part in np.array_split(x, 3, at)]
        np.testing.assert_allclose(np.concatenate([*got, session.flush()], at), want, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("scale", [2.0, 1.7, 0.5, 0.6, 0.8])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_places_are_asymmetric(op: str, opset: int, scale: float, mode: str) -> None:
    if op == "Upsample" and scale < 1:
        pytest.skip("it only makes more")
    held = {"s": np.array([1, 1, 1, scale], np.float32)}
    streamed([node(op, "x s", "y", mode=mode)], held, [1, "T", 4, 6], opset, 11)


def test_scales_as_an_attribute() -> None:
    nodes = [node("Upsample", "x", "y", mode="nearest", scales=[1.0, 1.0, 1.0, 2.0])]
    streamed(nodes, {}, [1, "T", 4, 6], 7, 11)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_over_time(mode: str) -> None:
    streamed([node("Upsample", "x s", "y", mode=mode)], {"s": np.array([1, 1, 2], np.float32)}, [1, 2, "T"], 9, 11)


@pytest.mark.parametrize("scales", [[1, 1, 0.5], [1, 0.7, 2]])
def test_nearest_rounds_up_where_it_shrinks(scales: list[float]) -> None:
    held = {"s": np.array(scales, np.float32)}
    streamed([node("Resize", "x s", "y", mode="nearest")], held, [1, 7, "T"], 10, 12)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_one_maximum_of_all_axes_behind(axis: int) -> None:
    streamed([node("Hardmax", "x", "y", axis=axis)], {}, ["T", 4, 6], 11, 11)


def test_scales_that_are_no_constant_are_named() -> None:
    nodes = [node("Mul", "s two", "t"), node("Resize", "x t", "y", mode="nearest")]
    held = {"two": np.array(2, np.float32)}
    proto = model(nodes, {"x": [1, 2, "T"], "s": [3]}, ["y"], held, opset=10)
    with pytest.raises(
        pulsify.InvalidModel, match=r"^Resize 'y' of an opset before 11 has scales that are no constant"
    ):
        pulsify.stream(proto)


def test_inside_a_branch() -> None:
    then = helper.make_graph(
        [node("Hardmax", "x", "a", axis=1)], "then", [], [helper.make_empty_tensor_value_info("a")]
    )
    other = helper.make_graph([node("Neg", "x", "b")], "else", [], [helper.make_empty_tensor_value_info("b")])
    proto = model([node("If", "yes", "y", then_branch=then, else_branch=other)], {"x": ["T", 4, 6]}, ["y"],
                  {"yes": np.array(True)}, opset=11)  # fmt: skip
    x = frames(11, 4, 6)
    stream = pulsify.stream(proto, time={"x": 0}, verify=False)
    np.testing.assert_allclose(stream.run(x, chunks=3), run_batch(proto, x)["y"], atol=1e-6)
