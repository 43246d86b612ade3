"""LiveKit's transcription plug-in for OpenAI, unmodified, with turn detection on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pulsify.serve.hosted import Machine
from pulsify.serve.service import Service, Settings
from tests.serve import speech
from tests.serve.live import serving
from tests.serve.test_openai import spoken

WHY = "pip install livekit-agents livekit-plugins-openai"
pytest.importorskip("livekit.agents", reason=WHY)
plugin = pytest.importorskip("livekit.plugins.openai", reason=WHY)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    names = (("gpt-*", "recogniser"), ("whisper-1", "recogniser"))
    with serving([speech.served()], Settings(Machine(most=3, calibrate=False), aliases=names)) as found:
        yield found


def test_streams(server: tuple[Service, str]) -> None:
    from livekit import rtc
    from livekit.agents.stt import SpeechEventType
    from livekit.agents.utils import http_context

    async def through() -> list[Any]:
        http_context._new_session_ctx()
        stt = plugin.STT(
            model="gpt-4o-mini-transcribe", base_url=f"http://{server[1]}/v1", api_key="none", use_realtime=True
        )
        stream, events = stt.stream(), []
        samples = spoken()
        for at in range(0, len(samples), 480):
            piece = samples[at : at + 480]
            stream.push_frame(rtc.AudioFrame(piece.tobytes(), 24000, 1, len(piece)))
        async with asyncio.timeout(30):
            async for event in stream:
                events.append(event)
                if event.type == SpeechEventType.RECOGNITION_USAGE and "stop" in words(events)[-1]:
                    break
        await stream.aclose()
        await stt.aclose()
        await http_context._close_http_ctx()
        return events

    def words(events: list[Any]) -> list[str]:
        return [e.alternatives[0].text for e in events if e.type == SpeechEventType.FINAL_TRANSCRIPT] or [""]

    events = asyncio.run(through())
    kinds = [event.type for event in events]
    assert " ".join(words(events)) == speech.said(speech.sound("numbers"))
    starts, ends = (kinds.count(getattr(SpeechEventType, f"{k}_OF_SPEECH")) for k in ("START", "END"))
    assert starts == ends == len(words(events)) and kinds[0] == SpeechEventType.START_OF_SPEECH
    usage = [e.recognition_usage.audio_duration for e in events if e.type == SpeechEventType.RECOGNITION_USAGE]
    assert len(usage) == ends and 2 < sum(usage) < 6
