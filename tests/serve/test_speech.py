"""Recognisers: the transcript over a websocket is the one of the batch models, in either protocol."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import pytest
from websockets.asyncio.client import connect

from pulsify.serve import sound as sounds
from pulsify.serve.service import Service
from tests.serve import speech
from tests.serve.live import Array, cut, exchange, opened, serving


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    with serving([speech.served()]) as found:
        yield found


@pytest.mark.parametrize("name", ["lights", "numbers"])
def test_the_transcript_is_that_of_the_batch_models(server: tuple[Service, str], name: str) -> None:
    samples = speech.sound(name)
    want = speech.said(samples)

    async def several() -> list[Any]:
        sizes = ([1280], [999, 1], [160], [100_000])
        return await asyncio.gather(
            *(exchange(server[1], "recogniser", cut(samples, 0, s), {"format": "pcm16"}) for s in sizes)
        )

    for _, said in asyncio.run(several()):
        assert "".join(s["added"] for s in said if s["type"] == "text") == want
        done = said[-1]
        assert (done["type"], done["received"]["audio"], done["text"]) == ("done", len(samples), want)
        assert done["sent"] == {"text": len(want)}


def resampled(samples: Array, rate: int, to: int) -> Array:
    """By the batch model of the resampler."""
    session = ort.InferenceSession(sounds.resampler(rate, to).SerializeToString())
    return np.asarray(session.run(None, {"sound": samples[None]})[0][0])


def test_sound_at_another_rate_is_resampled(server: tuple[Service, str]) -> None:
    """As if the batch model of the resampler had come first."""
    at_24 = resampled(speech.sound().astype(np.float32) / 32768, 16000, 24000)
    want = recogniser_text(resampled(at_24, 24000, 16000))
    made, said = asyncio.run(
        exchange(server[1], "recogniser", cut(at_24, 0, [777]), {"format": "float32", "rate": 24000})
    )
    assert made == [] and said[-1]["text"] == want == "light on play music louder"


def recogniser_text(samples: Array) -> str:
    return speech.recogniser().batch(samples).text


def test_a_peek_is_what_flush_would_say_and_changes_nothing(server: tuple[Service, str]) -> None:
    samples = speech.sound()
    half = samples[: len(samples) // 2]

    async def peeking() -> tuple[str, str]:
        async with connect(f"ws://{server[1]}/v1/stream/recogniser") as ws:
            assert (await opened(ws, format="pcm16"))["type"] == "ready"
            await ws.send(half.tobytes())
            await ws.send('{"type": "peek"}')
            text = peeked = ""
            while not peeked:
                message = json.loads(await ws.recv())
                text += message.get("added", "")
                if message["type"] == "peek":
                    peeked = text + message["text"]
            await ws.send(samples[len(half) :].tobytes())
            await ws.send('{"type": "flush"}')
            async for each in ws:
                message = json.loads(each)
            return peeked, message["text"]

    assert asyncio.run(peeking()) == (speech.said(half), speech.said(samples))


def test_a_whole_file_by_http(server: tuple[Service, str]) -> None:
    from pulsify.serve.sources import BUILT_IN

    body = (BUILT_IN.parent / "numbers.wav").read_bytes()
    got = httpx.post(f"http://{server[1]}/v1/run/recogniser", content=body, headers={"content-type": "audio/wav"})
    assert (got.status_code, got.json()) == (200, {"text": speech.said(speech.sound("numbers"))})


async def realtime(where: str, sounds: list[Array], rate: int) -> list[dict[str, Any]]:
    """As a client of OpenAI's would: an utterance for each sound."""
    events: list[dict[str, Any]] = []
    async with connect(f"ws://{where}/v1/realtime?model=recogniser", subprotocols=["realtime"]) as ws:  # type: ignore[list-item]
        events.append(json.loads(await ws.recv()))
        form = {"audio": {"input": {"format": {"type": "audio/pcm", "rate": rate}}}}
        await ws.send(json.dumps({"type": "session.update", "session": {"type": "transcription", **form}}))
        for samples in sounds:
            for chunk in cut(samples, 0, [2400]):
                audio = base64.b64encode(chunk).decode()
                await ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            await ws.send(json.dumps({"type": "input_audio_buffer.commit"}))
        while sum(e["type"].endswith(".completed") for e in events) < len(sounds):
            events.append(json.loads(await ws.recv()))
    return events


def test_clients_of_openais_realtime_transcription_are_understood(server: tuple[Service, str]) -> None:
    given = [speech.sound("lights"), speech.sound("numbers")]
    events = asyncio.run(realtime(server[1], given, 16000))
    kinds = [e["type"] for e in events]
    assert kinds[:2] == ["session.created", "session.updated"]
    assert kinds.count("input_audio_buffer.committed") == kinds.count("conversation.item.added") == 2
    items = [e["item_id"] for e in events if e["type"] == "input_audio_buffer.committed"]
    for samples, item in zip(given, items, strict=True):
        mine = [e for e in events if e.get("item_id") == item]
        (completed,) = (e for e in mine if e["type"].endswith(".completed"))
        assert completed["transcript"] == speech.said(samples)
        deltas = [e["delta"] for e in mine if e["type"].endswith(".delta")]
        assert "".join(deltas) == completed["transcript"] and len(deltas) > 1
    assert len({e["event_id"] for e in events}) == len(events)


def test_realtime_says_what_it_does_not_understand(server: tuple[Service, str]) -> None:
    async def say(*texts: str) -> list[dict[str, Any]]:
        async with connect(f"ws://{server[1]}/v1/realtime?model=recogniser") as ws:
            await ws.recv()
            out = []
            for text in texts:
                await ws.send(text)
                out.append(json.loads(await ws.recv()))
            return out

    said = asyncio.run(
        say(
            '{"type": "response.create"}',
            '{"type": "input_audio_buffer.commit"}',
            '{"type": "input_audio_buffer.clear"}',
            '{"type": "input_audio_buffer.append", "audio": "?"}',
        )
    )
    assert [e["type"] for e in said] == ["error", "error", "input_audio_buffer.cleared", "error"]
    assert [e["error"]["code"] for e in said if e["type"] == "error"] == [
        "bad_message", "input_audio_buffer_commit_empty", "bad_message",
    ]  # fmt: skip


def test_a_transcript_goes_on_after_a_cut(server: tuple[Service, str]) -> None:
    """Decoder and text are in the snapshot too: what was said is not said again."""
    samples = speech.sound()

    async def cut_in_the_middle() -> tuple[str, str]:
        url, text, token, acked = f"ws://{server[1]}/v1/stream/recogniser", "", "", 0
        ws = await connect(url)
        ready = await opened(ws, format="pcm16", resume=True)
        token = ready["token"]
        await ws.send(samples[:30000].tobytes())
        while not acked:
            message = json.loads(await ws.recv())
            text += message.get("added", "")
            if message["type"] == "ack":
                acked = message["received"]["audio"]
                await ws.send(json.dumps({"type": "ack", "mark": message["mark"]}))
        ws.transport.abort()
        async with connect(url) as ws:
            ready = await opened(ws, resume=token, have={"text": len(text)})
            assert ready["received"]["audio"] == acked and ready["format"] == "pcm16"
            await ws.send(samples[acked:].tobytes())
            await ws.send('{"type": "flush"}')
            async for each in ws:
                message = json.loads(each)
                text += message.get("added", "")
        return text, message["text"]

    want = speech.said(samples)
    assert asyncio.run(cut_in_the_middle()) == (want, want)
