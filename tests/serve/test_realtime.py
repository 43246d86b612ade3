"""OpenAI's realtime transcription: what a session keeps, what it survives, and that nobody loses a place."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from pulsify.serve.hosted import Machine
from pulsify.serve.service import Limits, Service, Settings
from pulsify.serve.sound import resampler, telephone
from pulsify.serve.sources import of_recogniser
from tests.serve import speech
from tests.serve.fuzz import masked
from tests.serve.live import Array, serving
from tests.serve.realtime import BETA, Session, session
from tests.serve.test_utterances import talk

MOST = 3
ALIASES = (("gpt-4o-transcribe", "recogniser"), ("whisper-*", "other"))


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    settings = Settings(Machine(most=MOST, calibrate=False), aliases=ALIASES)
    served = [speech.served(), of_recogniser("other", speech.recogniser())]
    with serving(served, settings) as found:
        yield found


def resampled_text(samples: Array, rate: int) -> str:
    """What the offline path makes of sound at another rate, resampled by the resampler's batch model."""
    sound = samples.astype(np.float32) / np.float32(32768)
    if rate != 16000 and len(sound):
        batch = ort.InferenceSession(resampler(rate, 16000).SerializeToString())
        (sound,) = batch.run(None, {"sound": sound[None]})[0]
    return speech.recogniser().batch(sound).text


def pieces(seed: int, count: int) -> list[Array]:
    """Some of the sound there is, of different lengths; the shortest have no word in them."""
    rng, whole = random.Random(seed), np.concatenate([speech.sound("lights"), speech.sound("numbers")])
    starts = [rng.randrange(len(whole)) for _ in range(count)]
    return [whole[start : start + rng.choice((3, 400, 9000, 30000, 60000))] for start in starts]


async def transcripts(one: Session, sounds: list[Array], clears: random.Random | None = None) -> list[str]:
    """Everything is sent and committed as fast as it goes. Some of it is cleared first, if so."""
    await one.format(16000)
    for samples in sounds:
        if clears is not None and clears.random() < 0.4:
            await one.append(samples[::-1].tobytes())
            await one.say("input_audio_buffer.clear")
        await one.append(samples.tobytes())
        await one.commit()
    await one.kind(".completed", len(sounds))
    return [event["transcript"] for event in one.of(".completed")]


@pytest.mark.parametrize("clears", [None, 5])
def test_sessions_of_a_full_server_keep_their_transcripts(server: tuple[Service, str], clears: int | None) -> None:
    async def full() -> list[tuple[list[str], Session]]:
        async def through(seed: int) -> tuple[list[str], Session]:
            async with session(server[1]) as one:
                return await transcripts(one, pieces(seed, 12), random.Random(clears) if clears else None), one

        return await asyncio.gather(*(through(seed) for seed in range(MOST)))

    for seed, (got, one) in enumerate(asyncio.run(full())):
        assert got == [speech.said(samples) for samples in pieces(seed, 12)]
        items = [event["item_id"] for event in one.of("committed")]
        assert [event["item_id"] for event in one.of(".completed")] == items
        assert [event["previous_item_id"] for event in one.of("committed")] == [None, *items[:-1]]
        said = {item: "".join(e["delta"] for e in one.of(".delta") if e["item_id"] == item) for item in items}
        assert list(said.values()) == got and not one.of("error")


def test_a_session_has_one_place_however_fast_it_commits(server: tuple[Service, str]) -> None:
    async def commits() -> tuple[int, list[str]]:
        async with session(server[1]) as one:
            await one.format(16000)
            most, sound = 0, speech.sound()[:4000].tobytes()
            for _ in range(60):
                await one.append(sound)
                await one.commit()
                most = max(most, server[0].taken().total(), len(server[0].models["recogniser"].scheduler))
            await one.kind(".completed", 60)
            return most, [event["transcript"] for event in one.of(".completed")]

    assert asyncio.run(commits()) == (1, [speech.said(speech.sound()[:4000])] * 60)


def test_words_are_timed_in_the_sound_of_the_session(server: tuple[Service, str]) -> None:
    """What was cleared counts: it was sent."""
    lights, numbers = speech.sound("lights"), speech.sound("numbers")

    async def through() -> list[dict[str, Any]]:
        async with session(server[1]) as one:
            await one.format(16000)
            for samples, ending in ((lights, "clear"), (numbers, "commit"), (lights, "commit")):
                await one.append(samples.tobytes())
                await one.say(f"input_audio_buffer.{ending}")
            await one.kind(".completed", 2)
            return one.of(".completed")

    starts = len(lights), len(lights) + len(numbers)
    for event, samples, first in zip(asyncio.run(through()), (numbers, lights), starts, strict=True):
        want = speech.recogniser().batch(samples.astype(np.float32) / 32768).words
        assert event["usage"] == {"type": "duration", "seconds": round(len(samples) / 16000, 3)}
        assert [w["word"] for w in event["words"]] == event["transcript"].split() == [w.word for w in want]
        for word, offline in zip(event["words"], want, strict=True):
            assert word["start"] == pytest.approx(first / 16000 + offline.start, abs=2e-3)
            assert word["end"] == pytest.approx(first / 16000 + offline.end, abs=2e-3)


def test_an_update_without_a_format_keeps_the_rate(server: tuple[Service, str]) -> None:
    async def through() -> tuple[list[Any], list[str]]:
        async with session(server[1]) as one:
            await one.format(16000)
            await one.say("session.update", session={"audio": {"input": {"transcription": {"language": "en"}}}})
            await one.say("transcription_session.update", session={"input_audio_noise_reduction": None})
            await one.append(speech.sound().tobytes())
            await one.commit()
            await one.kind(".completed")
            rates = [e["session"]["audio"]["input"]["format"]["rate"] for e in one.of("session.updated")]
            return rates, [event["transcript"] for event in one.of(".completed")]

    assert asyncio.run(through()) == ([16000] * 3, [speech.said(speech.sound())])


def test_formats_change_between_utterances(server: tuple[Service, str]) -> None:
    """Each is committed and the next one announced before anything is computed."""
    samples = speech.sound()
    codes = {name: np.argsort(telephone(name), kind="stable") for name in ("g711_ulaw", "g711_alaw")}
    slow = samples[::2]

    def coded(name: str) -> bytes:
        """The nearest code of every sample."""
        values = telephone(name)[codes[name]]
        return bytes(codes[name][np.clip(np.searchsorted(values, slow / 32768), 0, 255)].astype(np.uint8))

    forms = [
        ({"type": "audio/pcm", "rate": 16000}, samples.tobytes(), {"format": "pcm16", "rate": 16000}),
        ({"type": "audio/pcmu"}, coded("g711_ulaw"), {"format": "g711_ulaw", "rate": 8000}),
        ({"type": "audio/pcma"}, coded("g711_alaw"), {"format": "g711_alaw", "rate": 8000}),
        ({"type": "audio/pcm"}, np.repeat(samples[:20000], 2).tobytes(), {"format": "pcm16", "rate": 24000}),
    ]

    async def through() -> list[str]:
        async with session(server[1]) as one:
            for form, data, _ in forms:
                heard = {"format": form, "turn_detection": None}
                await one.say("session.update", session={"type": "transcription", "audio": {"input": heard}})
                await one.append(data)
                await one.commit()
            await one.kind(".completed", len(forms))
            return [event["transcript"] for event in one.of(".completed")]

    plain = [asyncio.run(talk(server[1], "recogniser", [data], **how))[-1]["text"] for _, data, how in forms]
    assert asyncio.run(through()) == plain and "play music" in plain[1] and plain[1] == plain[2]


def test_what_cannot_be_is_an_error_and_the_session_continues(server: tuple[Service, str]) -> None:
    append, update = "input_audio_buffer.append", "session.update"
    odd = base64.b64encode(b"abc").decode()
    bad: list[tuple[str, dict[str, Any], str]] = [
        (append, {"audio": "?"}, "bad_message"),
        (append, {"audio": odd}, "bad_frames"),
        (append, {"audio": 5}, "bad_message"),
        (append, {}, "bad_message"),
        ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty"),
        ("response.create", {}, "bad_message"),
        (update, {"session": []}, "bad_message"),
        (update, {"session": {"type": "realtime"}}, "unsupported"),
        (update, {"session": {"audio": {"input": {"format": {"type": "audio/opus"}}}}}, "unsupported"),
        (update, {"session": {"audio": {"input": {"format": {"type": "audio/pcmu", "rate": 16000}}}}}, "unsupported"),
        (update, {"session": {"audio": {"input": {"format": {"rate": 1.5}}}}}, "unsupported"),
        (update, {"session": {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 24001}}}}}, "unsupported"),
        (update, {"session": {"audio": {"input": {"format": 7}}}}, "bad_message"),
        (update, {"session": {"audio": 3}}, "bad_message"),
        (update, {"session": {"input_audio_format": "mp3"}}, "unsupported"),
        (update, {"session": {"input_audio_transcription": {"model": "nobody"}}}, "unknown_model"),
        (update, {"session": {"input_audio_transcription": {"model": 7}}}, "bad_message"),
    ]
    samples = speech.sound()

    async def through() -> Session:
        async with session(server[1]) as one:
            await one.format(16000)
            await one.kind("session.updated")
            for kind, values, _ in bad:
                await one.say(kind, event_id="mine", **values)
            await one.ws.send("no JSON")
            await one.ws.send(b"no text")
            await one.append(samples[:20000].tobytes())
            await one.say(append, audio="?")
            await one.say(update, session={"input_audio_format": "g711_alaw"})  # not within an utterance
            await one.append(samples[20000:].tobytes())
            await one.commit()
            await one.kind(".completed")
            return one

    one = asyncio.run(through())
    errors = [event["error"] for event in one.of("error")]
    want = [code for *_, code in bad] + ["bad_message"] * 4
    assert [e["code"] for e in errors] == want
    assert {e["event_id"] for e in errors[: len(bad)]} <= {"mine", None} and errors[0]["event_id"] == "mine"
    assert all(e["type"] == "invalid_request_error" and e["message"] for e in errors)
    assert one.of(".completed")[0]["transcript"] == speech.said(samples)


def test_names_of_models(server: tuple[Service, str]) -> None:
    """By the URL, or by an update if it says none; what is refused changes nothing."""

    async def through(query: str, *models: str) -> tuple[list[str], list[str], str]:
        async with session(server[1], query) as one:
            for model in models:
                heard = {"transcription": {"model": model}, "turn_detection": None}
                await one.say("session.update", session={"type": "transcription", "audio": {"input": heard}})
            await one.format(16000)
            await one.append(speech.sound().tobytes())
            await one.commit()
            event = await one.kind(".completed")
            shown = [e["session"]["audio"]["input"]["transcription"]["model"] for e in one.of("session.updated")]
            return shown, [e["error"]["code"] for e in one.of("error")], event["transcript"]

    said = speech.said(speech.sound())
    assert asyncio.run(through("model=whisper-1")) == (["whisper-1"], [], said)
    names = "gpt-4o-transcribe", "nobody", "whisper-1"
    got = asyncio.run(through("intent=transcription", *names))
    assert got == (["gpt-4o-transcribe", "whisper-1", "whisper-1"], ["unknown_model"], said)
    assert not server[0].connections


@pytest.mark.parametrize("beta", [False, True])
def test_each_dialect_has_its_events(server: tuple[Service, str], beta: bool) -> None:
    async def through() -> Session:
        how = {"additional_headers": BETA} if beta else {}
        async with session(server[1], "intent=transcription", **how) as one:
            if beta:
                await one.say("transcription_session.update", session={"input_audio_format": "pcm16"})
            await one.append(np.repeat(np.append(speech.sound("numbers"), np.zeros(16000, "<i2")), 2).tobytes())
            await one.kind(".completed", 1)
            return one

    one = asyncio.run(through())
    shown = one.events[0]["session"]
    assert shown["id"].startswith("sess_") and shown["object"] == "realtime.transcription_session"
    kinds = [event["type"] for event in one.events]
    items = [kind for kind in kinds if kind.startswith("conversation.item.") and kind.count(".") == 2]
    items = items[: 1 + (not beta)]
    if beta:
        assert shown["input_audio_format"] == "pcm16"
        assert items == ["conversation.item.created"] and kinds[1] == "transcription_session.updated"
    else:
        assert shown["audio"]["input"]["format"]["rate"] == 24000
        assert items == ["conversation.item.added", "conversation.item.done"] and shown["type"] == "transcription"
    event = next(e for e in one.events if e["type"] == items[-1])
    assert event["item"]["id"] == one.of("committed")[0]["item_id"] and event["item"]["role"] == "user"


def test_what_was_not_committed_is_at_the_end(server: tuple[Service, str]) -> None:
    """A client that closes its side has committed."""
    samples = speech.sound()

    async def through() -> str:
        reader, writer = await asyncio.open_connection(*server[1].split(":"))
        ask = f"GET /v1/realtime HTTP/1.1\r\nHost: {server[1]}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(f"{ask}Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        rng, audio = random.Random(0), base64.b64encode(samples.tobytes()).decode()
        update = (
            '{"type":"session.update","session":{"audio":{"input":{"format":{"rate":16000},"turn_detection":null}}}}'
        )
        for text in (update, f'{{"type":"input_audio_buffer.append","audio":"{audio}"}}'):
            writer.write(masked(1, text.encode(), rng))
        writer.write_eof()
        return (await asyncio.wait_for(reader.read(), 20)).decode("utf-8", "replace")

    got = asyncio.run(through())
    assert f'"transcript": "{speech.said(samples)}"' in got


def test_an_idle_session_ends_and_says_why() -> None:
    async def through(where: str) -> str:
        async with session(where) as one:
            return str((await one.kind("error"))["error"]["code"])

    settings = Settings(Machine(most=2, calibrate=False), Limits(idle_seconds=0.3))
    with serving([speech.served()], settings) as (_, where):
        assert asyncio.run(through(where)) == "idle"
