"""Masks as transformers 5 builds them: `padding_mask[batch_index, key_index]`, a GatherND of ones by positions."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.chunks import chunkings
from tests.attention.build import Builder
from tests.attention.check import difference
from tests.attention.relative import HEADS, WIDTH, BuiltRelative
from tests.side import Batch, streamed

BOUND = {"attention_mask": "ones"}


def picked(b: Builder, mask: str, frames: str, shift: int) -> str:
    """[B, 1, 1, frames]: mask[b, j], by the pairs (b, j + shift)."""
    streams = b.size(mask, 0)
    rows, cols = b.unsqueeze(b.range(streams), 1), b.unsqueeze(b.op("Add", b.range(frames), b.scalar(shift)), 0)
    both = b.op("Shape", b.op("Max", rows, cols))
    pairs = b.op("Concat", *(b.unsqueeze(b.op("Expand", x, both), -1) for x in (rows, cols)), axis=-1)
    return b.unsqueeze(b.op("GatherND", mask, pairs), 1, 2)


def lengths(b: Builder, mask: str) -> str:
    """Tokens of every stream behind a stride of 2, in floats."""
    count = b.cast(b.op("ReduceSum", b.cast(mask, np.int64), b.ints(1), keepdims=0), np.float32)
    return b.cast(b.op("Floor", b.op("Add", b.op("Div", count, b.const(2.0)), b.const(0.5))), np.int64)


def model(shift: int = 0, shorter: int = 0) -> onnx.ModelProto:
    """A stride of 2, and attention in chunks of 3 tokens, one back. shorter: tokens that the mask hides at the end."""
    b = Builder(4)
    x = b.op("Conv", b.transpose("x", 0, 2, 1), b.weight(WIDTH, WIDTH, 3, scale=0.3), strides=[2], pads=[2, 0])
    x = b.transpose(x, 0, 2, 1)
    t = b.size(x, 1)
    real = b.op("Sub", b.unsqueeze(lengths(b, "attention_mask"), 1), b.scalar(shorter))
    known = b.op("Less", b.range(t), real)
    chunk = b.op("Div", b.range(t), b.scalar(3))
    apart = b.op("Sub", b.unsqueeze(chunk, 1), b.unsqueeze(chunk, 0))
    near = b.op("And", b.op("GreaterOrEqual", apart, b.scalar(0)), b.op("LessOrEqual", apart, b.scalar(1)))
    shown = b.op("And", near, picked(b, known, t, shift))
    q, k, v = (
        b.transpose(b.reshape(b.op("MatMul", x, b.weight(WIDTH, WIDTH, scale=0.5)), 0, 0, HEADS, 4), 0, 2, 1, 3)
        for _ in range(3)
    )
    scores = b.op("Where", shown, b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2)), b.const(-math.inf))
    y = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    b.op("Tanh", b.reshape(b.transpose(y, 0, 2, 1, 3), 0, 0, -1), called="y")
    ports = {"x": (["B", "T", WIDTH], np.float32), "attention_mask": (["B", "T"], np.bool_)}
    return b.model(ports, {"y": (3, np.float32)})


def built(proto: onnx.ModelProto) -> BuiltRelative:
    def feeds(length: int) -> dict[str, np.ndarray]:
        x = np.random.default_rng(length).standard_normal((3, length, WIDTH)).astype(np.float32)
        return {"x": x, "attention_mask": np.ones((3, length), bool)}

    return BuiltRelative(proto, feeds)


def test_ones_picked_by_positions_are_ones() -> None:
    case, rng = built(model()), np.random.default_rng(1)
    stream = pulsify.stream(case.model, verify=False, bind=BOUND)
    assert stream.pulse == 6 and stream.outputs[0].delay == 0
    batch = Batch(case.model)
    for length in (1, 2, 5, 6, 7, 12, 31, 64):
        feeds = case.feeds(length)
        wanted = batch.run(feeds)["y"]
        for cuts in chunkings(length, stream.pulse, rng):
            got = streamed(stream, {"x": feeds["x"]}, cuts)["y"]
            assert not difference(got, wanted), f"length {length} cuts {cuts[:5]}"


def test_positions_behind_the_last_are_not_taken_for_ones() -> None:
    """Batch does not take any length: the index leaves its table."""
    case = built(model(shift=1))
    assert Batch(case.model).attempt(case.feeds(20)) is None
    with pytest.raises(pulsify.PulsifyError):
        pulsify.stream(case.model, verify=False, bind=BOUND)


def test_a_mask_that_hides_the_last_is_not_all_ones() -> None:
    """What is picked is no longer the same everywhere: exact, or refused."""
    case = built(model(shorter=1))
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(case.model, verify=False, bind=BOUND)
    assert caught.value.node
