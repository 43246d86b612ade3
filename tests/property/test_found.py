"""What the property tests have found, made small: one test a fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pulsify
from tests.property.check import check
from tests.property.graph import Graph, Tensor
from tests.property.test_latency import check_delay

Build = Callable[[Graph, Tensor], Tensor]


def stream_equals_batch(
    build: Build, *factors: int | None, opset: int = 18, batch: int | str = 1, **known: Any
) -> None:
    for factor in factors or (None, 3):
        graph = Graph(opset, batch=batch)
        made = build(graph, graph.input)
        for name, value in known.items():
            setattr(graph, name, value)
        check(graph, [made], factor)


def transposed(kernel: int, stride: int, before: int = 0) -> Build:
    def build(graph: Graph, x: Tensor) -> Tensor:
        made = graph.op("ConvTranspose", x, graph.weights(2, 2, kernel), strides=[stride], pads=[before, 0])
        return x.but(made)

    return build


@pytest.mark.parametrize("batch", [1, "B"])
@pytest.mark.parametrize(("kernel", "stride", "before"), [(1, 2, 0), (1, 3, 0), (2, 3, 1), (2, 4, 1)])
def test_transposed_conv_with_gaps(kernel: int, stride: int, before: int, batch: int | str) -> None:
    """Stride beyond the kernel: the window was cut from a negative place, so it was empty or wrapped around."""
    stream_equals_batch(transposed(kernel, stride, before), 1, 3, batch=batch)


def resized(factor: float, nearest: str, coordinates: str, ahead: int) -> Build:
    def build(graph: Graph, x: Tensor) -> Tensor:
        if ahead:
            x = x.but(graph.op("Conv", x, graph.weights(2, 2, ahead + 1), pads=[0, ahead]))
        scales = graph.const(np.array([1, 1, factor]), np.float32)
        attrs = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": coordinates}
        return x.but(graph.op("Resize", x, "", scales, **attrs))

    return build


@pytest.mark.parametrize(
    ("factor", "nearest", "coordinates", "ahead"),
    [
        (2, "ceil", "half_pixel", 0),  # looks ahead: its window was cut from a negative place
        (3, "round_prefer_floor", "asymmetric", 0),
        (1.5, "ceil", "asymmetric", 0),
        (2, "floor", "half_pixel", 1),  # looks back: the last frame of an odd window was missing
        (3, "floor", "pytorch_half_pixel", 2),
    ],
)
def test_nearest_frames(factor: float, nearest: str, coordinates: str, ahead: int) -> None:
    stream_equals_batch(resized(factor, nearest, coordinates, ahead), None, 2, 3, least=1 if factor % 1 == 0 else 48)


def test_max_pool_over_padding_alone() -> None:
    """A window of padding only holds the lowest number, not minus infinity."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        return x.but(graph.op("MaxPool", x, kernel_shape=[2], strides=[2], dilations=[2], pads=[1, 1]))

    stream_equals_batch(build, loose=True)


def test_lp_pool_before_ceil_mode() -> None:
    """LpPool has no ceil_mode before opset 18; it was written all the same for two spatial axes."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        x = graph.to(x, "BCFT")
        return x.but(graph.op("LpPool", x, kernel_shape=[1, 3], p=2))

    stream_equals_batch(build, opset=17, loose=True)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("kernel", "stride", "pads"), [(1, 3, [0, 0]), (1, 2, [0, 0]), (2, 3, [1, 1]), (5, 3, [3, 4])])
def test_pools_rounded_up(op: str, kernel: int, stride: int, pads: list[int]) -> None:
    """Shape inference counts a window that starts behind the last frame, ONNX Runtime does not."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        return x.but(graph.op(op, x, kernel_shape=[kernel], strides=[stride], pads=pads, ceil_mode=1))

    stream_equals_batch(build, loose=True)


@pytest.mark.parametrize("op", ["Conv", "AveragePool"])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 3), (4, 3), (5, 3), (4, 2)])
def test_same_pads_of_every_residue(op: str, auto: str, kernel: int, stride: int) -> None:
    """The pad in front was looked up at two residues of the length only; a third had another one."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        weight = [graph.weights(2, 2, kernel)] if op == "Conv" else []
        made = graph.op(op, x, *weight, kernel_shape=[kernel], strides=[stride], auto_pad=auto)
        return x.but(made)

    stream_equals_batch(build, loose=True, may_refuse=["SAME pads with a stride"])


def to_multiple(graph: Graph, x: Tensor, n: int) -> Tensor:
    """Padded behind."""
    rest = graph.op("Mod", graph.op("Neg", graph.frames(x)), graph.ints(n))
    return x.but(graph.op("Pad", x, graph.op("Concat", graph.ints(0, 0, 0, 0, 0), rest, axis=0)))


def cut_to_multiple(graph: Graph, x: Tensor, n: int, start: int = 0) -> Tensor:
    by = graph.ints(n)
    end = graph.op("Mul", graph.op("Div", graph.frames(x), by), by)
    return x.but(graph.op("Slice", x, graph.ints(start), end, graph.ints(2)))


def strided(graph: Graph, x: Tensor, stride: int, kernel: int = 1) -> Tensor:
    return x.but(graph.op("Conv", x, graph.weights(2, 2, kernel), strides=[stride]))


@pytest.mark.parametrize(("stride", "n"), [(2, 2), (2, 3), (3, 2), (3, 4)])
def test_computed_pad_behind_a_stride(stride: int, n: int) -> None:
    """The length stays put for several frames of the stream: it was taken for a constant, and the model refused."""
    stream_equals_batch(lambda graph, x: to_multiple(graph, strided(graph, x, stride), n))


@pytest.mark.parametrize(("stride", "n"), [(2, 2), (2, 3), (3, 2), (3, 4)])
def test_computed_end_behind_a_stride(stride: int, n: int) -> None:
    stream_equals_batch(lambda graph, x: cut_to_multiple(graph, strided(graph, x, stride), n))


@pytest.mark.parametrize("amounts", [(4, 3, 3), (4, 2, 3), (2, 3, 2)])
def test_computed_pads_in_a_row(amounts: tuple[int, int, int]) -> None:
    """The second pad happened to be the same at all traced lengths: taken for a constant, silently wrong elsewhere."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        x = cut_to_multiple(graph, to_multiple(graph, x, amounts[0]), amounts[1])
        rows = graph.to(x, "BTC")
        rows = rows.but(graph.op("Reshape", rows, graph.ints(0, -1, 2 * amounts[1])), c=2 * amounts[1])
        return to_multiple(graph, graph.to(rows, "BCT"), amounts[2])

    stream_equals_batch(build)


def test_computed_end_at_many_lengths() -> None:
    """The length after a stride and a cut was read off too few lengths, and one frame too many came out."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        x = x.but(graph.op("Conv", x, graph.weights(2, 2, 4), strides=[3], pads=[2, 3]))
        return strided(graph, cut_to_multiple(graph, x, 2, start=5), 2, kernel=4)

    stream_equals_batch(build, None, 5, 10)


def test_lengths_that_come_in_groups() -> None:
    """Three lengths in a row work, then six do not: tracing went on with a step of one, and failed inside."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        x = x.but(graph.op("Conv", x, graph.weights(2, 2, 4), strides=[3], pads=[2, 3]))
        x = graph.to(x, "BTC")
        return x.but(graph.op("Reshape", x, graph.ints(0, -1, 6)), c=6)

    stream_equals_batch(build)


def test_computed_end_before_the_start() -> None:
    """x[: T - 3] at T = 2 is x[:-1], one frame; none came out."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        end = graph.op("Sub", graph.frames(x), graph.ints(3))
        return x.but(graph.op("Slice", x, graph.ints(0), end, graph.ints(2)))

    stream_equals_batch(build, 1, 2)


@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [("reflect", 1, -3), ("reflect", -3, 1), ("edge", -3, 1), ("constant", -3, 1), ("constant", 1, -3)],
)
def test_pads_that_cut_need_frames(mode: str, before: int, after: int) -> None:
    """The stream took lengths at which there is nothing left to pad, and the batch model fails."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        return x.but(graph.op("Pad", x, graph.ints(0, 0, before, 0, 0, after), mode=mode))

    stream_equals_batch(build)


def test_split_needs_its_first_part() -> None:
    """As above: a stream shorter than the first part was taken."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        sizes = graph.op("Concat", graph.ints(3), graph.op("Sub", graph.frames(x), graph.ints(3)), axis=0)
        return x.but(graph.ops("Split", 2, x, sizes, axis=2)[1])

    stream_equals_batch(build)


def test_index_table_needs_its_frames() -> None:
    """As above: Range * 3 + (0, 1) of one frame reads frame 1, which is not there."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        last = graph.op("Div", graph.op("Sub", graph.frames(x), graph.ints(2)), graph.ints(3))
        count = graph.scalar(graph.op("Add", last, graph.ints(1)))
        starts = graph.op("Mul", graph.op("Range", graph.int(0), count, graph.int(1)), graph.int(3))
        table = graph.op("Add", graph.op("Unsqueeze", starts, graph.ints(1)), graph.const(np.arange(2)[None]))
        return x.but(graph.op("Gather", x, table, axis=2), layout="BCTF", f=2)

    stream_equals_batch(build)


def first_frames(count: int, ahead: int = 0) -> Build:
    def build(graph: Graph, x: Tensor) -> Tensor:
        if ahead:
            x = x.but(graph.op("Conv", x, graph.weights(2, 2, ahead + 1), pads=[0, ahead]))
        front = graph.op("Slice", x, graph.ints(0), graph.ints(count), graph.ints(2))
        return x.but(graph.op("Concat", front, x, axis=2))

    return build


def test_fewer_first_frames_than_asked_for() -> None:
    """x[:2] of one frame is one frame; the length was turned down."""
    stream_equals_batch(first_frames(2))


def test_delay_of_first_frames() -> None:
    """The first frame once more in front makes up for one frame of look-ahead; it cost a frame of delay instead."""
    graph = Graph()
    check_delay(graph, first_frames(1, ahead=1)(graph, graph.input), 2)


def test_delay_of_cubic_resize() -> None:
    """Where a place falls on a frame, the two frames behind have weight zero and need not be waited for."""
    graph = Graph()
    x = graph.to(graph.input, "BCFT")
    scales = graph.const(np.array([1, 1, 1, 3]), np.float32)
    check_delay(graph, x.but(graph.op("Resize", x, "", scales, mode="cubic")), 1)


@pytest.mark.parametrize("factor", [1 / 2, 2 / 3])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_resize_to_a_single_frame(factor: float, mode: str) -> None:
    """With pytorch_half_pixel an output of one frame is the first frame of the input, whatever the factor."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        scales = graph.const(np.array([1, 1, factor]), np.float32)
        attrs = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel", "nearest_mode": "ceil"}
        return x.but(graph.op("Resize", x, "", scales, **attrs))

    # One frame alone: nobody can know before the end that no other follows, so such streams are turned down.
    stream_equals_batch(build, rounds=20.0, least=math.ceil(2 / factor))
    graph = Graph()
    session = pulsify.stream(graph.model([build(graph, graph.input)]), verify=False).session()
    session.push(np.zeros((1, 2, 1 if factor > 0.5 else 2), np.float32))
    with pytest.raises(pulsify.InvalidLength):
        session.flush()


@pytest.mark.parametrize("pads", [[5, 2], [0, 3]])
def test_an_index_table_without_a_row_is_no_frames(pads: list[int]) -> None:
    """Half a frame is none, and then the padding alone is convolved; such lengths were turned down."""

    def build(graph: Graph, x: Tensor) -> Tensor:
        scales = graph.const(np.array([1, 1, 0.5]), np.float32)
        attrs = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
        half = x.but(graph.op("Resize", x, "", scales, mode="nearest", **attrs))
        count = graph.op("Range", graph.int(0), graph.scalar(graph.frames(half)), graph.int(1))
        taken = x.but(graph.op("Gather", half, count, axis=2))
        return x.but(graph.op("Conv", taken, graph.weights(1, 2, 2), pads=pads, dilations=[3]), c=1, rate=x.rate / 2)

    stream_equals_batch(build)


def test_lengths_at_which_a_table_points_outside_are_turned_down_though_shorter_ones_have_no_row() -> None:
    """ONNX divides towards zero: (3 - 4) / 2 + 1 is a window of four of three samples, (1 - 4) / 2 + 1 is none."""
    graph = Graph()
    x = graph.input
    more = graph.op("Div", graph.op("Sub", graph.frames(x), graph.ints(4)), graph.ints(2))
    count = graph.scalar(graph.op("Add", more, graph.ints(1)))
    starts = graph.op("Mul", graph.op("Range", graph.int(0), count, graph.int(1)), graph.int(2))
    table = graph.op("Add", graph.op("Unsqueeze", starts, graph.ints(1)), graph.const(np.arange(4)[None]))
    stream = pulsify.stream(graph.model([x.but(graph.op("Gather", x, table, axis=2))]), verify=False)
    assert stream.spec.shortest == 4
