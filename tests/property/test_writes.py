"""Random writes into frames and channels of several streams: exact at every length, however they are cut."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.core.errors import InvalidLength, InvalidPulse, NotStreamable
from tests.models import Array, model, node
from tests.side import Batch

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 12))
CHANNELS, FAR = 4, 1 << 40
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 11, 18)


class Program:
    """Writes into x [T, B, C], one after the other: into its frames (axis 0) or, turned around, into its channels."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.nodes, self.given = draw, list[onnx.NodeProto](), dict[str, Array]()
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
        self.x = self.op("Mul", "x", self.const(2, np.float32))
        for _ in range(draw(st.integers(1, 3))):
            self.x = self.write(self.x, into_frames=draw(st.booleans()))

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), name, **attributes))
        return name

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.given)}"
        self.given[name] = np.asarray(value, dtype)
        return name

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def write(self, x: str, into_frames: bool) -> str:
        """The axis that is written into is first; updates are entries of it, or one constant for all of them."""
        turned = x if into_frames else self.op("Transpose", x, perm=[2, 1, 0])
        reduction = self.draw(st.sampled_from(["none", "none", "none", "add", "mul"]))
        table = self.places(turned, into_frames, repeated=reduction != "none")
        new = self.op("GatherND", self.op("Neg", turned), table)
        if self.draw(st.booleans()):
            new = self.op("Expand", self.const(0.5, np.float32), self.op("Shape", new))
        out = self.op("ScatterND", turned, table, new, reduction=reduction)
        return out if into_frames else self.op("Transpose", out, perm=[2, 1, 0])

    def places(self, x: str, into_frames: bool, repeated: bool) -> str:
        """A table [n, 1]: a list, or a cut of all places."""
        if self.draw(st.booleans()):
            low, high = (-2, 4) if into_frames else (-CHANNELS, CHANNELS - 1)
            each = st.integers(low, high)
            size = None if into_frames else CHANNELS
            unique = None if repeated else (lambda i: i if size is None else i % size)
            listed = self.draw(st.lists(each, min_size=1, max_size=3, unique_by=unique))
            return self.const(np.array(listed)[:, None])
        size = self.op("Squeeze", self.op("Gather", self.op("Shape", x), self.const([0]), axis=0), self.const([0]))
        places = self.op("Range", self.const(0), size, self.const(1))
        start = self.number(-3, 2)
        stop = FAR if start < 0 else self.draw(st.sampled_from([FAR, FAR, -1, -2, start + 1, start + 2]))
        cut = self.op("Slice", places, *(self.const([n]) for n in (start, stop, 0, self.number(1, 3))))
        return self.op("Unsqueeze", cut, self.const([1]))

    def proto(self) -> onnx.ModelProto:
        return model([*self.nodes, node("Identity", self.x, "y")], {"x": ["T", "B", CHANNELS]}, ["y"], self.given)


@st.composite
def programs(draw: Any) -> Program:
    return Program(draw)


def check(program: Program, pulse: int) -> bool:
    """Is it streamed, and as batch has it? Lengths that batch takes may be too short for the stream, not the others."""
    proto = program.proto()
    how: dict[str, Any] = {"time": "T", "quiet": True, "verify": False}
    try:
        try:
            stream = pulsify.stream(proto, pulse=pulse, **how)
        except InvalidPulse as error:  # every second frame
            stream = pulsify.stream(proto, pulse=pulse * int(error.granularity), **how)
    except NotStreamable:
        return False
    batch = Batch(proto)
    for frames in LENGTHS:
        x = program.rng.standard_normal((frames, 2, CHANNELS)).astype(np.float32)
        expected = batch.attempt({"x": x})
        try:
            got = [stream.run(x, chunks=chunks) for chunks in (1, max(frames // 3, 1), frames)]
        except InvalidLength:
            assert expected is None or frames < 7, frames
            continue
        assert expected is not None, frames
        for y in got:
            np.testing.assert_allclose(y, expected["y"], rtol=1e-6, atol=1e-6)
    return True


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(1, 4))
def test_writes_are_exact_or_rejected(program: Program, pulse: int) -> None:
    check(program, pulse)
