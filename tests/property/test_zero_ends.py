"""Constants that are zero at their ends: what they make zero is not waited for, and all else is as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pulsify
from tests.models import model, node, weights
from tests.property.check import Batch, check, convert
from tests.property.graph import Graph, Tensor
from tests.property.strategies import interpolation
from tests.signal.build import Sound, centred, overlap_added, real_frames, spectrum, window
from tests.signal.check import check as check_signal
from tests.signal.graphs import GRAPHS

SIZE, HOP = 16, 4


def convolved(taps: list[float], op: str = "Conv", channels: int = 2, **attrs: Any) -> tuple[Graph, Tensor]:
    graph = Graph()
    weight = np.arange(1, 5).reshape(2, 2, 1) * np.array(taps, np.float32)
    made = graph.op(op, graph.input, graph.const(weight), **attrs)
    stride = attrs.get("strides", [1])[0]
    rate = graph.input.rate
    return graph, graph.input.but(made, rate=rate / stride if op == "Conv" else rate * stride)


@pytest.mark.parametrize(
    ("taps", "attrs", "delay"),
    [
        ([1, 2, 0], {"pads": [1, 1]}, 0),  # masked to be causal
        ([1, 2, 0, 0], {"pads": [1, 2]}, 0),
        ([0, 2, 1, 0], {"pads": [0, 3]}, 2),
        ([1, 2, 0], {"pads": [2, 2], "dilations": [2]}, 0),
        ([1, 1, 1, 0, 0], {"pads": [2, 2], "strides": [2]}, 0),
        ([0, 0, 0], {"pads": [1, 1]}, 0),
        ([0, 0, 0, 1], {"pads": [3, 0]}, 0),  # in front of it, so that nothing is kept
        ([1, 0, 0, 0], {"pads": [0, 3]}, 0),
    ],
)
def test_convolutions(taps: list[float], attrs: dict[str, Any], delay: int) -> None:
    graph, made = convolved(taps, **attrs)
    for factor in (1, 3):
        stream = check(graph, [made], factor)
        assert stream is not None
        assert stream.outputs[0].delay == delay


def test_taps_that_are_zero_in_front_need_no_memory() -> None:
    graph, made = convolved([0, 0, 0, 1], pads=[3, 0])
    assert not convert(graph.model([made]), 1).states
    graph, made = convolved([0, 0, 2, 1], pads=[3, 0])
    assert [s.frames for s in convert(graph.model([made]), 1).states] == [1]


@pytest.mark.parametrize(
    ("taps", "attrs", "delay"),
    [
        ([1, 1, 1, 1], {"strides": [2], "pads": [1, 1]}, 1),
        ([0, 1, 1, 1], {"strides": [2], "pads": [1, 1]}, 0),
        ([0, 0, 1, 1], {"strides": [2], "pads": [2, 0]}, 0),
        ([0, 1, 1], {"strides": [3], "pads": [1, 0], "output_padding": [1]}, 0),
    ],
)
def test_transposed_convolutions_wait_for_their_first_taps(
    taps: list[float], attrs: dict[str, Any], delay: int
) -> None:
    graph, made = convolved(taps, "ConvTranspose", **attrs)
    for factor in (1, 3):
        stream = check(graph, [made], factor)
        assert stream is not None
        assert stream.outputs[0].delay == delay


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
def test_quantised_kernels(op: str) -> None:
    """What stands for zero is the zero point: one, or of every channel its own."""
    points = np.array([5, 2] if op == "QLinearConv" else 5, np.uint8)
    w = np.broadcast_to(points.reshape(-1, 1, 1), (2, 1, 3)).copy()
    w[:, 0, 1] = 9
    consts = {"w": w, "wz": points, "xz": np.array(3, np.uint8), "s": np.array(0.5, np.float32),
              "ws": np.array([0.5, 0.25], np.float32)}  # fmt: skip
    inputs = "x w xz wz" if op == "ConvInteger" else "x s xz w ws wz s xz"
    dtypes = {"x": np.uint8, "y": np.int32 if op == "ConvInteger" else np.uint8}
    proto = model([node(op, inputs, "y", pads=[1, 1])], {"x": (1, 1, "T")}, ["y"], consts, dtypes=dtypes)
    stream = pulsify.stream(proto, pulse=2)  # verified
    assert stream.outputs[0].delay == 0
    assert not stream.states


def shape(size: int, start: int) -> np.ndarray:
    """A window shorter than the transform."""
    out = np.zeros(SIZE)
    out[start : start + size] = window(size, "hamming")
    return out


WAYS = ("stft", "conv", "dft gather", "dft gather_count", "dft slices", "dft eye", "matmul gather", "matmul slices",
        "matmul blocks", "matmul eye")  # fmt: skip


@pytest.mark.parametrize("mode", ["constant", "reflect"])
@pytest.mark.parametrize("how", WAYS)
def test_windows_shorter_than_the_transform(how: str, mode: str) -> None:
    b = Sound(1, "T", opset=17)
    made = spectrum(b, centred(b, "x", SIZE, mode), SIZE, HOP, shape(8, 4), how)
    built = b.finish(y=(made, 4))
    for factor in (1, 3):
        stream = check_signal(built, factor, at=(SIZE + 1, 41, 67))
        assert stream.outputs[0].delay == 0  # of a whole frame it is 1


@pytest.mark.parametrize("how", ["transpose", "col2im"])
@pytest.mark.parametrize(("start", "delay"), [(0, 8), (3, 5), (4, 4), (6, 4)])  # the last ones may not be there
def test_frames_that_begin_with_zeros_are_overlapped_before_they_come(how: str, start: int, delay: int) -> None:
    b = Sound(1, "T", SIZE // 2 + 1, 2)
    frames = b.op("Mul", real_frames(b, "x", SIZE, "matmul"), b.like(shape(8, start)))
    y = b.cut(overlap_added(b, frames, SIZE, HOP, how), 1, SIZE // 2, -SIZE // 2)
    stream = check_signal(b.finish(y=(y, 2)), 1)
    assert stream.outputs[0].delay == delay


def test_nothing_changes_where_nothing_is_gained() -> None:
    """A periodic window begins with one zero, which saves neither a frame of memory nor any time."""
    stream = convert(GRAPHS["conv_centre_constant"]().model, 1)
    (conv,) = (n for n in stream.model.graph if n.op_type == "Conv")
    assert conv.inputs[1].shape[-1] == SIZE


@pytest.mark.parametrize("times", [2, 4])
def test_interpolation_by_an_index_table_looks_one_frame_ahead(times: int) -> None:
    """In front of the first frame the next one is multiplied by zero."""
    graph = Graph()
    made = interpolation(graph, graph.input, times)
    for factor in (1, 3):
        stream = check(graph, [made], factor)
        assert stream is not None
        assert (stream.outputs[0].delay, stream.spec.opening) == (times // 2, 0)


def test_an_index_table_whose_first_frames_count_is_waited_for() -> None:
    graph = Graph()
    frames = graph.scalar(graph.frames(graph.input))
    count = graph.op("Range", graph.int(0), frames, graph.int(1))
    early = graph.op("Min", graph.op("Max", count, graph.int(3)), graph.op("Sub", frames, graph.int(1)))
    made = graph.input.but(graph.op("Gather", graph.input, early, axis=2))
    stream = check(graph, [made], 1)
    assert stream is not None
    assert stream.outputs[0].delay == 3


def test_infinities_are_not_multiplied_by_zero() -> None:
    """The batch model makes NaN of a tap of zero and an infinity; the stream never reads that frame."""
    w = np.array([[[1.0, 2.0, 0.0]]], np.float32)
    nodes = [node("Log", "x", "h"), node("Conv", "h w", "y", pads=[1, 1])]
    proto = model(nodes, {"x": (1, 1, "T")}, ["y"], {"w": w})
    stream = pulsify.stream(proto, pulse=1, verify=False)
    session = stream.session()
    ones = np.ones((1, 1, 3), np.float32)
    ones[..., 2] = 0  # whose logarithm is infinite
    got = np.concatenate([session.push(ones), session.flush()], 2)
    assert got[0, 0, :2].tolist() == [0, 0]
    assert got[0, 0, 2] == -np.inf


def test_weights_that_are_inputs_are_left() -> None:
    proto = model([node("Conv", "x w", "y", pads=[1, 1])], {"x": (1, 1, "T"), "w": (1, 1, 3)}, ["y"], {})
    assert pulsify.stream(proto, pulse=2, verify=False, time={"x": 2}).outputs[0].delay == 1


def test_weights_made_of_constants() -> None:
    """As weight normalisation and masked convolutions are exported."""
    mask = np.array([1, 1, 0], np.float32)
    nodes = [node("Mul", "w mask", "v"), node("Conv", "x v", "y", pads=[1, 1])]
    proto = model(nodes, {"x": (1, 2, "T")}, ["y"], {"w": weights(3, 2, 3), "mask": mask})
    assert pulsify.stream(proto, pulse=2).outputs[0].delay == 0


@pytest.mark.parametrize("backend", ["ort", "native", "torch", "reference"])
def test_on_every_back_end(backend: str) -> None:
    """Of an STFT whose frames are filled up with zeros; what is padded at the end is not read."""
    b = Sound(1, "T", opset=17)
    built = b.finish(y=(spectrum(b, centred(b, "x", SIZE, "constant"), SIZE, HOP, shape(8, 4)), 4))
    stream, batch = pulsify.stream(built.model, verify=False), Batch(built.model)
    for length in (1, 7, 30):
        x = built.feeds(length)["x"]
        session = stream.session(backend=backend, padding=float("nan"))
        parts = [session.push(x[:, i : i + 3]) for i in range(0, length, 3)] + [session.flush()]
        want = batch.run(x)
        assert want is not None
        np.testing.assert_allclose(np.concatenate(parts, 1), want["y"], atol=5e-6 * np.abs(want["y"]).max())
