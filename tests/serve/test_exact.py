"""Frames over a websocket against ONNX Runtime on the whole input: many lengths and chunkings, many streams at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import of_stream
from tests.models import frames, look_ahead, model, node, weights
from tests.serve.live import Array, cut, exchange, serving

LENGTHS = (1, 3, 4, 5, 17, 64, 101)
CHUNKS = ([4], [1], [7], [3, 1, 9], [1000])
TWO = model(
    [
        node("Conv", "a wa", "ha", pads=[1, 1]),
        node("Conv", "b wb", "hb", pads=[2, 0]),
        node("Add", "ha hb", "y"),
        node("Relu", "ha", "z"),
    ],
    {"a": ["B", 2, "T"], "b": ["B", 1, "T"]},
    ["y", "z"],
    {"wa": weights(3, 2, 3), "wb": weights(3, 1, 3)},
)
MODELS = {"pooled": look_ahead("B"), "alone": look_ahead(1), "two": TWO}
BATCH = {name: ort.InferenceSession(proto.SerializeToString()) for name, proto in MODELS.items()}


WAYS: dict[str, tuple[str | None, str | None]] = {
    "wire": (None, None),
    "uvloop": ("uvloop", None),
    "asgi": ("websockets-sansio", None),
    "onnxruntime": (None, "ort"),
}  # how bytes are moved, and what computes


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Service, str]]:
    """With its own websockets, on the loop uvicorn takes if it is there, and as an application of any ASGI server."""
    ws, backend = WAYS[request.param]
    if ws == "uvloop":
        pytest.importorskip("uvloop", reason="what uvicorn takes if it is there, and it is not")
    made = [of_stream(name, pulsify.stream(proto, 4, verify=False), None) for name, proto in MODELS.items()]
    with serving(made, Settings(Machine(backend=backend)), ws=ws) as found:
        yield found


def alike(got: Array, want: Array) -> None:
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


async def one(where: str, name: str, length: int, sizes: list[int], seed: int) -> None:
    x = frames(1, 2, length, seed=seed)
    made, said = await exchange(where, name, cut(x, 2, sizes))
    (want,) = BATCH[name].run(None, {"x": x})
    assert said[-1] == {"type": "done", "received": {"x": length}, "sent": {"y": want.shape[2]}}
    alike(np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in made], 2), want)


@pytest.mark.parametrize("name", ["pooled", "alone"])
def test_every_stream_is_the_batch_model(server: tuple[Service, str], name: str) -> None:
    async def all_at_once() -> None:
        cases = [(length, sizes) for length in LENGTHS for sizes in CHUNKS]
        await asyncio.gather(*(one(server[1], name, *case, seed=i) for i, case in enumerate(cases)))

    asyncio.run(all_at_once())


def test_several_inputs_and_outputs_are_told_apart_by_number(server: tuple[Service, str]) -> None:
    a, b = frames(1, 2, 30, seed=5), frames(1, 1, 30, seed=6)
    chunks = [
        *(bytes(4) + c for c in cut(a, 2, [3, 8])),
        *((1).to_bytes(4, "little") + c for c in cut(b, 2, [5])),
    ]
    made, said = asyncio.run(exchange(server[1], "two", chunks))
    assert said[-1] == {"type": "done", "received": {"a": 30, "b": 30}, "sent": {"y": 30, "z": 30}}
    for at, want in enumerate(BATCH["two"].run(None, {"a": a, "b": b})):
        mine = [m[4:] for m in made if int.from_bytes(m[:4], "little") == at]
        alike(np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in mine], 2), want)


def test_a_stream_without_frames_ends_well(server: tuple[Service, str]) -> None:
    made, said = asyncio.run(exchange(server[1], "pooled", []))
    assert (made, said[-1]) == ([], {"type": "done", "received": {"x": 0}, "sent": {"y": 0}})


def test_ready_says_what_there_is_to_know(server: tuple[Service, str]) -> None:
    _, said = asyncio.run(exchange(server[1], "pooled", []))
    ready: dict[str, Any] = said[0]
    assert (ready["type"], ready["protocol"], ready["model"], ready["kind"]) == ("ready", 1, "pooled", "frames")
    assert ready["inputs"] == [
        {"name": "x", "dtype": "float32", "dims": ["B", 2, 4], "axis": 2, "frames": 4, "rate": "1"}
    ]
    assert ready["outputs"][0]["delay"] == 3
    assert (ready["pulse"], ready["latency"], ready["token"]) == (4, 7, None)
    assert ready["limits"]["message_bytes"] == 1 << 20
