"""Pipecat's transcription service for OpenAI, unmodified, with turn detection on the server, and with its own."""

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
from tests.serve.test_realtime import resampled_text

WHY = "pip install pipecat-ai[openai]"
pytest.importorskip("pipecat", reason=WHY)
services = pytest.importorskip("pipecat.services.openai.stt", reason=WHY)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    names = (("gpt-*", "recogniser"), ("whisper-1", "recogniser"))
    with serving([speech.served()], Settings(Machine(most=3, calibrate=False), aliases=names)) as found:
        yield found


def heard(where: str, detection: Any, enough: Any) -> list[Any]:
    """The frames that come out of a pipeline of the service alone."""
    from pipecat.frames.frames import (
        EndFrame,
        ErrorFrame,
        InputAudioRawFrame,
        VADUserStartedSpeakingFrame,
        VADUserStoppedSpeakingFrame,
    )
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.runner import PipelineRunner
    from pipecat.pipeline.task import PipelineParams, PipelineTask
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

    frames, done = [], asyncio.Event()

    class Sink(FrameProcessor):
        async def process_frame(self, frame: Any, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            frames.append(frame)
            if enough(frames) or isinstance(frame, ErrorFrame):
                done.set()
            await self.push_frame(frame, direction)

    async def through() -> None:
        service = services.OpenAIRealtimeSTTService(
            api_key="none",
            base_url=f"ws://{where}/v1/realtime",
            turn_detection=detection,
            settings=services.OpenAIRealtimeSTTService.Settings(model="gpt-transcribe"),
        )
        task = PipelineTask(
            Pipeline([service, Sink()]), params=PipelineParams(audio_in_sample_rate=24000), enable_rtvi=False
        )
        running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
        samples = spoken()
        await asyncio.sleep(0.5)
        if detection is False:
            await task.queue_frame(VADUserStartedSpeakingFrame())
        for at in range(0, len(samples), 480):
            await task.queue_frame(InputAudioRawFrame(samples[at : at + 480].tobytes(), 24000, 1))
        if detection is False:
            await task.queue_frame(VADUserStoppedSpeakingFrame())
        async with asyncio.timeout(30):
            await done.wait()
        await task.queue_frame(EndFrame())
        await asyncio.wait_for(running, 20)

    asyncio.run(through())
    assert not [frame for frame in frames if isinstance(frame, ErrorFrame)]
    return frames


def texts(frames: list[Any]) -> str:
    from pipecat.frames.frames import TranscriptionFrame

    return " ".join(frame.text for frame in frames if isinstance(frame, TranscriptionFrame))


@pytest.mark.parametrize("detection", [{"type": "server_vad"}, None, False])
def test_it_transcribes(server: tuple[Service, str], detection: Any) -> None:
    from pipecat.frames import frames as kinds

    want = speech.said(speech.sound("numbers")) if detection is not False else resampled_text(spoken(), 24000)
    frames = heard(server[1], detection, lambda frames: len(texts(frames)) >= len(want))
    assert texts(frames) == want
    proposed = [
        sum(isinstance(frame, getattr(kinds, f"ProposedUser{what}SpeakingFrame")) for frame in frames)
        for what in ("Started", "Stopped")
    ]
    assert proposed[0] == proposed[1] and bool(proposed[0]) == (detection is not False)
