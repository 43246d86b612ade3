"""The two ends of a stream, at every length: what is put in front of or behind frames that are shown again, pads that
follow the length, places that float32 rounds, and types that cannot be selected from.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import pulsify
from tests.property.check import Batch, valid
from tests.property.graph import LARGE, Array, Graph, Tensor
from tests.property.hunt_edges import NEAREST, PULSES, chain, check_lengths, hunt

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 300))
FEW = 12
FOUND = [201, 436, 557, 2839]  # seeds whose graphs were wrong once
Build = Callable[[Graph, Tensor], Tensor]


def stream_equals_batch(build: Build, **known: Any) -> None:
    """At every pulse that fits and every length."""
    graph = Graph()
    made = build(graph, graph.input)
    for name, value in known.items():
        setattr(graph, name, value)
    assert check_lengths(graph, made, PULSES)["lengths"]


def pad(graph: Graph, x: Tensor, before: int, after: int, mode: str, value: int | None = None) -> Tensor:
    fill = [] if value is None else [graph.const(np.array(value), graph.dtype)]
    return x.but(graph.op("Pad", x, graph.ints(0, 0, before, 0, 0, after), *fill, mode=mode))


def resize(graph: Graph, x: Tensor, factor: float, **attrs: Any) -> Tensor:
    return x.but(graph.op("Resize", x, "", graph.const(np.array([1, 1, factor]), np.float32), **attrs))


# ---- behind and in front of frames that are shown again


@pytest.mark.parametrize("mode", ["edge", "reflect"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_constant_pad_behind_shown_frames(mode: str, stride: int) -> None:
    """The second pad read frame by frame, so it was moved in front of the first; its own frames were lost."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        x = pad(graph, pad(graph, x, 2, 1, mode), 0, 2, "constant", 5)
        return x.but(graph.op("Conv", x, graph.weights(2, 2, 3), strides=[stride]))

    stream_equals_batch(build)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
@pytest.mark.parametrize("after", [0, 1])
def test_constant_frames_behind_shown_frames(mode: str, after: int) -> None:
    def build(graph: Graph, x: Tensor) -> Tensor:
        x = pad(graph, x, 2, after, mode)
        x = x.but(graph.op("Concat", x, graph.weights(1, 2, 2), axis=2))
        return x.but(graph.op("Slice", x, graph.ints(0), graph.ints(LARGE), graph.ints(2), graph.ints(2)))

    stream_equals_batch(build)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
@pytest.mark.parametrize(("kernel", "pads"), [(1, [0, 2]), (1, [1, 1]), (3, [1, 1]), (3, [0, 2])])
def test_padded_conv_behind_shown_frames(mode: str, kernel: int, pads: list[int]) -> None:
    def build(graph: Graph, x: Tensor) -> Tensor:
        x = pad(graph, x, 2, 1, mode)
        return x.but(graph.op("Conv", x, graph.weights(2, 2, kernel), pads=pads))

    stream_equals_batch(build)


@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("before", [1, 3])
def test_edge_in_front_of_mirrored_frames(nearest: str, before: int) -> None:
    """Frame 0, shown again in front, is itself a later frame, which was not waited for."""
    stream_equals_batch(
        lambda g, x: resize(g, pad(g, x, before, 0, "reflect"), 2, mode="nearest", nearest_mode=nearest)
    )


def test_cut_behind_shown_frames() -> None:
    """What is cut off behind is no reason to wait for the frames in front."""
    stream_equals_batch(lambda g, x: x.but(g.op("Slice", pad(g, x, 2, 1, "reflect"), g.ints(0), g.ints(-2), g.ints(2))))


def test_first_frames_in_front_and_constant_ones_behind() -> None:
    """The constant frames were shown again as if they were the stream's own."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        for count in (2, 3):
            front = graph.op("Slice", x, graph.ints(0), graph.ints(count), graph.ints(2))
            x = x.but(graph.op("Concat", front, x, graph.weights(1, 2, 3), axis=2))
        return x

    stream_equals_batch(build)


def test_cut_behind_fewer_first_frames_than_asked_for() -> None:
    """Short streams have fewer frames to show again: a frame came out before it was known that it would exist."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        x = x.but(graph.op("Slice", x, graph.ints(0), graph.ints(-2), graph.ints(2)))
        front = graph.op("Slice", x, graph.ints(0), graph.ints(3), graph.ints(2))
        x = x.but(graph.op("Concat", front, x, graph.weights(1, 2, 1), axis=2))
        return x.but(graph.op("Slice", x, graph.ints(0), graph.ints(-3), graph.ints(2)))

    stream_equals_batch(build)


@pytest.mark.parametrize(("stride", "extra"), [(2, 0), (2, 1), (3, 2)])
def test_transposed_conv_of_no_frames(stride: int, extra: int) -> None:
    """ONNX Runtime makes frames of none, but not if more are to be added to them."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        x = x.but(graph.op("Slice", x, graph.ints(3), graph.ints(LARGE), graph.ints(2)))
        weight = graph.weights(2, 2, 5)
        return x.but(graph.op("ConvTranspose", x, weight, strides=[stride], output_padding=[extra]))

    stream_equals_batch(build)


# ---- SAME pads


@pytest.mark.parametrize("op", ["Conv", "LpPool", "AveragePool", "MaxPool"])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (2, 5)])
def test_same_pads_of_a_kernel_shorter_than_the_stride(op: str, auto: str, kernel: int, stride: int) -> None:
    """Pads are negative at some lengths: frames are cut, other ones by Conv than by LpPool; the others do not run."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        weight = [graph.weights(2, 2, kernel)] if op == "Conv" else []
        extra = {"p": 1} if op == "LpPool" else {}
        return x.but(graph.op(op, x, *weight, kernel_shape=[kernel], strides=[stride], auto_pad=auto, **extra))

    graph = Graph()
    made = build(graph, graph.input)
    firsts = second_frames(graph, made, range(4 * stride, 6 * stride))
    if len(firsts) > 1:  # where it starts is known at the end only
        with pytest.raises(pulsify.NotStreamable, match="pads the start differently"):
            pulsify.stream(graph.model([made]), verify=False)
    else:
        stream_equals_batch(build)


def second_frames(graph: Graph, made: Tensor, lengths: range) -> set[bytes]:
    """What batch makes of the first frames of one and the same input, at all lengths that it takes."""
    x = np.random.default_rng(0).normal(size=(1, 2, lengths[-1])).astype(np.float32)
    batch = Batch(graph.model([made]))
    runs = [out for n in lengths if (out := batch.run(x[..., :n])) is not None]
    return {out[made.name][..., 1:3].tobytes() for out in runs}


@pytest.mark.parametrize("op", ["LpPool", "MaxPool"])
def test_same_pads_of_a_dilated_pool(op: str) -> None:
    """The runtime leaves the dilation out of its sums."""
    graph = Graph()
    extra = {"p": 1} if op == "LpPool" else {}
    made = graph.op(op, graph.input, kernel_shape=[3], dilations=[2], auto_pad="SAME_UPPER", **extra)
    with pytest.raises(pulsify.NotStreamable, match="dilation") as error:
        pulsify.stream(graph.model([made]))
    assert error.value.node == made and "explicit pads" in error.value.hint


@pytest.mark.parametrize("op", ["Conv", "LpPool"])
def test_same_pads_of_the_other_axis(op: str) -> None:
    def build(graph: Graph, x: Tensor) -> Tensor:
        x = graph.to(x, "BCFT")
        x = x.but(graph.op("Concat", *[x] * 8, axis=2), f=8)
        weight = [graph.weights(2, 2, 1, 3)] if op == "Conv" else []
        extra = {"p": 1} if op == "LpPool" else {}
        return x.but(graph.op(op, x, *weight, kernel_shape=[1, 3], strides=[2, 1], auto_pad="SAME_UPPER", **extra), f=4)

    stream_equals_batch(build)


# ---- places that float32 rounds


def resampler(factor: Fraction, mode: str, **attrs: str) -> onnx.ModelProto:
    graph = Graph(channels=1)
    x = graph.to(graph.input, "BCFT") if mode == "cubic" else graph.input
    scales = graph.const(np.array([1] * (len(x.layout) - 1) + [float(factor)]), np.float32)
    return graph.model([x.but(graph.op("Resize", x, "", scales, mode=mode, **attrs))])


def far_error(model: onnx.ModelProto, pulse: int, length: int) -> float:
    """The largest difference between stream and batch, in one run."""
    x = np.random.default_rng(0).normal(size=(1, 1, length)).astype(np.float32)
    session = pulsify.stream(model, pulse=pulse, verify=False).session(padding=math.nan)
    got = np.concatenate([session.push(x), session.flush()], axis=-1)
    expected = Batch(model).run(x)
    assert expected is not None
    (want,) = expected.values()
    assert got.shape == want.shape
    return float(np.abs(got - want).max())


@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("factor", ["147/160", "160/147", "8/7", "3"])
def test_nearest_frames_far_out(factor: str, coordinates: str, nearest: str) -> None:
    """ONNX Runtime rounds places to float32: after some 60,000 frames others than fractions are nearest."""
    by = Fraction(factor)
    model = resampler(by, "nearest", coordinate_transformation_mode=coordinates, nearest_mode=nearest)
    assert far_error(model, by.denominator * 20, 1600 * by.denominator if by.denominator > 100 else 250_026) == 0


@pytest.mark.parametrize("nearest", NEAREST)
def test_nearest_frames_of_a_large_factor_far_out(nearest: str) -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
    assert far_error(resampler(Fraction(320), "nearest", **attrs), 1000, 70_000) == 0


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("factor", ["147/160", "3", "8/7"])
def test_curves_far_out(factor: str, mode: str) -> None:
    by = Fraction(factor)
    length = 1600 * by.denominator if by.denominator > 100 else 250_026
    assert far_error(resampler(by, mode), by.denominator * 20, length) < 1e-5


@pytest.mark.parametrize(("factor", "length"), [(320, 70_000), (16, 600_000)])
def test_lines_of_a_large_factor_far_out(factor: int, length: int) -> None:
    """From 2^23 on float32 has no halves, so even a power of two is rounded."""
    assert far_error(resampler(Fraction(factor), "linear"), 2000, length) < 1e-5


@pytest.mark.parametrize("factor", ["147/160", "160/147", "5/3", "2/3"])
def test_lengths_that_float32_rounds(factor: str) -> None:
    """Far out the runtime counts a frame more at some lengths; the stream turns these down, and only these."""
    by = Fraction(factor)
    model = resampler(by, "nearest")
    stream = pulsify.stream(model, pulse=20 * by.denominator, verify=False)
    batch = Batch(model)
    for length in (*range(by.denominator, 200), *range(600_000, 600_160)):
        out = batch.run(np.zeros((1, 1, length), np.float32))
        assert out is not None
        (made,) = out.values()
        assert valid(stream, length) == (made.shape[2] == length * by.numerator // by.denominator), length


def test_end_of_float32() -> None:
    """Where float32 moves a place by more than a frame no stream is exact: it says so and takes nothing."""
    session = pulsify.stream(resampler(Fraction(147, 160), "nearest"), pulse=160_000, verify=False).session()
    chunk = np.zeros((1, 1, 1_000_000), np.float32)
    for _ in range(4):
        session.push(chunk)
    with pytest.raises(pulsify.InvalidLength, match="goes no further than 4194304 rows"):
        session.push(chunk)


# ---- types


def typed(op: str, dtype: Any, value: Any) -> onnx.ModelProto:
    """Two frames of `value` in front and three behind, or the first and last once more."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = {"pads": np.array([0, 0, 2, 0, 0, 3]), "value": np.array(value, dtype)}
    if op == "Concat":
        node = helper.make_node(op, ["front", "x", "behind"], ["y"], axis=2)
        constants = {"front": np.full((1, 2, 2), value, dtype), "behind": np.full((1, 2, 3), value, dtype)}
    else:
        inputs = ["x", "pads", "value"] if op == "constant" else ["x", "pads"]
        node = helper.make_node("Pad", inputs, ["y"], mode=op)
    ports = [helper.make_tensor_value_info(n, kind, [1, 2, d]) for n, d in (("x", "T"), ("y", "U"))]
    kept = [numpy_helper.from_array(v, k) for k, v in constants.items() if k in node.input]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def numbers(dtype: Any, length: int) -> Array:
    """All bits of all numbers, as far as they are numbers."""
    kind = np.dtype(dtype)
    rng = np.random.default_rng(length)
    if kind.kind == "f":
        return rng.normal(size=(1, 2, length)).astype(kind)
    if kind.kind == "b":
        return rng.integers(0, 2, (1, 2, length)).astype(kind)
    bounds = np.iinfo(kind)
    return rng.integers(bounds.min, bounds.max, (1, 2, length), kind, endpoint=True)


WHOLE = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
TYPED = [(op, t) for op in ("constant", "edge", "Concat") for t in [*WHOLE, "float16", "float32", "float64"]]


@pytest.mark.parametrize(("op", "dtype"), [(o, t) for o, t in TYPED if o == "Concat" or t not in ("int16", "uint16")])
def test_frames_of_any_type(op: str, dtype: str) -> None:
    """ONNX Runtime cannot select from some types, so the stream did not open. (It has no Pad of 16 bits at all.)"""
    kind = np.dtype(dtype)
    value = 1 if kind.kind in "bf" else np.iinfo(kind).max - 1
    model = typed(op, dtype, value)
    batch = Batch(model)
    for pulse in (1, 3, 8):
        stream = pulsify.stream(model, pulse=pulse)
        sessions = [stream.session(padding=math.nan, portable=p) for p in (True, False)]
        for length in range(1, 41):
            x, session = numbers(dtype, length), sessions[length % 2]
            expected = batch.run(x)
            assert expected is not None and valid(stream, length)
            session.reset()
            got = np.concatenate([session.push(x[..., :5]), session.push(x[..., 5:]), session.flush()], axis=2)
            assert got.dtype == kind and np.array_equal(got, expected["y"]), (pulse, length)


@pytest.mark.parametrize("op", ["constant", "edge", "Concat"])
@pytest.mark.parametrize("verify", [True, False])
def test_strings(op: str, verify: bool) -> None:
    with pytest.raises(pulsify.NotStreamable, match="strings") as error:
        pulsify.stream(typed(op, object, "none"), pulse=2, verify=verify)
    assert error.value.hint


# ---- the hunt


@pytest.mark.parametrize("seed", FOUND)
def test_found(seed: int) -> None:
    graph, made = chain(seed)
    check_lengths(graph, made, PULSES)


def test_hunt_a_little() -> None:
    for seed in range(FEW):
        hunt(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1000 + EXAMPLES))
def test_hunt(seed: int) -> None:
    hunt(seed)
