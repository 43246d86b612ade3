"""The official `openai` package, unmodified: realtime transcription in both dialects, files, and the list of models."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pulsify.serve.hosted import Machine
from pulsify.serve.service import Service, Settings
from pulsify.serve.tokens import tokens
from tests.serve import speech
from tests.serve.live import serving
from tests.serve.test_realtime import resampled_text

openai = pytest.importorskip("openai", reason="the package openai is not installed")
MODEL = "gpt-4o-transcribe"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    machine, names = Machine(most=3, calibrate=False), (("gpt-*", "recogniser"), ("whisper-1", "recogniser"))
    with serving([speech.served()], Settings(machine, aliases=names, tokens=tokens(["s3cret"]))) as found:
        yield found


def client(where: str) -> Any:
    base = f"://{where}/v1"
    return openai.AsyncOpenAI(api_key="s3cret", base_url=f"http{base}", websocket_base_url=f"ws{base}", max_retries=0)


def spoken() -> np.ndarray:
    """At 24000 Hz, with pauses around."""
    pause = np.zeros(16000, "<i2")
    return np.repeat(np.concatenate([pause, speech.sound("numbers"), pause]), 3)[::2]


async def listened(connection: Any, update: Any) -> list[Any]:
    """What the server says to a client that sends sound and commits nothing."""
    events = [await connection.recv()]
    await update
    samples = spoken()
    for at in range(0, len(samples), 2400):
        data = base64.b64encode(samples[at : at + 2400].tobytes()).decode()
        await connection.input_audio_buffer.append(audio=data)
    async with asyncio.timeout(30):
        async for event in connection:
            events.append(event)
            if event.type.endswith(".completed"):
                return events
    raise AssertionError("nothing was completed")


def check(events: list[Any], items: list[str]) -> None:
    """Every event was understood as what it is: nothing that the package's types need is missing."""
    kinds = [event.type for event in events]
    want = ["speech_started", "speech_stopped", "committed"]
    assert [kind.split(".")[1] for kind in kinds if kind.startswith("input_audio_buffer.")] == want
    assert [kind for kind in kinds if kind in ("created", *items)] == items
    started, stopped = (
        events[kinds.index("input_audio_buffer.speech_started")],
        events[kinds.index("input_audio_buffer.speech_stopped")],
    )
    done, samples = events[-1], spoken()
    text = resampled_text(samples[started.audio_start_ms * 24 : stopped.audio_end_ms * 24], 24000)
    assert done.transcript == text == speech.said(speech.sound("numbers"))
    seconds = (stopped.audio_end_ms - started.audio_start_ms) / 1000
    assert done.usage.type == "duration" and done.usage.seconds == pytest.approx(seconds)
    assert done.item_id == started.item_id and "error" not in kinds
    for event in events:
        if event.type == "transcription_session.updated":  # the package wants a secret that websockets do not have
            continue
        type(event).model_validate(event.model_dump(exclude_unset=True))


def test_realtime(server: tuple[Service, str]) -> None:
    async def through() -> list[Any]:
        async with client(server[1]).realtime.connect(model=MODEL) as connection:
            heard = {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {"model": MODEL, "language": "en"},
                "turn_detection": {"type": "server_vad", "silence_duration_ms": 700},
            }
            session = {"type": "transcription", "audio": {"input": heard}}
            return await listened(connection, connection.session.update(session=session))

    events = asyncio.run(through())
    check(events, ["conversation.item.added", "conversation.item.done"])
    shown = next(e for e in events if e.type == "session.updated").session
    assert type(shown).__name__ == "RealtimeTranscriptionSessionCreateRequest"
    assert (shown.audio.input.turn_detection.silence_duration_ms, shown.audio.input.format.rate) == (700, 24000)


def test_realtime_of_the_beta(server: tuple[Service, str]) -> None:
    """Detection is on without a word about it."""

    async def through() -> list[Any]:
        connect = client(server[1]).beta.realtime.connect
        async with connect(model=MODEL, extra_query={"intent": "transcription"}) as connection:
            how = {"input_audio_format": "pcm16", "input_audio_transcription": {"model": MODEL}}
            how["turn_detection"] = {"type": "server_vad", "silence_duration_ms": 700}
            return await listened(connection, connection.transcription_session.update(session=how))

    events = asyncio.run(through())
    check(events, ["conversation.item.created"])
    shown = next(e for e in events if e.type == "transcription_session.updated").session
    assert shown.input_audio_format == "pcm16" and shown.turn_detection.silence_duration_ms == 700


def written(name: str) -> tuple[str, bytes, str]:
    return "audio.wav", (speech.BUILT_IN.parent / f"{name}.wav").read_bytes(), "audio/wav"


def test_a_file(server: tuple[Service, str]) -> None:
    async def through(**how: Any) -> Any:
        async with client(server[1]) as one:
            return await one.audio.transcriptions.create(file=written("numbers"), **how)

    samples, said = speech.sound("numbers"), speech.said(speech.sound("numbers"))
    plain = asyncio.run(through(model=MODEL, language="en", prompt="numbers", temperature=0))
    assert plain.text == said and plain.usage.seconds == round(len(samples) / 16000, 3)
    assert asyncio.run(through(model="recogniser", response_format="text")).strip() == said
    whole = asyncio.run(
        through(
            model="whisper-1",
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
            language="en",
        )
    )
    want = speech.recogniser().batch(samples.astype(np.float32) / 32768).words
    assert (whole.text, whole.language, whole.duration) == (said, "en", round(len(samples) / 16000, 3))
    assert [(w.word, w.start, w.end) for w in whole.words] == [(w.word, w.start, w.end) for w in want]
    assert [(s.start, s.end, s.text) for s in whole.segments] == [(want[0].start, want[-1].end, said)]


def test_a_file_as_a_stream_of_events(server: tuple[Service, str]) -> None:
    async def through() -> list[Any]:
        async with client(server[1]) as one:
            events = await one.audio.transcriptions.create(file=written("lights"), model=MODEL, stream=True)
            return [event async for event in events]

    *deltas, done = asyncio.run(through())
    assert "".join(event.delta for event in deltas) == done.text == speech.said(speech.sound("lights"))


def test_a_file_that_cannot_be(server: tuple[Service, str]) -> None:
    async def through(**how: Any) -> tuple[int, str]:
        async with client(server[1]) as one:
            with pytest.raises(openai.APIStatusError) as caught:
                await one.audio.transcriptions.create(**{"file": written("lights"), "model": MODEL, **how})
            return caught.value.status_code, caught.value.body["code"]

    assert asyncio.run(through(model="nobody")) == (404, "unknown_model")
    assert asyncio.run(through(response_format="srt")) == (415, "unsupported")
    assert asyncio.run(through(file=("speech.mp3", b"ID3" + bytes(900), "audio/mpeg"))) == (415, "unsupported")


def test_models(server: tuple[Service, str]) -> None:
    async def through() -> tuple[list[Any], Any, str]:
        async with client(server[1]) as one:
            found = [model async for model in one.models.list()]
            with pytest.raises(openai.NotFoundError):
                await one.models.retrieve("nobody")
            return found, await one.models.retrieve("whisper-1"), (await one.models.retrieve("gpt-4o")).id

    found, one, fits = asyncio.run(through())
    assert [model.id for model in found] == ["recogniser", "whisper-1"] and fits == "gpt-4o"
    assert (one.object, one.owned_by) == ("model", "pulsify") and one.created > 1_700_000_000
