"""Streams that were wrong without an error: now refused by name, and the way out streams exactly."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest

import pulsify
from tests.attention.build import Builder
from tests.attention.masks import Mask, MaskWriter, Writing
from tests.attention.test_written_refused import masked, model
from tests.side import Batch, streamed

Write = Callable[[Builder, str, str], str]


def weights(b: Builder, scores: str, shown: str, low: float) -> str:
    return b.op("Softmax", masked(b, scores, shown, low), axis=-1)


def largest(low: float, zero: bool = False) -> Write:
    """The largest weight of a row; zero: weights that a row does not see are set to zero."""

    def write(b: Builder, scores: str, shown: str) -> str:
        w = weights(b, scores, shown, low)
        return b.op("ReduceMax", masked(b, w, shown, 0.0) if zero else w, b.ints(2), keepdims=1, called="reduced")

    return write


def squares(zero: bool = False) -> Write:
    def write(b: Builder, scores: str, shown: str) -> str:
        w = b.op("Pow", weights(b, scores, shown, -math.inf), b.const(2.0))
        w = masked(b, w, shown, 0.0) if zero else w
        return b.op("ReduceSum", w, b.ints(2), keepdims=1, called="reduced")

    return write


def least(log: bool) -> Write:
    """The smallest cell of a row: one that is masked, wherever it is."""

    def write(b: Builder, scores: str, shown: str) -> str:
        x = masked(b, scores, shown)
        x = b.op("LogSoftmax", x, axis=-1) if log else x
        return b.op("ReduceMin", x, b.ints(2), keepdims=1, called="reduced")

    return write


def best(k: int, places: bool = False) -> Write:
    """The best weights of a row that may see fewer, and then some that are zero."""

    def write(b: Builder, scores: str, shown: str) -> str:
        values = b.op("TopK", weights(b, scores, shown, -math.inf), b.ints(k), axis=2, called="reduced")
        b.nodes[-1].output.append("places")
        return b.cast("places", np.float32) if places else values

    return write


def by_data(zero: bool) -> Write:
    """Quiet keys are hidden as well: it may be all of them."""

    def write(b: Builder, scores: str, shown: str) -> str:
        loud = b.op("Greater", b.slice("x", 2, b.ints(0), b.ints(1)), b.const(0.8))
        shown = b.op("And", shown, b.transpose(loud, 0, 2, 1))
        return largest(-math.inf, zero)(b, scores, shown)

    return write


@pytest.mark.parametrize(
    ("write", "band", "reason"),
    [
        (largest(-math.inf), (-5, -1), "normalised over all frames"),
        (largest(-1e4), (-5, -1), "normalised over all frames"),
        (squares(), (-8, -5), "not a number"),
        (least(log=True), (-4, 2), "infinite"),
        (least(log=False), (-4, 2), "infinite"),
        (by_data(zero=False), (-4, 0), "data hide every key"),
        (best(2, places=True), (-4, 2), "fewer than 2 frames for sure"),  # the second best may be zero as well
    ],
)
def test_refused(write: Write, band: tuple[int, int], reason: str) -> None:
    for pulse in (1, 4):
        with pytest.raises(pulsify.NotStreamable, match=reason) as refused:
            pulsify.stream(model(write, *band), pulse=pulse)
        assert refused.value.node == "reduced" and refused.value.hint


@pytest.mark.parametrize(
    ("write", "band"),
    [
        (largest(-math.inf, zero=True), (-5, -1)),
        (largest(-1e4, zero=True), (-5, -1)),
        (squares(zero=True), (-8, -5)),
        (by_data(zero=True), (-4, 0)),
    ],
)
def test_the_way_out_is_exact(write: Write, band: tuple[int, int]) -> None:
    check(write, band)


@pytest.mark.parametrize(("k", "band"), [(2, (-4, 0)), (3, (-1, 0)), (7, (-5, 2))])
def test_the_best_weights_of_rows_that_see_fewer(k: int, band: tuple[int, int]) -> None:
    """Rows at the start see fewer than so many: those that are hidden are zero, and no nothing."""
    check(best(k), band, least=k)


def check(write: Write, band: tuple[int, int], least: int = 1) -> None:
    proto, rng = model(write, *band), np.random.default_rng(0)
    whole = Batch(proto)
    for pulse in (1, 4):
        stream = pulsify.stream(proto, pulse=pulse)
        for length in (*range(least, 12), 25):
            x = rng.standard_normal((1, length, 4)).astype(np.float32)
            got, wanted = streamed(stream, {"x": x}, [1])["y"], whole.run({"x": x})["y"]
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_shift_that_leaves_out_far_offsets_at_some_lengths() -> None:
    """At 30 frames, 70, 110 ... the three furthest offsets are zero: that is no relative shift."""
    pytest.importorskip("torch")
    from torch import Tensor
    from torch.nn.functional import pad

    from tests.attention.written import ALL, HEADS, Net, causal, exported, offsets

    def write(m: Net, x: Tensor) -> Tensor:
        t = x.shape[1]
        cut = ((t % 40 + 9) // 39 - (t % 40 + 8) // 39) * 3
        raw = pad(offsets(m, x)[..., cut:], (1 + cut, 0))
        moved = raw.reshape(-1, HEADS, 2 * t, t)[:, :, 1:].reshape(-1, HEADS, t, 2 * t - 1)[..., :t]
        hidden = (m.scores(x) + moved).masked_fill(~causal(x), -math.inf)
        return m.joined(hidden.softmax(-1) @ m.values(x))

    ALL["far_cut"] = write
    try:
        proto = exported("legacy", "far_cut")
    finally:
        del ALL["far_cut"]
    with pytest.raises(pulsify.NotStreamable, match="no relative-position shift"):
        pulsify.stream(proto, pulse=4, unbounded="grow")


def by_head(first: Mask, second: Mask) -> onnx.ModelProto:
    """Behind a convolution without pads: masks of all streams and heads, put together by a reshape."""
    b = Builder()
    x = b.transpose(b.op("Conv", b.transpose("x", 0, 2, 1), b.weight(8, 8, 3, scale=0.3)), 0, 2, 1)
    streams, t = b.size(x, 0), b.size(x, 1)
    q = b.reshape(b.transpose(b.reshape(x, 0, 0, 2, 4), 0, 2, 1, 3), -1, t, 4)
    masks = [b.unsqueeze(MaskWriter(b, Writing(), (t, t)).write(m), 0) for m in (first, second)]
    every = b.op("Expand", b.unsqueeze(b.op("Concat", *masks, axis=0), 0), b.shape(streams, 2, t, t))
    scores = b.op("MatMul", q, b.transpose(q, 0, 2, 1))
    b.op("MatMul", weights(b, scores, b.reshape(every, -1, t, t), -math.inf), q, called="y")
    return b.model({"x": (["B", "T", 8], np.float32)}, {"y": (3, np.float32)})


def test_masks_by_head_are_there_for_every_stream() -> None:
    """One stream's masks met the scores of all, and several streams failed."""
    proto, rng = by_head(Mask("token", 1, 3), Mask("block", 2)), np.random.default_rng(0)
    stream, whole = pulsify.stream(proto, pulse=2, verify=False), Batch(proto)
    for streams in (1, 3):
        for length in (3, 4, 9, 30):
            x = rng.standard_normal((streams, length, 8)).astype(np.float32)
            got, wanted = streamed(stream, {"x": x}, [1])["y"], whole.run({"x": x})["y"]
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(pulsify.NotStreamable, match="has no room for the batch") as refused:
        pulsify.stream(proto, pulse=3)
    assert refused.value.node and "multiple of the chunk" in refused.value.hint
