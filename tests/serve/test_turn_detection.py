"""Turn detection on the server: utterances begin and end where the sound says, sample for sample."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from pulsify.core.errors import InvalidModel
from pulsify.serve import detectors
from pulsify.serve.hosted import Machine
from pulsify.serve.scheduler import Scheduler
from pulsify.serve.service import Limits, Service, Settings
from tests.serve import speech
from tests.serve.live import Array, serving
from tests.serve.realtime import Event, Session, session
from tests.serve.test_realtime import resampled_text


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    settings = Settings(Machine(most=3, calibrate=False), aliases=(("gpt-*", "recogniser"),))
    with serving([speech.served()], settings) as found:
        yield found


@lru_cache
def talk() -> Array:
    """Words with pauses, int16 at 16000 Hz."""
    pause = np.zeros(24000, "<i2")
    return np.concatenate([pause, speech.sound("lights"), pause, speech.sound("numbers"), pause])


async def configure(one: Session, rate: int = 16000, **how: Any) -> None:
    heard = {"format": {"type": "audio/pcm", "rate": rate}, "turn_detection": {"type": "server_vad", **how}}
    await one.say("session.update", session={"type": "transcription", "audio": {"input": heard}})


async def listened(where: str, samples: Array, rate: int, size: int, **how: Any) -> Session:
    """All of it, with a pause at its end that is long enough."""
    async with session(where, "model=gpt-4o-transcribe") as one:
        await configure(one, rate, **how)
        await one.append(samples.tobytes(), size)
        await one.append(np.zeros(2 * rate, "<i2").tobytes(), size)
        await one.say("input_audio_buffer.clear")  # after all verdicts
        await one.kind("cleared")
        missing = len(one.of("committed")) - len(one.of(".completed"))
        if missing:
            await one.kind(".completed", missing)
        return one


def about(event: Event) -> str | None:
    """The item of an event."""
    return event.get("item_id") or event.get("item", {}).get("id")


def utterances(one: Session) -> list[tuple[str, int, int, Event]]:
    """Of each: item, first and last millisecond, and what was understood. All events are in order."""
    out = []
    for start, stop, commit, done in zip(
        *(one.of(kind) for kind in ("speech_started", "speech_stopped", "committed", ".completed")), strict=True
    ):
        assert len({e["item_id"] for e in (start, stop, commit, done)}) == 1
        name = start["item_id"]
        mine = [
            e["type"].rsplit(".", 1)[-1] for e in one.events if name in (e.get("item_id"), e.get("item", {}).get("id"))
        ]
        assert mine[0] == "speech_started" and mine[-1] == "completed"
        ends = [kind for kind in mine if kind not in ("delta", "completed")]
        assert ends == ["speech_started", "speech_stopped", "committed", "added", "done"]
        out.append((start["item_id"], start["audio_start_ms"], stop["audio_end_ms"], done))
    return out


@pytest.mark.parametrize("rate", [16000, 8000, 24000])
def test_each_utterance_is_the_offline_transcript_of_its_sound(server: tuple[Service, str], rate: int) -> None:
    samples = talk() if rate == 16000 else talk()[::2] if rate == 8000 else np.repeat(talk(), 3)[::2]
    ones = [asyncio.run(listened(server[1], samples, rate, size)) for size in (9600, 1000)]
    assert not any(one.of("error") for one in ones)
    first, second = ([(start, end, done["transcript"]) for _, start, end, done in utterances(one)] for one in ones)
    assert first == second and len(first) == 2
    whole = np.concatenate([samples, np.zeros(2 * rate, "<i2")])
    for start, end, text in first:
        assert text == resampled_text(whole[start * rate // 1000 : end * rate // 1000], rate)
    assert rate == 8000 or " ".join(text for *_, text in first if text) == " ".join(
        [speech.said(speech.sound(name)) for name in ("lights", "numbers")]
    )


def test_silence_and_prefix_are_honoured(server: tuple[Service, str]) -> None:
    def spans(**how: Any) -> list[tuple[int, int]]:
        one = asyncio.run(listened(server[1], talk(), 16000, 9600, **how))
        return [(start, end) for _, start, end, _ in utterances(one)]

    usual = spans(silence_duration_ms=400, prefix_padding_ms=300)
    for (start, end), (early, later) in zip(usual, spans(silence_duration_ms=400, prefix_padding_ms=100), strict=True):
        assert early == start + 200 and end == later
    patient = spans(silence_duration_ms=1000, prefix_padding_ms=300)
    assert len(patient) == 2 and patient[0][0] == usual[0][0] and patient[-1][1] == usual[-1][1] + 600
    assert len(spans(silence_duration_ms=100)) > len(usual)
    assert spans(threshold=1.0) == []
    ends = [0, *(end for _, end in usual)]
    overlapping = spans(silence_duration_ms=400, prefix_padding_ms=5000)
    assert [start for start, _ in overlapping] == ends[:-1]  # no sound belongs to two


def test_the_client_may_commit_clear_and_update_as_well(server: tuple[Service, str]) -> None:
    """In speech and between; twice, in other pieces: the same."""
    samples, at = talk(), 24000 + 14000

    async def through(size: int) -> Session:
        async with session(server[1], "model=gpt-4o-transcribe") as one:
            await configure(one)
            await one.commit()  # nothing yet
            await one.append(samples[:at].tobytes(), size)
            await one.commit()  # in a word
            await one.append(samples[at : at + 16000].tobytes(), size)
            await one.say("input_audio_buffer.clear")  # in another
            await one.append(samples[at + 16000 :].tobytes(), size)
            await configure(one, silence_duration_ms=300)
            await one.append(samples.tobytes(), size)
            await configure(one, rate=8000)
            await one.say("input_audio_buffer.clear")
            await one.until(lambda e: e["type"].endswith("cleared"), 2)
            missing = len(one.of("committed")) - len(one.of(".completed"))
            if missing:
                await one.kind(".completed", missing)
            return one

    def shown(one: Session) -> list[Any]:
        keep = ("audio_start_ms", "audio_end_ms", "transcript", "usage")
        out = [[e["type"], *(e.get(key) for key in keep)] for e in one.events if not e["type"].endswith("delta")]
        return sorted(out, key=str)  # transcripts come when they are ready

    first, second = (asyncio.run(through(size)) for size in (32000, 2222))
    assert shown(first) == shown(second)
    assert [e["error"]["code"] for e in first.of("error")] == ["input_audio_buffer_commit_empty"]
    start = first.of("speech_started")[0]["audio_start_ms"]
    assert first.of(".completed")[0]["transcript"] == speech.said(samples[start * 16 : at])
    assert len(first.of("committed")) == len(first.of("speech_started")) - 1 >= 5


def test_sound_in_crumbs_is_heard_alike(server: tuple[Service, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of three samples reach the detector together: none has a place of its own in its line."""
    samples, posted = talk()[20000:62000], list[int]()
    feed = Scheduler.post

    def post(self: Scheduler, live: Any, kind: str, value: Any = None) -> None:
        if kind == "data" and self.name == detectors.NAME:
            posted.append(len(value))
        feed(self, live, kind, value)

    monkeypatch.setattr(Scheduler, "post", post)
    ones = [asyncio.run(listened(server[1], samples, 16000, size)) for size in (6, 9600)]
    assert utterances(ones[0])[0][1:3] == utterances(ones[1])[0][1:3]
    assert [e["transcript"] for e in ones[0].of(".completed")] == [e["transcript"] for e in ones[1].of(".completed")]
    assert sum(size < 256 for size in posted) <= 2


def test_sessions_of_a_full_server_hear_alike(server: tuple[Service, str]) -> None:
    async def full() -> list[Session]:
        sizes = random.Random(3).sample(range(500, 20000, 2), 3)
        return await asyncio.gather(*(listened(server[1], talk(), 16000, size) for size in sizes))

    texts = [[done["transcript"] for *_, done in utterances(one)] for one in asyncio.run(full())]
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) == 2
    assert not server[0].connections


def test_silence_is_not_idle_and_costs_nothing() -> None:
    """The recogniser hears no sound for longer than a stream may be silent."""

    async def through(where: str) -> Session:
        async with session(where, "model=gpt-4o-transcribe") as one:
            await configure(one)
            for _ in range(8):
                await one.append(np.zeros(3200, "<i2").tobytes())
                await asyncio.sleep(0.1)
            await one.append(talk().tobytes())
            await one.kind(".completed")
            return one

    settings = Settings(Machine(most=1, calibrate=False), Limits(idle_seconds=0.4), aliases=(("gpt-*", "recogniser"),))
    with serving([speech.served()], settings) as (_, where):
        assert not asyncio.run(through(where)).of("error")


@pytest.mark.parametrize(
    ("query", "detects"),
    [
        ("model=recogniser", False), ("model=gpt-4o-transcribe", True), ("model=gpt-realtime-whisper", False),
        ("intent=transcription", True),
    ],
)  # fmt: skip
def test_who_says_nothing_gets_what_the_model_is_known_for(
    server: tuple[Service, str], query: str, detects: bool
) -> None:
    async def through() -> tuple[Any, Any]:
        async with session(server[1], query) as one:
            first = one.events[0]["session"]["audio"]["input"]["turn_detection"]
            heard = {"transcription": {"model": "gpt-live-transcribe"}}
            await one.say("session.update", session={"type": "transcription", "audio": {"input": heard}})
            return first, (await one.kind("updated"))["session"]["audio"]["input"]["turn_detection"]

    usual = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}
    assert asyncio.run(through()) == (usual if detects else None, None)


def test_settings_that_cannot_be(server: tuple[Service, str]) -> None:
    bad = [
        {"type": "semantic_vad"}, {"threshold": 2}, {"threshold": "x"}, {"prefix_padding_ms": -1},
        {"idle_timeout_ms": 5000}, {"silence_duration_ms": True}, {"silence_duration_ms": 1e9}, [],
    ]  # fmt: skip

    async def through() -> list[str]:
        async with session(server[1]) as one:
            for detection in bad:
                await one.say("session.update", session={"audio": {"input": {"turn_detection": detection}}})
            await one.kind("error", len(bad))
            return [event["error"]["code"] for event in one.of("error")]

    assert asyncio.run(through()) == ["unsupported"] * 7 + ["bad_message"]


def test_turn_detection_takes_a_share_of_the_time(server: tuple[Service, str]) -> None:
    """As long as there is a session that wants it."""

    async def through() -> list[int]:
        seen = []
        async with session(server[1], "model=gpt-4o-transcribe") as one:
            await configure(one)
            await one.append(talk()[:40000].tobytes())
            await one.kind("speech_started")
            seen.append(server[0].listeners)
            await one.say("input_audio_buffer.clear")
            await one.format(16000)
            await one.until(lambda e: e["type"] == "session.updated", 2 - len(one.of("session.updated")))
            seen.append(server[0].listeners)
            await configure(one)
            await one.kind("session.updated")
            await one.append(talk()[:40000].tobytes())
            await one.kind("speech_started")
        return seen

    assert asyncio.run(through()) == [1, 0]
    end = time.monotonic() + 10
    while server[0].listeners and time.monotonic() < end:
        time.sleep(0.02)
    assert server[0].listeners == 0 and server[0]._listening() == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_server_stops_while_its_detector_is_opened(fails: bool) -> None:
    """Slowly, or not at all."""

    def opened() -> Any:
        time.sleep(0.3)
        if fails:
            raise InvalidModel("no detector")
        return detectors.detector_source().open()

    async def through() -> int:
        source = detectors.ModelSource(detectors.NAME, opened)
        service = Service([speech.served()], Settings(Machine(most=1, calibrate=False), detector=source))
        await service.start()
        await asyncio.sleep(0.6 if fails else 0.05)
        await asyncio.wait_for(service.stop(), 10)
        assert service.opening is not None and service.opening.done()
        return len(service.connections)

    assert asyncio.run(through()) == 0
