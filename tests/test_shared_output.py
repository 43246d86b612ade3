"""Outputs and states without an axis of streams, such as positions: in a pool each stream has its own all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.backends.native import library
from pulsify.backends.seam import stream_axis
from pulsify.serve.engine import open_engine
from tests.mixed import symbolic
from tests.models import close, frames, model, node, run_batch, weights
from tests.proof.judge import Batch
from tests.proof.programs import program

PULSE = 4
needs_c = pytest.mark.skipif(not library.available(), reason="no C compiler")
BACKENDS = ["ort", pytest.param("native", marks=needs_c), "reference"]


def timed() -> onnx.ModelProto:
    """Where each frame is, [T], and what is made of it."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s two", "t"), node("Range", "zero t one", "p"),
        node("Cast", "p", "y", to=1), node("Conv", "x k", "z", pads=[2, 0]),
    ]  # fmt: skip
    numbers = {"two": np.array(2), "zero": np.array(0), "one": np.array(1)}
    return model(nodes, {"x": ["B", 2, "T"]}, ["y", "z"], {**numbers, "k": weights(3, 2, 3)})


def wanted(x: Any) -> list[dict[str, Any]]:
    return [run_batch(timed(), x[i : i + 1]) for i in range(len(x))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pulses", [1, 2])
def test_streams_of_an_exchange_are_each_at_their_place(backend: str, pulses: int) -> None:
    pool, x, size = pulsify.Pool(pulsify.stream(timed(), PULSE), 3, backend=backend), frames(2, 2, 3 * 8), pulses * 4
    a, b = pool.open(), pool.open()
    pool.exchange([a], x[:1, :, :size])
    made = pool.exchange([a, b], np.concatenate([x[:1, :, size : 2 * size], x[1:, :, :size]]))
    assert made.frames["y"].shape == (2, size) and made.frames["z"].shape == (2, 3, size)
    for row, (want, at) in enumerate(zip(wanted(x), (size, 0), strict=True)):
        for name in ("y", "z"):
            close(made.of(row)[name], want[name][..., at : at + size])
    assert pool.exchange([], np.zeros((0, 2, size), np.float32)).frames["y"].shape == (0, size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_served_streams_are_each_at_their_place(backend: str) -> None:
    engine, x = open_engine(pulsify.stream(timed(), PULSE), 2, backend, {}), frames(2, 2, 2 * PULSE)
    a, b = engine.open(), engine.open()
    engine.pulses([a], [{"x": x[:1, :, :PULSE]}])
    made = engine.pulses([a, b], [{"x": x[:1, :, PULSE:]}, {"x": x[1:, :, :PULSE]}])
    for (got, error), want, at in zip(made, wanted(x), (PULSE, 0), strict=True):
        assert error is None
        for name in ("y", "z"):
            close(got[name], want[name][..., at : at + PULSE])


@pytest.mark.parametrize("backend", [*BACKENDS, "torch"])
def test_a_state_that_follows_from_the_clock_is_each_streams_own(backend: str) -> None:
    """One stream is as long as it takes to be refilled, another is not, and they are at different places."""
    if backend == "torch":
        pytest.importorskip("torch")
    options = {"device": "cpu"} if backend == "torch" else {}
    made = program(1119)
    proto, batch = symbolic(made.model), Batch(made.model)
    stream = pulsify.stream(proto, made.pulse, verify=False)
    assert any(stream_axis(s.shape) is None for s in stream.states)
    pool = pulsify.Pool(stream, 4, backend=backend, padding=float("nan"), options=options)
    xs, out = [batch.data(n) for n in (70, 4, 32, 8)], dict[Any, list[Any]]()
    for x in xs:
        lane = pool.open()
        out[lane] = []
        lane.push(x)
        lane.flush()
        for who, result in pool.step(rounds=1).results.items():
            out[who].append(result)
    for who, result in pool.run().items():
        out[who].append(result)
    for x, parts in zip(xs, out.values(), strict=True):
        want = batch.run(x)
        assert want is not None
        close(np.concatenate(parts, 2), want["y"])
