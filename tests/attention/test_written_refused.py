"""What has no stream is refused by name, with a reason and a way out that works."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest

import pulsify
from tests.attention.build import Builder
from tests.side import Batch, streamed

Write = Callable[[Builder, str, str], str]  # scores and mask -> frames


def model(write: Write, low: int = -4, high: int | None = 0, dtype: type = np.float32) -> onnx.ModelProto:
    """Scores of x with itself under a band of columns i + low ... i + high (None: to the end)."""
    b = Builder()
    at = b.range(b.size("x", 1))
    ahead = b.op("Sub", b.unsqueeze(at, 0), b.unsqueeze(at, 1))
    shown = b.op("GreaterOrEqual", ahead, b.scalar(low))
    if high is not None:
        shown = b.op("And", shown, b.op("LessOrEqual", ahead, b.scalar(high)))
    scores = b.op("MatMul", "x", b.transpose("x", 0, 2, 1), called="scores")
    b.op("Identity", write(b, scores, shown), called="y")
    return b.model({"x": ([1, "T", 4], np.float32)}, {"y": (3, dtype)})


def masked(b: Builder, scores: str, shown: str, low: float = -math.inf) -> str:
    return b.op("Where", shown, scores, b.const(np.float32(low)))


def mean(b: Builder, scores: str, shown: str) -> str:
    return b.op("ReduceMean", masked(b, scores, shown, 0.0), b.ints(2), keepdims=1, called="reduced")


def mean_of_seen(b: Builder, scores: str, shown: str) -> str:
    """The way out: divided by how many columns a row sees."""
    total = b.op("ReduceSum", masked(b, scores, shown, 0.0), b.ints(2), keepdims=1)
    return b.op("Div", total, b.op("ReduceSum", b.cast(shown, np.float32), b.ints(1), keepdims=1))


def largest(b: Builder, scores: str, shown: str) -> str:
    return b.op("ReduceMax", masked(b, scores, shown), b.ints(2), keepdims=1, called="reduced")


def counted(b: Builder, scores: str, shown: str) -> str:
    """Zeros are given weight by a softmax."""
    cut = b.op("Trilu", b.op("Trilu", scores, b.scalar(0), upper=0), b.scalar(-4), upper=1)
    return b.op("MatMul", b.op("Softmax", cut, axis=-1), "x", called="reduced")


def place(b: Builder, scores: str, shown: str) -> str:
    return b.op("ArgMax", masked(b, scores, shown), axis=2, keepdims=1, called="reduced")


def places(b: Builder, scores: str, shown: str) -> str:
    best(b, scores, shown)
    return "places"


def best(b: Builder, scores: str, shown: str) -> str:
    """The way out: the values and not their places."""
    values = b.op("TopK", masked(b, scores, shown), b.ints(3), axis=2, called="reduced")
    b.nodes[-1].output.append("places")
    return values


def both_axes(b: Builder, scores: str, shown: str) -> str:
    return b.op("ReduceSum", masked(b, scores, shown, 0.0), b.ints(1, 2), keepdims=1, called="reduced")


def hidden_by_data(how: str, low: float) -> Write:
    """Keys are hidden by a number that is added to their scores, made before frames meet frames."""

    def write(b: Builder, scores: str, shown: str) -> str:
        loud = b.op("Greater", b.slice("x", 2, b.ints(0), b.ints(1)), b.const(0.8))  # [1, T, 1]
        kept = b.transpose(b.cast(loud, np.float32), 0, 2, 1)
        if how == "where":
            added = b.op("Where", b.transpose(loud, 0, 2, 1), b.const(0.0), b.const(-1e4))
        else:
            one, sign = b.const(1.0), 1 if how == "above" else -1
            added = b.op("Mul", b.op("Sub", *((kept, one) if sign > 0 else (one, kept))), b.const(sign * 1e4))
        weights = b.op("Softmax", masked(b, b.op("Add", scores, added), shown, low), axis=-1)
        return b.op("MatMul", weights, "x", called="reduced")

    return write


REFUSED = {
    "a mean over all columns": (model(mean), "divides by the number of all columns", "divide the sum"),
    "the largest of all that comes": (model(largest, -4, None), "looks ahead without bound", "mask"),
    "zeros that a softmax counts": (model(counted), "looks ahead without bound", "mask"),
    "the place of nothing": (model(place, -4, -1, np.int64), "sees no frame for sure", "values and not their places"),
    "places of too few": (model(places, dtype=np.int64), "fewer than 3 frames for sure", "values and not their places"),
    **{
        f"hidden by data, {how}": (model(hidden_by_data(how, -1e4)), "data hide every key", "-inf")
        for how in ("where", "above", "below")
    },
    "both axes at once": (model(both_axes), "both time axes", "columns of a row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    proto, reason, hint = REFUSED[name]
    with pytest.raises(pulsify.NotStreamable, match=reason) as refused:
        pulsify.stream(proto, pulse=4, verify=False)
    assert refused.value.node == "reduced" and hint in refused.value.hint


@pytest.mark.parametrize(
    ("proto", "least"),
    [
        (model(hidden_by_data("below", -math.inf)), 1),
        (model(mean_of_seen), 1),
        (model(best), 3),
        (model(place, -4, 0, np.int64), 1),
        (model(places, -4, 2, np.int64), 3),
    ],
    ids=["minus infinity", "mean", "values", "a row sees itself", "a row sees three"],
)
def test_the_way_out(proto: onnx.ModelProto, least: int) -> None:
    batch = Batch(proto)
    for pulse in (1, 4):
        stream = pulsify.stream(proto, pulse=pulse, verify=False)
        for n in (*range(least, 12), 30):
            x = np.random.default_rng(n).standard_normal((1, n, 4)).astype(np.float32)
            got, want = streamed(stream, {"x": x}, [n])["y"], batch.run({"x": x})["y"]
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        for n in range(1, least):
            with pytest.raises(pulsify.InvalidLength):
                streamed(stream, {"x": np.zeros((1, n, 4), np.float32)}, [n])
