"""Nothing a client sends brings the server down, or reaches another's stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Limits, Service, Settings
from pulsify.serve.sources import of_stream
from tests.models import frames, look_ahead
from tests.serve import speech
from tests.serve.fuzz import fuzz
from tests.serve.live import cut, exchange, serving

PROTO = look_ahead("B")
BATCH = ort.InferenceSession(PROTO.SerializeToString())
SETTINGS = Settings(Machine(most=64), Limits(message_bytes=100_000, waiting_bytes=300_000), snapshot_seconds=0.2)


async def witness(where: str, stop: asyncio.Event) -> int:
    """Streams that are fine, one after the other: each must be the batch model's."""
    count = 0
    while not stop.is_set():
        x = frames(1, 2, 37 + count % 50, seed=count)
        made, said = await exchange(where, "m", cut(x, 2, [4, 3, 9]))
        assert said[-1]["type"] == "done", said[-1]
        got = np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in made], 2)
        np.testing.assert_allclose(got, BATCH.run(None, {"x": x})[0], atol=1e-5)
        count += 1
    return count


async def beside_witnesses(where: str, messages: int, seed: int) -> tuple[Counter[str], int]:
    stop = asyncio.Event()
    others = [asyncio.create_task(witness(where, stop)) for _ in range(3)]
    try:
        seen = await fuzz(where, "/v1/stream/m", 8, messages, seed)
    finally:
        stop.set()
    return seen, sum(await asyncio.gather(*others))


def settled(service: Service) -> None:
    """Nothing is left of anyone."""
    end = time.monotonic() + 15
    while time.monotonic() < end and (service.connections or any(len(h.scheduler) for h in service.models.values())):
        time.sleep(0.05)
    assert not service.connections and not service.resumable
    for hosted in service.models.values():
        assert len(hosted.scheduler) == 0
        for stage in hosted._stages:
            engine: Any = stage.engine
            assert len(engine.pool) == 0 and not stage.ready


def run(messages: int, seed: int, caplog: pytest.LogCaptureFixture) -> Counter[str]:
    served = of_stream("m", pulsify.stream(PROTO, 4, verify=False), None)
    with caplog.at_level(logging.WARNING), serving([served], SETTINGS) as (service, where):
        seen, fine = asyncio.run(beside_witnesses(where, messages, seed))
        settled(service)
    assert fine > 0 and seen["messages"] >= messages
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert told == [], told[:3]
    return seen


def test_some_thousand_bad_messages(caplog: pytest.LogCaptureFixture) -> None:
    seen = run(3000, 1, caplog)
    assert seen["bad_message"] + seen["bad_frames"] and not seen["failed"]  # which of them is a matter of timing


@pytest.mark.slow
def test_a_hundred_thousand_bad_messages(caplog: pytest.LogCaptureFixture) -> None:
    seen = run(100_000, 2, caplog)
    assert not seen["failed"]


def test_a_recogniser_is_not_brought_down_either(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), serving([speech.served()], SETTINGS) as (service, where):
        seen = asyncio.run(fuzz(where, "/v1/stream/recogniser", 4, 600, 3))
        more = asyncio.run(fuzz(where, "/v1/realtime?model=recogniser", 4, 600, 4))
        settled(service)
        samples = speech.sound()
        _, said = asyncio.run(exchange(where, "recogniser", cut(samples, 0, [4000]), {"format": "pcm16"}))
    assert said[-1]["text"] == speech.said(samples)
    assert seen["messages"] >= 600 and more["messages"] >= 600 and not seen["failed"] + more["failed"]
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
