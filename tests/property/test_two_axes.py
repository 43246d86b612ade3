"""What was found where an operator works over time and another axis at once, made small: [1, 3, T, F] and its like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import Array, frames, model, node, weights
from tests.side import Batch

LENGTHS = (1, 2, 3, 5, 6, 9, 16)
BACK_ENDS: dict[str, dict[str, Any]] = {"ort": {}, "torch": {"backend": "torch", "device": "cpu"}}


@dataclass(frozen=True)
class Case:
    nodes: Sequence[onnx.NodeProto]
    known: Mapping[str, Array] = field(default_factory=dict)
    dims: tuple[int | str, ...] = (1, 3, "T", 6)
    opset: int = 19

    @property
    def axis(self) -> int:
        return self.dims.index("T")

    def proto(self) -> onnx.ModelProto:
        return model(self.nodes, {"x": self.dims}, ["y"], self.known, opset=self.opset)

    def data(self, length: int) -> Array:
        return frames(*(length if d == "T" else 2 if d == "B" else int(d) for d in self.dims), seed=length)


def stream_of(case: Case, pulse: int) -> pulsify.Stream:
    try:
        return pulsify.stream(case.proto(), pulse=pulse, time={"x": case.axis}, verify=False)
    except pulsify.InvalidPulse as error:
        return pulsify.stream(case.proto(), pulse=pulse * error.granularity, time={"x": case.axis}, verify=False)


def check(case: Case, back_end: str, pulse: int = 4) -> None:
    """With NaN behind the end; every length that batch takes is taken."""
    stream, batch = stream_of(case, pulse), Batch(case.proto(), optimize=False)
    axis, compared = stream.outputs[0].axis, 0
    several = 2 if "B" in case.dims else None
    session = stream.session(padding=math.nan, batch=several, **BACK_ENDS[back_end])
    for length in LENGTHS:
        x = case.data(length)
        want = batch.attempt({"x": x})
        if want is None or not want["y"].size:
            continue
        session.reset()
        begun, rest = session.push(x), session.flush()
        got = rest if axis is None else np.concatenate([begun, rest], axis)
        np.testing.assert_allclose(got, want["y"], rtol=0, atol=1e-5, err_msg=f"{length} frames")
        compared += 1
    assert compared > 1


# ---- Pad over time and another axis, read by what has pads of its own


READERS = {
    "conv": node("Conv", "p w", "y", pads=[1, 0, 0, 0]),
    "average": node("AveragePool", "p", "y", kernel_shape=[2, 1], pads=[1, 0, 1, 0], count_include_pad=1),
    "lp": node("LpPool", "p", "y", kernel_shape=[2, 1], pads=[1, 0, 0, 0]),
}


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("mode", "time", "other"),
    [
        ("edge", (1, 0), (1, 1)),  # frames shown again went on in front, where the reader's zeros should be
        ("reflect", (1, 0), (1, 1)),
        ("edge", (2, 1), (0, -1)),
        ("reflect", (2, 2), (1, 0)),
        ("constant", (0, 0), (1, 1)),  # a value beside zeros is there in front of the stream, too
        ("constant", (1, 1), (2, 0)),
        ("constant", (-2, 0), (0, 0)),  # frames cut in front were read as if they were padding
        ("constant", (-1, 1), (1, 0)),
        ("edge", (-1, 1), (1, 0)),
    ],
)
def test_pads_over_two_axes(
    mode: str, time: tuple[int, int], other: tuple[int, int], reader: str, back_end: str
) -> None:
    amounts = np.array([0, 0, time[0], other[0], 0, 0, time[1], other[1]])
    known = {"pads": amounts, "value": np.array(1.5, np.float32), "w": weights(3, 3, 2, 1)}
    inputs = "x pads value" if mode == "constant" else "x pads"
    check(Case([node("Pad", inputs, "p", mode=mode), READERS[reader]], known), back_end)


@pytest.mark.parametrize("opset", [17, 22])
def test_zeros_in_front_of_a_pool_are_no_pads_of_it(opset: int) -> None:
    """ONNX Runtime makes one node of them, where zeros no longer count, nor may there be more than the kernel has."""
    known = {"pads": np.array([0, 0, 0, 1, 0, 0, 0, 2])}
    pool = node("MaxPool", "p", "y", kernel_shape=[1, 2], strides=[1, 2])
    below = [node("Abs", "x", "a"), node("Neg", "a", "n"), node("Pad", "n pads", "p"), pool]
    check(Case(below, known, opset=opset), "ort")


# ---- sizes that shape inference gets otherwise than the runtime


def pooled(op: str, **attrs: Any) -> Case:
    return Case([node(op, "x", "y", **attrs)])


def resized(size: int, scale: float = 1.0, to: int = 0, dims: tuple[int | str, ...] = (), **attrs: Any) -> Case:
    dims = (*(dims or (1, 3, "T")), size)
    if not to:
        return Case([node("Resize", "x _ s", "y", **attrs)], {"s": np.array([1, 1, 1, scale], np.float32)}, dims)
    sizes = [node("Shape", "x", "d", end=3), node("Concat", "d g", "s", axis=0)]
    return Case([*sizes, node("Resize", "x _ _ s", "y", **attrs)], {"g": np.array([to])}, dims)


def turned(start: int, stop: int, step: int) -> Case:
    known = {n: np.array([v]) for n, v in zip("abcd", (start, stop, 3, step), strict=True)}
    return Case([node("Slice", "x a b c d", "z"), node("ReduceSum", "z c", "y")], known)


def transposed(auto: str, dims: tuple[int | str, ...] = ("T", 3, 6)) -> Case:
    n = len(dims) - 2
    attrs = {"strides": [2] * n, "auto_pad": auto, "output_padding": [1] * n}
    return Case([node("ConvTranspose", "x w", "y", **attrs)], {"w": weights(3, 2, *[4] * n)}, dims)


SIZES = {
    "max_ceil": pooled("MaxPool", kernel_shape=[1, 2], strides=[1, 3], pads=[0, 0, 0, 1], ceil_mode=1),
    "max_ceil_one": pooled("MaxPool", kernel_shape=[1, 1], strides=[1, 2], ceil_mode=1),
    "max_ceil_both": pooled("MaxPool", kernel_shape=[2, 3], strides=[2, 4], pads=[1, 0, 0, 2], ceil_mode=1),
    "average_ceil": pooled(
        "AveragePool", kernel_shape=[2, 1], strides=[1, 3], pads=[1, 0, 1, 0], ceil_mode=1, count_include_pad=1
    ),
    "average_ceil_over": pooled(
        "AveragePool", kernel_shape=[1, 4], strides=[1, 3], pads=[0, 1, 0, 1], ceil_mode=1, count_include_pad=1
    ),
    "lp_ceil": pooled("LpPool", kernel_shape=[1, 2], strides=[1, 3], pads=[0, 0, 0, 1], ceil_mode=1),
    "frames_first": Case(
        [node("AveragePool", "x", "y", kernel_shape=[2], strides=[3], pads=[0, 1], ceil_mode=1)], dims=("T", 4, 6)
    ),
    "whole_ceil": Case(
        [node("ReduceMax", "x a", "m"), node("MaxPool", "m", "y", kernel_shape=[1, 1], strides=[1, 2], ceil_mode=1)],
        {"a": np.array([2])},
    ),
    "resize_rounds": resized(10, 0.7, coordinate_transformation_mode="asymmetric"),
    "resize_rounds_linear": resized(10, 0.7, mode="linear"),
    "resize_rounds_batch": resized(10, 0.7, dims=("B", 3, "T"), mode="linear"),
    "resize_stays": resized(8, 1.1, mode="linear"),
    "resize_whole": Case(
        [node("ReduceMax", "x a", "m"), node("Resize", "m _ s", "y")],
        {"a": np.array([2]), "s": np.array([1, 1, 1, 0.7], np.float32)},
        (1, 3, "T", 10),
    ),
    "resize_to": resized(3, to=5, mode="linear"),
    "resize_to_many": resized(7, to=31),
    "resize_to_batch": resized(7, to=31, dims=("B", 3, "T")),
    "resize_time_too": Case(
        [node("Resize", "x _ s", "y", mode="linear")], {"s": np.array([1, 1, 2, 0.7], np.float32)}, (1, 3, "T", 10)
    ),
    "slice_backwards": turned(100, -100, -1),
    "slice_backwards_by_two": turned(100, -100, -2),
    "transposed_upper": transposed("SAME_UPPER"),
    "transposed_lower": transposed("SAME_LOWER"),
    "transposed_over_time": transposed("SAME_LOWER", (1, 3, "T", 6)),
}


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_those_of_the_runtime(case: str, back_end: str) -> None:
    check(SIZES[case], back_end)
    check(SIZES[case], back_end, pulse=2)


def test_a_size_that_cannot_be_told_is_refused() -> None:
    """A little less than 11/6: the runtime makes 11 of 6 all the same, and told 11 it would take another factor."""
    case = resized(6, float(np.nextafter(np.float32(11 / 6), np.float32(0))))
    assert Batch(case.proto()).run({"x": case.data(3)})["y"].shape[-1] == 11
    with pytest.raises(pulsify.NotStreamable, match="rounded otherwise") as raised:
        stream_of(case, 4)
    assert raised.value.op == "Resize" and raised.value.node == "y"


# ---- interpolation beside time: frames do not touch each other


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    ("dims", "scales"),
    [
        ((1, 3, "T", 5), (1, 1, 1, 2)),
        (("B", 3, "T", 5), (1, 1, 1, 0.5)),
        ((1, 3, 5, "T"), (1, 1, 2, 1)),
        (("B", 3, 5, "T"), (1, 1, 1.5, 1)),
        (("T", 3, 5, 4), (1, 1, 2, 1.5)),
        ((1, "T", 5, 4), (1, 1, 2, 1.5)),
    ],
)
def test_padding_does_not_reach_real_frames(
    dims: tuple[int | str, ...], scales: tuple[float, ...], mode: str, back_end: str
) -> None:
    """0 * NaN is NaN: the runtime interpolates over the last axes together, by weights of zero along time."""
    check(Case([node("Resize", "x _ s", "y", mode=mode)], {"s": np.array(scales, np.float32)}, dims), back_end)


# ---- SAME pads that cut


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("opset", [18, 19, 22])
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
def test_same_pads_of_a_kernel_shorter_than_its_stride(op: str, opset: int, auto: str, back_end: str) -> None:
    """An AveragePool of opset 19 and later takes all lengths, those of which a frame is left over too."""
    pool = node(op, "x", "y", kernel_shape=[1, 3], strides=[2, 2], auto_pad=auto)
    check(Case([pool], opset=opset), back_end)


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "Conv"])
def test_same_pads_that_cut_in_front(op: str, auto: str, back_end: str) -> None:
    """Five entries of which one or two are looked at: the runtime looks in the middle."""
    for kernel, stride in ((1, 5), (2, 5), (1, 3)):
        size = [] if op == "Conv" else [kernel]
        attrs: dict[str, Any] = {"strides": [stride], "auto_pad": auto} | ({"kernel_shape": size} if size else {})
        known = {"w": weights(2, 3, kernel)} if op == "Conv" else {}
        check(Case([node(op, "x w" if known else "x", "y", **attrs)], known, ("T", 3, 6 - (stride == 5))), back_end)


def test_same_pads_with_gaps_are_refused_beside_time_too() -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER")
    with pytest.raises(pulsify.NotStreamable, match="leaves the dilation out"):
        stream_of(Case([pool], dims=("T", 3, 6)), 4)
