"""The last frames, however many; tables that end, at pulses as long as they are; masks that keep some frames."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.inputs.check import check
from tests.inputs.graphs import ints
from tests.models import frames, model, node, weights

FAR = 1 << 40


def last(count: int) -> onnx.ModelProto:
    given = {"from": ints(-count), "to": ints(FAR), "time": ints(1)}
    return model(
        [node("Slice", "x from to time", "y"), node("Relu", "x", "z")], {"x": ["B", "T", 3]}, ["y", "z"], given
    )


@pytest.mark.parametrize(("count", "pulse"), [(3, 4), (30, 4)])
def test_the_last_frames_however_many(count: int, pulse: int) -> None:
    """More than there are in the streams that are looked at first."""
    stream = check(last(count), pulse, [count, count + 1, count + pulse, 2 * count], batch=2)
    with pytest.raises(pulsify.InvalidLength, match=f"at least {count}"):
        stream.run(frames(1, count - 1, 3))


@pytest.mark.parametrize("rows", [40, 512])
def test_tables_that_end_at_pulses_as_long_as_they_are(rows: int) -> None:
    nodes = [
        node("Conv", "x w", "h", pads=[4, 0]),
        node("Shape", "h", "sizes"),
        node("Gather", "sizes two", "t"),
        node("Range", "zero t one", "places"),
        node("Gather", "table places", "rows", axis=1),
        node("Add", "h rows", "y"),
    ]
    numbers = {"two": np.array(2), "zero": np.array(0), "one": np.array(1)}
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], {**numbers, "w": weights(2, 2, 5), "table": weights(2, rows)})
    for pulse in (rows // 4, rows - 1, rows, 2 * rows):
        check(proto, pulse, [1, 9, rows - 1, rows, rows + 1])


# ---- Compress


def kept(mask: Any, axis: int = 1, *behind: onnx.NodeProto, out: str = "y") -> onnx.ModelProto:
    nodes = [node("Compress", "x mask", "y", axis=axis), *behind]
    return model(nodes, {"x": ["B", "T", 3]}, [out], {"mask": np.array(mask, bool)})


def test_a_constant_mask_keeps_frames_at_its_places() -> None:
    """However long the stream is they are the same: first frames, as a value."""
    mask = [True, False, True, False, False, True, False]
    for streams in (1, 2):
        check(kept(mask), 4, range(6, 24), batch=streams)
        check(kept(mask, 1, node("ReduceMean", "y", "m", axes=[1]), node("Sub", "x m", "d"), out="d"), 4, range(6, 24))
    with pytest.raises(pulsify.InvalidLength, match="at least 6"):
        pulsify.stream(kept(mask), pulse=4).run(frames(1, 5, 3))


def test_a_constant_mask_of_channels() -> None:
    check(kept([True, False, True], 2), 4, batch=2)


def by_position(*masked: onnx.NodeProto, **given: Any) -> onnx.ModelProto:
    """Frames that a mask shows, which is made of their places `i`."""
    nodes = [
        node("Shape", "x", "t", start=1, end=2),
        node("Squeeze", "t", "n"),
        node("Range", "zero n one", "i"),
        *masked,
        node("Compress", "x mask", "y", axis=1),
    ]
    return model(nodes, {"x": ["B", "T", 3]}, ["y"], {"zero": np.array(0), "one": np.array(1), **given})


def repeated(*pattern: int) -> onnx.ModelProto:
    rest = node("Mod", "i period", "r"), node("Gather", "pattern r", "mask")
    return by_position(*rest, period=np.array(len(pattern)), pattern=np.array(pattern, bool))


@pytest.mark.parametrize("pattern", [(1, 0, 0), (1, 0, 1, 0, 0), (0, 1, 1, 1), (0, 0, 0, 0, 0, 0, 1), (1, 1)])
def test_a_mask_that_repeats_is_a_stride(pattern: tuple[int, ...]) -> None:
    first = pattern.index(1)
    for pulse in (None, 2 * len(pattern)):
        check(repeated(*pattern), pulse, range(first + 1, 4 * len(pattern)), batch=2)
    if first:  # no frame is left: batch gives none, and a stream none or an error
        with suppress(pulsify.InvalidLength):
            assert pulsify.stream(repeated(*pattern)).run(frames(1, first, 3)).shape == (1, 0, 3)


def test_a_constant_mask_of_frames_folded_together() -> None:
    nodes = [
        node("Reshape", "x stacked", "s"),
        node("Compress", "s mask", "k", axis=2),
        node("Reshape", "k apart", "y"),
    ]
    given = {"stacked": ints(0, -1, 4, 3), "mask": np.array([1, 0, 1, 0], bool), "apart": ints(0, -1, 3)}
    check(model(nodes, {"x": ["B", "T", 3]}, ["y"], given), 4, range(4, 30, 4), batch=2)


def test_a_pattern_said_again_and_again() -> None:
    nodes = [
        node("Shape", "x", "t", start=1, end=2),
        node("Div", "t three", "n"),
        node("Tile", "pattern n", "mask"),
        node("Compress", "x mask", "y", axis=1),
    ]
    given = {"three": ints(3), "pattern": np.array([1, 1, 0], bool)}
    check(model(nodes, {"x": ["B", "T", 3]}, ["y"], given), 3, range(3, 20), batch=2)


@pytest.mark.parametrize(
    "masked",
    [
        (node("GreaterOrEqual", "i five", "late"), node("Mod", "i three", "r"), node("Less", "r one", "every"),
         node("And", "late every", "mask")),
        (node("Mul", "i i", "square"), node("Mod", "square five", "r"), node("Less", "r one", "every"),
         node("Sub", "n i", "left"), node("Less", "left five", "end"), node("Or", "every end", "mask")),
        (node("Equal", "i five", "mask"),),
    ],
)  # fmt: skip
def test_any_other_mask_by_position_is_refused_by_name(masked: tuple[onnx.NodeProto, ...]) -> None:
    with pytest.raises(pulsify.NotStreamable, match="entries are not zero") as refused:
        pulsify.stream(by_position(*masked, five=np.array(5), three=np.array(3)), pulse=3)
    assert refused.value.node == "y/Gather" and "x[:, ::3]" in refused.value.hint
    every = {"from": ints(0), "to": ints(FAR), "time": ints(1), "by": ints(3)}
    check(model([node("Slice", "x from to time by", "y")], {"x": [1, "T", 3]}, ["y"], every), 3)  # what the hint says


# ---- ConvTranspose with a shape that is written down


@pytest.mark.parametrize(
    ("dims", "kernel", "shape"),
    [
        ([1, 3, "T"], (4,), [40]),
        ([1, 3, "T", 4], (4, 5), [40, 9]),
        ([1, 3, 4, "T"], (5, 4), [9, 40]),
    ],
)
def test_an_output_shape_that_is_written_down_is_refused_by_name(dims: Any, kernel: Any, shape: list[int]) -> None:
    made = node("ConvTranspose", "x w", "y", strides=[2] * len(shape), output_shape=shape)
    with pytest.raises(pulsify.NotStreamable, match="output shape is written down") as refused:
        pulsify.stream(model([made], {"x": dims}, ["y"], {"w": weights(3, 2, *kernel)}), pulse=4)
    assert refused.value.node == "y" and "explicit pads" in refused.value.hint
    plain = node("ConvTranspose", "x w", "y", strides=[2] * len(shape), pads=[1] * (2 * len(shape)))
    check(model([plain], {"x": dims}, ["y"], {"w": weights(3, 2, *kernel)}), 4)  # what the hint says
