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
