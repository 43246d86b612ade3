"""Several utterances in one stream, and when each word was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from websockets.asyncio.client import connect

import pulsify
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import of_stream
from tests.models import frames, look_ahead, model, node, weights
from tests.serve import speech
from tests.serve.live import Array, cut, opened, serving

LOOKS = look_ahead("B")
VALID = model([node("Conv", "x w", "y")], {"x": ["B", 2, "T"]}, ["y"], {"w": weights(3, 2, 7)})  # at least 7 frames
END = json.dumps({"type": "end_utterance"})


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    streams = {"looks": LOOKS, "valid": VALID}
    served = [of_stream(name, pulsify.stream(proto, 4, verify=False), None) for name, proto in streams.items()]
    settings = Settings(Machine(most=3, calibrate=False), snapshot_seconds=0.1)
    with serving([speech.served(), *served], settings) as found:
        yield found


async def talk(where: str, name: str, messages: Sequence[bytes | str], **how: Any) -> list[Any]:
    """All of it sent at once; what came: bytes, and messages from the server."""
    async with connect(f"ws://{where}/v1/stream/{name}", max_size=None, compression=None) as ws:
        ready = await opened(ws, **how)
        assert ready["type"] == "ready", ready
        for message in messages:
            await ws.send(message)
        await ws.send(json.dumps({"type": "flush"}))
        return [m if isinstance(m, bytes) else json.loads(m) async for m in ws]


def told(messages: Sequence[Any], *kinds: str) -> list[dict[str, Any]]:
    return [m for m in messages if isinstance(m, dict) and m["type"] in kinds]


def words_of(messages: Sequence[Any]) -> list[dict[str, Any]]:
    return [word for m in told(messages, "text", "utterance", "done") for word in m["words"]]


def offline(samples: Array, since: float = 0.0) -> list[dict[str, Any]]:
    """The words of the batch models, later by so many seconds."""
    words = speech.recogniser().batch(samples.astype(np.float32) / 32768).words
    return [{"word": w.word, "start": w.start + since, "end": w.end + since} for w in words]


def near(words: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    return [(w["word"], pytest.approx(w["start"], abs=1e-3), pytest.approx(w["end"], abs=1e-3)) for w in words]


@pytest.mark.parametrize("sizes", [[1280], [160, 5], [100_000]])
def test_words_have_the_times_of_the_batch_models(server: tuple[Service, str], sizes: list[int]) -> None:
    samples = speech.sound("numbers")
    made = asyncio.run(talk(server[1], "recogniser", cut(samples, 0, sizes), format="pcm16"))
    want = offline(samples)
    assert [(w["word"], w["start"], w["end"]) for w in words_of(made)] == near(want) and len(want) == 5
    assert " ".join(w["word"] for w in want) == speech.said(samples)
    assert all(a["end"] <= b["start"] + 1e-6 for a, b in pairwise(want))


def test_an_utterance_ends_and_the_stream_does_not(server: tuple[Service, str]) -> None:
    """Everything is sent before anything is read, and the last one has no sound at all."""
    sounds = [speech.sound("lights"), speech.sound("numbers"), speech.sound("lights")[:30000], np.zeros(0, "<i2")]
    messages: list[bytes | str] = []
    for samples in sounds[:-1]:
        messages += [*cut(samples, 0, [7000]), END]
    made = asyncio.run(talk(server[1], "recogniser", [*messages, END], format="pcm16"))
    ends = told(made, "utterance", "done")
    assert [e["text"] for e in ends] == [*(speech.said(s) for s in sounds[:-1]), "", ""]
    assert [e.get("utterances") for e in ends] == [1, 2, 3, 4, 4]
    starts = np.cumsum([0, *(len(s) for s in sounds)]) / 16000
    want = [w for s, since in zip(sounds, starts, strict=False) for w in offline(s, since)]
    assert [(w["word"], w["start"], w["end"]) for w in words_of(made)] == near(want)
    assert ends[-1]["received"]["audio"] == sum(map(len, sounds))
    assert ends[-1]["sent"]["text"] == sum(len(e["text"]) for e in ends)


def test_frames_have_utterances_too(server: tuple[Service, str]) -> None:
    pieces = [frames(1, 2, n, seed=n) for n in (9, 1, 30, 4)]
    messages: list[bytes | str] = []
    for x in pieces:
        messages += [*cut(x, 2, [5]), END]
    made = asyncio.run(talk(server[1], "looks", messages))
    got, batch = [[]], ort.InferenceSession(LOOKS.SerializeToString())
    for message in made:
        if isinstance(message, bytes):
            got[-1].append(np.frombuffer(message, "<f4").reshape(1, 3, -1))
        elif message["type"] == "utterance":
            got.append([])
    assert not got.pop() and len(got) == len(pieces)
    for x, y in zip(pieces, got, strict=True):
        np.testing.assert_allclose(np.concatenate(y, 2), batch.run(None, {"x": x})[0], atol=1e-5)


def test_an_utterance_that_is_too_short_fails_alone(server: tuple[Service, str]) -> None:
    long, short = frames(1, 2, 20), frames(1, 2, 3)
    messages: list[bytes | str] = [long.tobytes(), END, short.tobytes(), END, long.tobytes()]
    made = asyncio.run(talk(server[1], "valid", messages))
    first, second, done = told(made, "utterance", "done")
    assert "error" not in first and second["error"]["code"] == "bad_frames" and done["type"] == "done"
    got = np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in made if isinstance(m, bytes)], 2)
    want = ort.InferenceSession(VALID.SerializeToString()).run(None, {"x": long})[0]
    np.testing.assert_allclose(got, np.concatenate([want, want], 2), atol=1e-5)


def test_a_full_server_keeps_every_utterance(server: tuple[Service, str]) -> None:
    """Streams hold their places from one utterance to the next."""
    sounds = [speech.sound("lights"), speech.sound("numbers")]
    messages: list[bytes | str] = [m for s in sounds * 2 for m in (s.tobytes(), END)]

    async def full() -> list[list[Any]]:
        return await asyncio.gather(*(talk(server[1], "recogniser", messages, format="pcm16") for _ in range(3)))

    want = [speech.said(s) for s in sounds] * 2
    assert [[e["text"] for e in told(made, "utterance")] for made in asyncio.run(full())] == [want] * 3


def test_a_stream_goes_on_after_a_cut_in_its_second_utterance(server: tuple[Service, str]) -> None:
    first, second = speech.sound("numbers"), speech.sound("lights")
    url = f"ws://{server[1]}/v1/stream/recogniser"

    async def cut_in_the_second() -> tuple[list[Any], list[Any]]:
        before: list[Any] = []
        ws = await connect(url)
        token = (await opened(ws, format="pcm16", resume=True))["token"]
        await ws.send(first.tobytes())
        await ws.send(END)
        await ws.send(second[:30000].tobytes())
        acked: dict[str, Any] = {}
        while acked.get("utterances") != 1 or acked["received"]["audio"] <= len(first):
            before.append(message := json.loads(await ws.recv()))
            if message["type"] == "ack":
                acked = message
                await ws.send(json.dumps({"type": "ack", "mark": message["mark"]}))
        ws.transport.abort()
        length = sum(len(m["added"]) for m in told(before, "text"))
        async with connect(url) as ws:
            ready = await opened(ws, resume=token, have={"text": length, "utterances": 1})
            assert ready["received"] == acked["received"] and ready["utterances"] == 1
            await ws.send(second[ready["received"]["audio"] - len(first) :].tobytes())
            await ws.send(json.dumps({"type": "flush"}))
            return before, [json.loads(m) async for m in ws]

    before, after = asyncio.run(cut_in_the_second())
    texts = [m["text"] for m in told([*before, *after], "utterance", "done")]
    assert texts == [speech.said(first), speech.said(second)]
    want = offline(first) + offline(second, len(first) / 16000)
    assert [(w["word"], w["start"], w["end"]) for w in words_of([*before, *after])] == near(want)


def test_an_end_of_an_utterance_that_arrived_is_not_said_again(server: tuple[Service, str]) -> None:
    """The cut comes before any snapshot of what the client has seen."""
    samples = speech.sound("numbers")
    url = f"ws://{server[1]}/v1/stream/recogniser"

    async def through() -> list[Any]:
        ws, seen = await connect(url), list[Any]()
        token = (await opened(ws, format="pcm16", resume=True))["token"]
        await ws.send(samples.tobytes())
        await ws.send(END)
        while not told(seen, "utterance"):
            seen.append(json.loads(await ws.recv()))
        ws.transport.abort()
        have = {"text": len(told(seen, "utterance")[0]["text"]), "utterances": 1}
        async with connect(url) as ws:
            ready = await opened(ws, resume=token, have=have)
            await ws.send(samples[ready["received"]["audio"] :].tobytes())
            if not ready.get("utterances"):
                await ws.send(END)
            await ws.send(json.dumps({"type": "flush"}))
            return seen + [json.loads(m) async for m in ws]

    made = asyncio.run(through())
    assert [e["text"] for e in told(made, "utterance", "done")] == [speech.said(samples), ""]
    assert [(w["word"], w["start"], w["end"]) for w in words_of(made)] == near(offline(samples))
