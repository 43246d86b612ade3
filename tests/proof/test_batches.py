"""What follows from how many streams go in step: exact for every number of them, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pulsify
from tests.attention.build import Builder

BATCHES = (1, 2, 3, 4, 5, 7, 8, 10)
Make = Callable[[Builder, str], str]


def model(make: Make) -> onnx.ModelProto:
    b = Builder(1)
    b.op("Identity", make(b, b.size("x", 0)), called="y")
    return b.model({"x": (["B", "T", 4], np.float32)}, {"y": (3, np.float32)})


def flag(b: Builder, batch: str) -> str:
    return b.op("Equal", batch, b.scalar(5))


def factor(b: Builder, batch: str) -> str:
    return b.op("Mul", "x", b.op("Where", flag(b, batch), b.const(2.0), b.const(1.0)))


def remainder(b: Builder, batch: str) -> str:
    return b.op("Mul", "x", b.cast(b.op("Mod", batch, b.scalar(7)), np.float32))


def states(b: Builder, batch: str) -> str:
    """A state for every stream, as exporters write it."""
    zeros = b.op("ConstantOfShape", b.shape(batch, 1, 4))
    return b.op("Add", "x", zeros)


def grouped(b: Builder, batch: str) -> str:
    return b.reshape(b.reshape("x", batch, -1, 2, 2), batch, -1, 4)


def pad(b: Builder, batch: str) -> str:
    more = b.vector(b.cast(flag(b, batch), np.int64))
    return b.op("Pad", "x", b.op("Concat", b.ints(0), more, b.ints(0, 0, 0, 0), axis=0))


def cut(b: Builder, batch: str) -> str:
    return b.slice("x", 1, b.vector(b.cast(flag(b, batch), np.int64)), b.ints(2**31))


def mask(b: Builder, batch: str) -> str:
    place = b.range(b.size("x", 1))
    odd = b.op("Mod", b.op("Add", place, b.cast(flag(b, batch), np.int64)), b.scalar(2))
    return b.op("Mul", "x", b.unsqueeze(b.cast(odd, np.float32), 1))


@pytest.mark.parametrize("make", [factor, remainder, states, grouped])
def test_streams(make: Make) -> None:
    given = model(make)
    stream = pulsify.stream(given, pulse=2, verify=False)
    batch = ort.InferenceSession(given.SerializeToString(), _quiet(), providers=["CPUExecutionProvider"])
    for count in BATCHES:
        x = np.random.default_rng(count).standard_normal((count, 9, 4)).astype(np.float32)
        session = stream.session(batch=count)
        made = np.concatenate([session.push(x), session.flush()], 1)
        np.testing.assert_array_equal(made, batch.run(None, {"x": x})[0])


@pytest.mark.parametrize("make", [pad, cut, mask])
def test_refused(make: Make) -> None:
    with pytest.raises(pulsify.NotStreamable, match="how many streams") as caught:
        pulsify.stream(model(make), pulse=2, verify=False)
    assert caught.value.node
    pulsify.stream(model(make), pulse=2, set={"B": 2})
    sampled = pulsify.stream(model(make), pulse=2, proof="sampled", verify=False)
    assert sampled.proof.sampled


def _quiet() -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options
