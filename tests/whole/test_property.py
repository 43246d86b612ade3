"""Random networks with folds and latches in them, at every short length, streams in step, cut anyhow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pulsify
from tests.models import Array, model, node
from tests.side import Batch, streamed
from tests.whole.check import cuts, same

CHANNELS, FAR = 3, 1 << 40
STREAMS = ("tanh", "product", "conv", "stride", "running", "pad", "mirrored", "front", "back", "gru")
FOLDS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare",
    "variance", "attentive", "spread", "last", "few", "length", "gram", "of folds",
)  # fmt: skip
LATCHES = ("less", "times", "in front", "behind", "edges", "beside")


class Net:
    """Values [B, T, C] and values [B, 1, C] of the whole stream, one made of the others."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.rng = draw, np.random.default_rng(draw(st.integers(0, 1 << 20)))
        self.nodes: list[onnx.NodeProto] = []
        self.given: dict[str, Array] = {}
        self.streams, self.values = ["x"], list[str]()

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), name, **attributes))
        return name

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.given)}"
        self.given[name] = np.array(value, dtype)
        return name

    def weight(self, *dims: int) -> str:
        return self.const(self.rng.standard_normal(dims) * 0.5, np.float32)

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def cut(self, x: str, start: int, stop: int) -> str:
        return self.op("Slice", x, self.const([start]), self.const([stop]), self.const([1]))

    def summed(self, x: str, op: str = "ReduceSum") -> str:
        return self.op(op, x, self.const([1]), keepdims=1)

    def stream(self) -> str:
        x, kind = self.pick(*self.streams), self.pick(*STREAMS)
        if kind == "tanh":
            return self.op("Tanh", x)
        if kind == "product":
            return self.op("MatMul", x, self.weight(CHANNELS, CHANNELS))
        if kind in ("conv", "stride"):
            kernel = self.pick(2, 3, 5)
            pads = [self.pick(*range(kernel)), self.pick(*range(kernel))]
            turned = self.op("Transpose", x, perm=[0, 2, 1])
            weight = self.weight(CHANNELS, CHANNELS, kernel)
            made = self.op("Conv", turned, weight, pads=pads, strides=[2 if kind == "stride" else 1])
            return self.op("Transpose", made, perm=[0, 2, 1])
        if kind == "running":
            return self.op("Mul", self.op("CumSum", x, self.const(1)), self.const(0.1, np.float32))
        if kind in ("pad", "mirrored"):
            mode = self.pick("reflect", "edge") if kind == "mirrored" else "constant"
            return self.op("Pad", x, self.const([0, self.pick(0, 1, 2), 0, 0, self.pick(0, 1, 2), 0]), mode=mode)
        if kind == "front":
            return self.cut(x, self.pick(1, 2), FAR)
        if kind == "back":
            return self.cut(x, 0, -self.pick(1, 2))
        turned = self.op("Transpose", x, perm=[1, 0, 2])
        made = self.op("GRU", turned, self.weight(1, 9, 3), self.weight(1, 9, 3), hidden_size=3)
        return self.op("Transpose", self.op("Squeeze", made, self.const([1])), perm=[1, 0, 2])

    def fold(self) -> str:
        x, kind = self.pick(*self.streams), self.pick(*FOLDS)
        if kind.startswith("Reduce"):
            return self.summed(x, kind)
        if kind == "variance":
            off = self.op("Sub", x, self.summed(x, "ReduceMean"))
            return self.summed(self.op("Mul", off, off), "ReduceMean")
        if kind in ("attentive", "spread"):
            scores = self.op(
                "MatMul", x, self.const(self.rng.standard_normal((CHANNELS, 1)) * self.pick(1, 30), np.float32)
            )
            weights = self.op("Softmax", scores, axis=1)
            mean = self.summed(self.op("Mul", weights, x))
            off = self.op("Sub", x, mean)
            return mean if kind == "attentive" else self.summed(self.op("Mul", weights, self.op("Mul", off, off)))
        if kind == "last":
            return self.cut(x, -1, FAR)
        if kind == "few":
            return self.summed(self.cut(x, -self.pick(2, 4), self.pick(FAR, -1)))
        if kind == "length":
            frames = self.op("Gather", self.op("Shape", x), self.const(1), axis=0)
            return self.op("Div", self.summed(x), self.op("Cast", frames, to=1))
        if kind == "gram":
            return self.summed(self.op("MatMul", self.op("Transpose", x, perm=[0, 2, 1]), x))
        return self.op("Add", self.pick(*self.values), self.pick(*self.values)) if self.values else self.summed(x)

    def latch(self) -> str:
        x, y, kind = self.pick(*self.streams), self.pick(*self.streams), self.pick(*LATCHES)
        count = self.pick(1, 2, 3, 5)
        first = self.summed(self.cut(x, self.pick(0, count - 1), count), "ReduceMean")
        if kind == "edges":
            return self.op("Concat", self.cut(y, 0, 1), y, self.cut(y, -1, FAR), axis=1)
        if kind in ("in front", "behind"):
            return self.op("Concat", *((first, y) if kind == "in front" else (y, first)), axis=1)
        if kind == "beside":
            self.values.append(first)
        return self.op("Mul" if kind == "times" else "Sub", y, first)


@st.composite
def networks(draw: Any) -> onnx.ModelProto:
    net = Net(draw)
    for make in (net.stream, net.latch, net.stream):
        net.streams += [make() for _ in range(draw(st.integers(0, 2)))]
    net.values += [net.fold() for _ in range(draw(st.integers(1, 3)))]
    wanted = [*net.streams[1:], *net.values]
    outputs = draw(st.lists(st.sampled_from(wanted), min_size=1, max_size=3, unique=True))
    needed, nodes = set(outputs), list[onnx.NodeProto]()
    for each in reversed(net.nodes):
        if each.output[0] in needed:
            nodes.insert(0, each)
            needed |= set(each.input)
    given = {n: v for n, v in net.given.items() if n in needed}
    return model(nodes, {"x": [draw(st.sampled_from([1, "B"])), "T", CHANNELS]}, outputs, given, opset=18)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from([1, 2, 4, 5]), st.integers(0, 1 << 20))
def test_networks(proto: onnx.ModelProto, pulse: int, seed: int) -> None:
    try:
        stream = pulsify.stream(proto, pulse=pulse, verify=False)
    except pulsify.InvalidPulse as problem:
        stream = pulsify.stream(proto, pulse=pulse * problem.granularity, verify=False)
    batch, rng = Batch(proto), np.random.default_rng(seed)
    for length in (*range(1, 10), 17, 30):
        x = rng.standard_normal((2 if stream.spec.batch else 1, length, CHANNELS)).astype(np.float32)
        try:
            got = streamed(stream, x, cuts(length, rng), portable=bool(rng.integers(2)))
        except pulsify.InvalidLength:  # batch has no frames there, or other ones than from then on
            assert length < 30
            continue
        same(got, batch.run({"x": x}), 3e-4)
