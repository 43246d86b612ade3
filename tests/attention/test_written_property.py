"""Fields reduced and cut in ways drawn at random: mask, how it hides, what is made of it, heads, pulse and lengths.

PULSIFY_EXAMPLES=2000 pytest -m slow tests/attention/test_written_property.py: many, from a random seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import pulsify
from pulsify.core.chunks import chunkings
from tests.attention.build import Builder
from tests.attention.masks import Mask, MaskWriter, Writing
from tests.attention.test_property import FEW, MANY, masks
from tests.side import Batch, streamed

REDUCED = (
    "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ArgMax",
    "TopK", "softmax", "by_hand", "linear",
)  # fmt: skip
FILLS = {"inf": -np.inf, "1e4": -1e4, "zero": 0.0}
HEADS = ("", "cut", "picked", "mean", "folded")
WIDTH = 4


@dataclass(frozen=True)
class Written:
    """x -> scores -> hidden by a mask -> made of heads -> reduced along the columns."""

    mask: Mask
    reduced: str
    fill: str
    heads: str
    batch: int | str
    keep: bool  # a streamed mask of the keys, joined with the diagonal
    bias: bool  # added by head and distance


def build(w: Written) -> onnx.ModelProto:
    b = Builder(1)
    size, streams = b.size("x", 1), b.size("x", 0)
    shown = MaskWriter(b, Writing(), (size, size)).write(w.mask)
    at = b.range(size)
    ahead = b.op("Sub", b.unsqueeze(at, 0), b.unsqueeze(at, 1))
    if w.keep:
        own = b.op("Equal", ahead, b.scalar(0))
        kept = b.op("Greater", b.slice("x", 2, b.ints(0), b.ints(1)), b.const(0.3))  # [B, T, 1], by data
        shown = b.op("Or", b.op("And", shown, b.unsqueeze(b.transpose(kept, 0, 2, 1), 1)), own)
    q, k, v = (
        b.transpose(b.reshape(b.op("MatMul", "x", b.weight(WIDTH, 2 * WIDTH)), streams, size, 2, WIDTH), 0, 2, 1, 3)
        for _ in range(3)
    )
    scores = b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2))
    if w.bias:
        slopes = b.const(np.array([[[0.5]], [[0.1]]], np.float32))
        scores = b.op("Sub", scores, b.op("Mul", slopes, b.op("Abs", b.cast(ahead, np.float32))))
    scores = b.op("Where", shown, scores, b.const(np.float32(FILLS[w.fill])))
    if w.heads == "cut":
        scores, v = (b.slice(x, 1, b.ints(1), b.ints(2)) for x in (scores, v))
    elif w.heads == "picked":
        scores, v = (b.op("Gather", x, b.scalar(0), axis=1) for x in (scores, v))
    elif w.heads == "mean":
        scores, v = (b.op("ReduceMean", x, b.ints(1), keepdims=1) for x in (scores, v))
    elif w.heads == "folded":
        scores = b.reshape(scores, -1, size, size)
        v = b.reshape(v, -1, size, WIDTH)
    made = _reduced(b, w, scores, v)
    b.op("Identity", made, called="y")
    kind = np.int64 if w.reduced == "ArgMax" else np.float32
    return b.model(
        {"x": ([w.batch, "T", WIDTH], np.float32)}, {"y": (3 if w.heads in ("picked", "folded") else 4, kind)}
    )


def _reduced(b: Builder, w: Written, x: str, v: str) -> str:
    if w.reduced == "softmax":
        return b.op("MatMul", b.op("Softmax", x, axis=-1), v)
    if w.reduced == "linear":
        return b.op("MatMul", x, v)
    if w.reduced == "by_hand":
        e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, b.ints(-1), keepdims=1)))
        return b.op("MatMul", b.op("Div", e, b.op("ReduceSum", e, b.ints(-1), keepdims=1)), v)
    if w.reduced == "ArgMax":
        return b.op("ArgMax", x, axis=-1, keepdims=1)
    if w.reduced == "TopK":
        values = b.op("TopK", x, b.ints(2), axis=-1, largest=1)
        b.nodes[-1].output.append("unread")
        return values
    return b.op(w.reduced, x, b.ints(-1), keepdims=1)


def valid(w: Written) -> bool:
    """Does it bound what a row sees?"""
    zero = w.fill == "zero"
    by_score = w.reduced in ("softmax", "by_hand", "ReduceLogSumExp", "ArgMax")
    by_sum = w.reduced in ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "linear", "ReduceMin")
    return not (zero and by_score) and not (not zero and by_sum)


@st.composite
def written(draw: st.DrawFn) -> Written:
    made = st.builds(
        Written,
        masks(),
        st.sampled_from(REDUCED),
        st.sampled_from(tuple(FILLS)),
        st.sampled_from(HEADS),
        st.sampled_from((1, "B")),
        st.booleans(),
        st.booleans(),
    )
    return draw(made.filter(valid))


def run(w: Written, data: st.DataObject) -> None:
    pulse = data.draw(st.integers(1, 9), label="pulse")
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=3, max_size=3), label="lengths")
    note(f"{w!r} at pulse {pulse}, lengths {lengths}")
    proto = build(w)
    stream, batch, rng = pulsify.stream(proto, pulse=pulse, verify=False), Batch(proto), np.random.default_rng(3)
    for length in lengths:
        x = rng.standard_normal((1 if w.batch == 1 else 2, length, WIDTH)).astype(np.float32)
        wanted = batch.attempt({"x": x})
        for i, cuts in enumerate(chunkings(length, pulse, rng)):
            if wanted is None:  # fewer columns than the best so many
                with pytest.raises(pulsify.InvalidLength):
                    streamed(stream, {"x": x}, cuts)
                break
            got = streamed(stream, {"x": x}, cuts, portable=i == 0)["y"]
            np.testing.assert_allclose(got, wanted["y"], rtol=1e-4, atol=1e-4, err_msg=f"{length} {cuts[:5]}")


@FEW
@given(written(), st.data())
def test_drawn(w: Written, data: st.DataObject) -> None:
    run(w, data)


@pytest.mark.slow
@MANY
@given(written(), st.data())
def test_drawn_many(w: Written, data: st.DataObject) -> None:
    run(w, data)
