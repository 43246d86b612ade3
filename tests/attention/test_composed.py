"""Attention composed of what published models use: masks, sinks, first frames, memory, decays, mixed heads, caps.

PULSIFY_EXAMPLES=2000 pytest -m slow tests/attention/test_composed.py: many, from a random seed.
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
from tests.attention.test_property import FEW, MANY
from tests.side import Batch, streamed

WIDTH, HEADS = 4, 2
MASKS = ("band", "near", "dilated", "edges")
HIDES = {"inf": -np.inf, "1e4": -1e4, "min": float(np.finfo(np.float32).min)}
ENDS = ("", "front", "back", "both")


@dataclass(frozen=True)
class Composed:
    """A mask, what stands beside the columns of frames, how hidden cells are written, and what is made of weights."""

    mask: str
    past: int
    ahead: int
    first: int  # so many frames of the stream every row looks at; 0: none
    causal: bool
    hide: str
    sinks: str  # columns of zeros or learned ones, in front or behind
    memory: int  # learned keys and values in front
    bias: bool  # by distance and head
    decay: bool  # weights times 0.8 to the power of the distance
    mixed: bool  # heads
    capped: bool
    batch: int | str

    @property
    def valid(self) -> bool:
        """A row that looks at the first frames has no bias by distance: that grows. Sinks are cut, or have values."""
        return not (self.first and (self.bias or self.decay)) and (not self.memory or not self.sinks)


def build(c: Composed) -> onnx.ModelProto:
    b = Builder(2)
    size, streams = b.size("x", 1), b.size("x", 0)
    q, k, v = (_heads(b, b.op("MatMul", "x", b.weight(WIDTH, WIDTH * HEADS)), streams) for _ in range(3))
    at = b.range(size)
    d = b.op("Sub", b.unsqueeze(at, 1), b.unsqueeze(at, 0))
    shown = _shown(b, c, d, at)
    distance = b.op("Abs", b.cast(d, np.float32))
    if c.memory:
        k, v, shown = _with_memory(b, c, streams, k, v, shown)
    s = b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2))
    if c.bias and not c.memory:
        s = b.op("Sub", s, b.op("Mul", b.const(np.array([[[0.3]], [[0.1]]], np.float32)), distance))
    if c.capped:
        s = b.op("Mul", b.op("Tanh", s), b.const(3.0))
    s = b.op("Where", shown, s, b.const(np.float32(HIDES[c.hide])))
    front, back = int(c.sinks in ("front", "both")), int(c.sinks in ("back", "both"))
    if c.sinks:
        s = _with_sinks(b, s, streams, size, front, back)
    w = b.op("Softmax", s, axis=-1)
    if c.sinks:
        w = b.slice(w, 3, b.ints(front), b.ints(-1 if back else 1 << 40))
    if c.decay and not c.memory:
        power = b.op("Pow", b.const(0.8), b.op("Max", b.cast(d, np.float32), b.const(0.0)))
        w = b.op("Mul", w, b.op("Where", shown, power, b.const(0.0)))
    if c.mixed:
        w = b.transpose(b.op("MatMul", b.transpose(w, 0, 2, 3, 1), b.weight(HEADS, HEADS)), 0, 3, 1, 2)
    b.op("Identity", b.op("MatMul", w, v), called="y")
    return b.model({"x": ([c.batch, "T", WIDTH], np.float32)}, {"y": (4, np.float32)})


def _heads(b: Builder, x: str, streams: str) -> str:
    return b.transpose(b.reshape(x, streams, -1, HEADS, WIDTH), 0, 2, 1, 3)


def _shown(b: Builder, c: Composed, d: str, at: str) -> str:
    past, ahead = b.scalar(c.past), b.scalar(-c.ahead)
    if c.mask == "near":
        shown = b.op("LessOrEqual", b.op("Abs", d), past)
    elif c.mask == "edges":  # places cut at both ends of the stream
        last = b.op("Sub", b.size("x", 1), b.scalar(1))
        low = b.op("Max", b.op("Sub", at, past), b.scalar(0))
        high = b.op("Min", b.op("Sub", at, ahead), last)
        own = b.unsqueeze(at, 0)
        shown = b.op(
            "And",
            b.op("GreaterOrEqual", own, b.unsqueeze(low, 1)),
            b.op("LessOrEqual", own, b.unsqueeze(high, 1)),
        )
    else:
        shown = b.op("And", b.op("LessOrEqual", d, past), b.op("GreaterOrEqual", d, ahead))
    if c.mask == "dilated":
        even = b.op("Equal", b.op("Mod", d, b.scalar(2)), b.scalar(0))
        shown = b.op("And", shown, even)
    if c.first:
        shown = b.op("Or", shown, b.unsqueeze(b.op("Less", at, b.scalar(c.first)), 0))
    return b.op("And", shown, b.op("GreaterOrEqual", d, b.scalar(0))) if c.causal else shown


def _with_memory(b: Builder, c: Composed, streams: str, k: str, v: str, shown: str) -> tuple[str, str, str]:
    found = []
    for x in (k, v):
        own = b.op("Expand", b.weight(1, HEADS, c.memory, WIDTH), b.shape(streams, HEADS, c.memory, WIDTH))
        found.append(b.op("Concat", own, x, axis=2))
    every = b.const(np.array(True))
    return found[0], found[1], b.op("Pad", shown, b.ints(0, c.memory, 0, 0), every)


def _with_sinks(b: Builder, s: str, streams: str, size: str, front: int, back: int) -> str:
    parts = [s]
    if front:
        learned = b.op("Expand", b.weight(1, HEADS, 1, 1), b.shape(streams, HEADS, size, 1))
        parts.insert(0, learned)
    if back and front:
        return b.op("Concat", *parts, b.op("Mul", parts[0], b.const(0.5)), axis=3)
    return b.op("Concat", *parts, axis=3) if front else b.op("Pad", s, b.ints(0, 0, 0, 0, 0, 0, 0, 1))


@st.composite
def composed(draw: st.DrawFn) -> Composed:
    made = st.builds(
        Composed,
        mask=st.sampled_from(MASKS),
        past=st.integers(0, 7),
        ahead=st.integers(0, 3),
        first=st.sampled_from((0, 0, 1, 3)),
        causal=st.booleans(),
        hide=st.sampled_from(tuple(HIDES)),
        sinks=st.sampled_from(ENDS),
        memory=st.sampled_from((0, 0, 2)),
        bias=st.booleans(),
        decay=st.booleans(),
        mixed=st.booleans(),
        capped=st.booleans(),
        batch=st.sampled_from((1, "B")),
    )
    return draw(made.filter(lambda c: c.valid))


def run(c: Composed, data: st.DataObject) -> None:
    pulse = data.draw(st.integers(1, 7), label="pulse")
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=3, max_size=3), label="lengths")
    note(f"{c!r} at pulse {pulse}, lengths {lengths}")
    proto = build(c)
    stream, batch, rng = pulsify.stream(proto, pulse=pulse, verify=False), Batch(proto), np.random.default_rng(3)
    assert stream.proof.complete
    ahead = 0 if c.causal else max(c.past if c.mask == "near" else c.ahead, c.first - 1)
    assert stream.outputs[0].delay <= ahead
    for length in lengths:
        x = rng.standard_normal((1 if c.batch == 1 else 2, length, WIDTH)).astype(np.float32)
        wanted = batch.run({"x": x})["y"]
        for i, cuts in enumerate(chunkings(length, pulse, rng)):
            got = streamed(stream, {"x": x}, cuts, portable=i == 0)["y"]
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4, err_msg=f"{length} {cuts[:5]}")


@FEW
@given(composed(), st.data())
def test_drawn(c: Composed, data: st.DataObject) -> None:
    run(c, data)


@pytest.mark.slow
@MANY
@given(composed(), st.data())
def test_drawn_many(c: Composed, data: st.DataObject) -> None:
    run(c, data)
