"""Folds and latches of wires of every kind: capped, thinned, upsampled, mirrored, several inputs, all types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import frames, model, node, run_batch, weights
from tests.side import Batch, streamed
from tests.whole.check import cuts, same

FAR = 1 << 40
NUMBERS = {
    "n0": np.array([0]), "n1": np.array([1]), "n2": np.array([2]), "n3": np.array([3]), "n5": np.array([5]),
    "m1": np.array([-1]), "far": np.array([FAR]), "cap": np.array([100]), "one": np.array(1),
    "pad": np.array([0, 3, 0, 0, 2, 0]), "up": weights(3, 2, 4), "w": weights(3, 3, 4), "w3": weights(3, 3, 3),
}  # fmt: skip
X = {"x": ["B", "T", 3]}
CUT = node("Slice", "x n0 cap n1", "c")
TURN = node("Transpose", "x", "turned", perm=[0, 2, 1])
UP = node("ConvTranspose", "turned up", "u", strides=[3], pads=[1, 2])
SIZE = [node("Shape", "x", "dims"), node("Gather", "dims n1", "t", axis=0), node("Sub", "t n2", "rest")]

Graph = tuple[dict[str, Any], list[onnx.NodeProto], list[str]]
GRAPHS: dict[str, Graph] = {
    "capped mean": (X, [CUT, node("ReduceMean", "c n1", "y")], ["y"]),
    "capped last": (X, [CUT, node("Slice", "c m1 far n1", "y")], ["y"]),
    "capped argmax": (X, [CUT, node("ArgMax", "c", "i", axis=1), node("Cast", "i", "y", to=1)], ["y"]),
    "two rates": (
        {"slow": ["B", "T", 3], "fast": ["B", "4*T", 3]},
        [node("ReduceMean", "slow n1", "a"), node("ReduceMax", "fast n1", "b"), node("Sub", "a b", "y")],
        ["y"],
    ),
    "upsampled": (
        X,
        [TURN, UP, node("ReduceLogSumExp", "u n2", "a"), node("Slice", "u m1 far n2", "b"),
         node("Slice", "u n0 n5 n2", "f"), node("ReduceSum", "f n2", "c"), node("Concat", "a b c", "y", axis=2)],
        ["y"],
    ),
    "upsampled latch": (
        X, [TURN, UP, node("Slice", "u n0 n5 n2", "f"), node("ReduceSum", "f n2", "g"), node("Mul", "u g", "y")], ["y"]
    ),
    "static input": (
        {**X, "s": ["B", 1, 3]},
        [node("Mul", "x s", "q"), node("ReduceMean", "q n1", "a"), node("Add", "a s", "y")],
        ["y"],
    ),
    "first frames as weights": (
        {"x": [1, "T", 3]},
        [TURN, node("Slice", "x n0 n3 n1", "f"), node("Transpose", "f", "k", perm=[0, 2, 1]),
         node("Conv", "turned k", "y", pads=[2, 0])],
        ["y"],
    ),
    "first frames as a matrix": (
        X,
        [node("Pad", "x pad", "p", mode="reflect"), node("Slice", "p n0 n3 n1", "f"), node("MatMul", "p f", "y")],
        ["y"],
    ),
    "behind mirrored frames and a stride": (
        X,
        [node("Pad", "x pad", "p", mode="reflect"), node("Transpose", "p", "pt", perm=[0, 2, 1]),
         node("Conv", "pt w", "c", strides=[2]), node("Slice", "c n0 n2 n2", "f"), node("ReduceMax", "f n2", "g"),
         node("Sub", "c g", "y")],
        ["y"],
    ),
    "split from the end": (
        X,
        [*SIZE, node("Concat", "rest n2", "sizes", axis=0), node("Split", "x sizes", "p q", axis=1),
         node("ReduceSum", "q n1", "s"), node("Neg", "p", "y")],
        ["y", "s"],
    ),
    "split from the start": (
        X,
        [*SIZE, node("Concat", "n2 rest", "sizes", axis=0), node("Split", "x sizes", "p q", axis=1),
         node("ReduceSum", "p n1", "s"), node("Sub", "q s", "y")],
        ["y", "s"],
    ),
    "a mean of later frames behind the stream": (
        X,
        [TURN, node("Conv", "turned w3", "ct", pads=[0, 2]), node("Transpose", "ct", "h", perm=[0, 2, 1]),
         node("ReduceMean", "h n1", "m"), node("Concat", "x m", "c", axis=1), node("CumSum", "c one", "y")],
        ["y"],
    ),
    "a latch of a latch": (
        X,
        [node("Slice", "x n0 n3 n1", "f"), node("ReduceMean", "f n1", "m"), node("Sub", "x m", "o"),
         node("Slice", "o n0 n2 n1", "g"), node("ReduceSum", "g n1", "s"), node("Mul", "x s", "y")],
        ["y"],
    ),
    "first frames spread over time and summed": (
        X,
        [node("Slice", "x n0 n3 n1", "f"), node("ReduceMax", "f n1", "g"), node("Shape", "x", "dims"),
         node("Expand", "g dims", "e"), node("ReduceSum", "e n1", "s"), node("Mul", "e x", "q"),
         node("CumSum", "q one", "y")],
        ["y", "s"],
    ),
    "frames over the length": (
        X,
        [*SIZE[:2], node("Cast", "t", "f", to=1), node("Div", "x f", "d"), node("ReduceSum", "d n1", "y")],
        ["y"],
    ),
    "less the mean of what comes later": (
        X,
        [TURN, node("Conv", "turned w3", "ct", pads=[0, 2]), node("Transpose", "ct", "h", perm=[0, 2, 1]),
         node("ReduceMean", "h n1", "m"), node("Sub", "x m", "o"), node("Mul", "o o", "q"),
         node("ReduceMean", "q n1", "y")],
        ["y"],
    ),
    "scaled by what comes later": (
        X,
        [TURN, node("Conv", "turned w3", "ct", pads=[0, 2]), node("Transpose", "ct", "h", perm=[0, 2, 1]),
         node("Slice", "h n0 n3 n1", "f"), node("ReduceMax", "f n1", "g"), node("ReduceMax", "h n1", "m"),
         node("Mul", "x m", "o"), node("Mul", "o g", "q"), node("ReduceSum", "q n1", "y")],
        ["y"],
    ),
    "expected place": (
        X,
        [node("Shape", "x", "dims"), node("Gather", "dims one", "t", axis=0), node("Range", "zero t one", "p"),
         node("Cast", "p", "f", to=1), node("Unsqueeze", "f n1", "c"), node("Softmax", "x", "v", axis=1),
         node("Mul", "v c", "q"), node("ReduceSum", "q n1", "y")],
        ["y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_wires(name: str) -> None:
    inputs, nodes, outputs = GRAPHS[name]
    used = {n for k in nodes for n in k.input}
    given = {n: v for n, v in {**NUMBERS, "zero": np.array(0)}.items() if n in used}
    proto = model(nodes, inputs, outputs, given, opset=18)
    batch, rng, seen = Batch(proto), np.random.default_rng(0), 0
    for pulse in (1, 4):
        try:
            stream = pulsify.stream(proto, pulse=pulse, verify=False)
        except pulsify.InvalidPulse as wrong:
            stream = pulsify.stream(proto, pulse=pulse * wrong.granularity, verify=False)
        for length in (*range(1, 10), 16, 33, 99, 100, 101, 150):
            feeds = {}
            for i in stream.spec.inputs:
                dims = [
                    int(length * i.rate) if a == i.axis else 2 if isinstance(d, str) else d
                    for a, d in enumerate(i.dims)
                ]
                feeds[i.name] = rng.standard_normal(dims).astype(np.float32)
            for s in stream.spec.statics:
                feeds[s.name] = rng.standard_normal([2 if isinstance(d, str) else d for d in s.dims]).astype(np.float32)
            if length >= stream.spec.shortest:
                same(streamed(stream, feeds, cuts(length, rng)), batch.run(feeds))
                seen += 1
    assert seen >= 20


TYPES: list[tuple[str, Any, int]] = [
    ("ReduceMax", np.bool_, 20), ("ReduceMin", np.bool_, 20), ("ReduceMax", np.uint8, 18), ("ReduceMin", np.int8, 18),
    ("ReduceMax", np.float16, 18), ("ReduceMean", np.float16, 18), ("ReduceSum", np.float64, 18),
    ("ArgMax", np.int32, 18), ("ArgMin", np.uint8, 18), ("last", np.bool_, 18), ("last", np.int16, 18),
    ("last", np.float16, 18), ("first", np.bool_, 18), ("first", np.int8, 18), ("first", np.int64, 18),
]  # fmt: skip


@pytest.mark.parametrize(("what", "dtype", "opset"), TYPES)
@pytest.mark.parametrize("time", [0, 1])
def test_types(what: str, dtype: Any, opset: int, time: int) -> None:
    dims: list[Any] = [2, 2, 3]
    dims[time] = "T"
    given = {"a": np.array([time])}
    if what.startswith("Arg"):
        nodes, given = [node(what, "x", "y", axis=time)], {}
    elif what in ("last", "first"):
        ends = (-2, FAR) if what == "last" else (1, 3)
        nodes = [node("Slice", "x s e a", "z"), node("Identity", "z", "y")]
        given |= {"s": np.array(ends[:1]), "e": np.array(ends[1:])}
    else:
        nodes = [node(what, "x a", "y")]
    types = {"x": dtype, "y": np.int64 if what.startswith("Arg") else dtype}
    proto = model(nodes, {"x": dims}, ["y"], given, dtypes=types, opset=opset)
    batch, stream, rng = Batch(proto), pulsify.stream(proto, pulse=3, verify=False), np.random.default_rng(0)
    for length in (3, 4, 5, 8, 13):
        values = rng.standard_normal([length if d == "T" else d for d in dims]) * 20
        x = (
            values > 0
            if dtype is np.bool_
            else np.abs(values).astype(dtype)
            if dtype is np.uint8
            else values.astype(dtype)
        )
        same(streamed(stream, x, cuts(length, rng)), batch.run({"x": x}), 1e-3 if dtype is np.float16 else 2e-5)


def test_a_first_frame_of_another_rate_is_put_in_front() -> None:
    """It was read along with the frames behind it, at their rate."""
    nodes = [
        node("Conv", "x w", "h", strides=[2]),
        node("Slice", "h zero one two", "first"),
        node("Concat", "first x", "y", axis=2),
    ]
    known = {"w": weights(3, 3, 2), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    proto = model(nodes, {"x": [1, 3, "T"]}, ["y"], known)
    for pulse in (2, 4):
        stream = pulsify.stream(proto, pulse=pulse)
        for length in (2, 3, 8, 13):
            x = frames(1, 3, length)
            np.testing.assert_allclose(stream.run(x, pulse + 1), run_batch(proto, x)["y"], atol=1e-5)
