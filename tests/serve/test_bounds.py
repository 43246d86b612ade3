"""Whatever waits to be whole is waited for, or refused: the server never stops reading what a stream needs."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect

import pulsify
from pulsify.serve import transcribe
from pulsify.serve.connection import Connection
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Limits, Service, Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.store import Memory
from pulsify.serve.transcribe import Transcription
from tests.models import frames, look_ahead, model, node, run_batch, weights
from tests.serve import speech
from tests.serve.live import cut, exchange, opened, serving

TWO = model(
    [node("Conv", "a wa", "ha", pads=[1, 1]), node("Conv", "b wb", "hb", pads=[2, 0]), node("Add", "ha hb", "y")],
    {"a": ["B", 2, "T"], "b": ["B", 1, "T"]},
    ["y"],
    {"wa": weights(3, 2, 3), "wb": weights(3, 1, 3)},
)
TIGHT = Settings(Machine(most=4, calibrate=False), Limits(waiting_bytes=1 << 14))


def of_two(a: list[bytes], b: list[bytes]) -> list[bytes]:
    """Messages by turns, each with the number of its input."""
    return [head + c for pair in zip(a, b) for head, c in zip((bytes(4), b"\1\0\0\0"), pair)]


def run(chunks: list[bytes], name: str, served: list[Any], settings: Settings) -> tuple[list[bytes], dict[str, Any]]:
    async def through(where: str) -> tuple[list[bytes], dict[str, Any]]:
        made, said = await asyncio.wait_for(exchange(where, name, chunks), 30)
        return made, said[-1]

    with serving(served, settings) as (_, where):
        return asyncio.run(through(where))


def test_an_input_far_ahead_of_another_is_refused() -> None:
    served = [of_stream("two", pulsify.stream(TWO, 4, verify=False), None)]
    a, b = cut(frames(1, 2, 4000), 2, [500]), cut(frames(1, 1, 4000), 2, [500])
    _, last = run([bytes(4) + c for c in a] + [b"\1\0\0\0" + c for c in b], "two", served, TIGHT)
    assert (last["code"], "far ahead" in last["message"]) == ("bad_frames", True)


def test_heads_of_many_small_messages_do_not_add_up() -> None:
    served = [of_stream("two", pulsify.stream(TWO, 4, verify=False), None)]
    a, b = frames(1, 2, 2500), frames(1, 1, 2500)
    made, last = run(of_two(cut(a, 2, [1]), cut(b, 2, [1])), "two", served, TIGHT)
    assert last["type"] == "done"
    got = np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in made], 2)
    np.testing.assert_allclose(got, run_batch(TWO, {"a": a, "b": b})["y"], atol=1e-5)


def test_a_pulse_that_is_larger_than_what_may_wait() -> None:
    proto = model([node("Conv", "x w", "y", pads=[2, 0])], {"x": ["B", 64, "T"]}, ["y"], {"w": weights(2, 64, 3)})
    served, x = [of_stream("m", pulsify.stream(proto, 100, verify=False), None)], frames(1, 64, 250)
    made, last = run(cut(x, 2, [9]), "m", served, TIGHT)
    assert last["type"] == "done"
    got = np.concatenate([np.frombuffer(m, "<f4").reshape(1, 2, -1) for m in made], 2)
    np.testing.assert_allclose(got, run_batch(proto, x)["y"], atol=1e-4)


def test_an_utterance_that_is_cleared_lets_the_next_one_speak() -> None:
    sound = speech.sound()

    async def through(where: str) -> str:
        async with connect(f"ws://{where}/v1/realtime?model=recogniser", max_size=None, compression=None) as ws:
            form = {"format": {"type": "audio/pcm", "rate": 16000}}
            session = {"type": "transcription", "audio": {"input": form}}
            await ws.send(json.dumps({"type": "session.update", "session": session}))
            for data in [np.tile(sound, 8).tobytes()[:200_000]] * 4 + [b"", sound.tobytes()]:
                event = {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}
                await ws.send(json.dumps(event if data else {"type": "input_audio_buffer.clear"}))
            await ws.send(json.dumps({"type": "input_audio_buffer.commit"}))
            while True:
                said = json.loads(await asyncio.wait_for(ws.recv(), 30))
                if said["type"].endswith("completed"):
                    return str(said["transcript"])

    settings = Settings(Machine(most=4, calibrate=False), Limits(waiting_bytes=1 << 18))
    with serving([speech.served()], settings) as (_, where):
        assert asyncio.run(through(where)) == speech.said(sound)


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_a_server_that_stops_keeps_what_the_client_acknowledged(later: float) -> None:
    """The client hears no more after its first ack; two snapshots follow, the last one as the server stops."""
    store, x = Memory(60), frames(1, 2, 400)
    settings = Settings(Machine(most=4, calibrate=False), key=b"k" * 32, snapshot_seconds=0.1, drain_seconds=0.1)
    served = [of_stream("m", pulsify.stream(look_ahead("B"), 4, verify=False), None)]

    async def through(first: Any, here: str, there: str) -> dict[str, Any]:
        have = 0
        async with connect(f"ws://{here}/v1/stream/m", compression=None) as ws:
            token = (await opened(ws, resume=True))["token"]
            for at in range(0, 400, 4):
                await ws.send(np.ascontiguousarray(x[:, :, at : at + 4]).tobytes())
                await asyncio.sleep(0.005)
            while True:
                message = await ws.recv()
                if isinstance(message, bytes):
                    have += len(message) // 12
                elif (said := json.loads(message))["type"] == "ack":
                    await ws.send(json.dumps({"type": "ack", "mark": said["mark"]}))
                    break
            await ws.send(np.ascontiguousarray(x[:, :, :40]).tobytes())
            await asyncio.sleep(later)
            stopping = asyncio.run_coroutine_threadsafe(first.drain(), first._loop)
            await asyncio.to_thread(stopping.result, 10)
        async with connect(f"ws://{there}/v1/stream/m", compression=None) as ws:
            return await opened(ws, resume=token, have={"y": have})

    with serving(served, settings, store) as (first, here), serving(served, settings, store) as (_, there):
        assert asyncio.run(through(first, here, there))["type"] == "ready"


class Unread:
    """A peer whose client reads nothing."""

    def __init__(self) -> None:
        self.said: list[bytes | str] = []
        self.closed: int | None = None

    def send(self, message: bytes | str) -> None:
        self.said.append(message)

    def close(self, code: int, reason: str) -> None:
        self.closed = code

    def abort(self) -> None: ...
    def pause(self, paused: bool) -> None: ...

    def waiting(self) -> int:
        return sum(map(len, self.said))


@pytest.mark.parametrize("kind", ["stream", "realtime"])
def test_answers_that_nobody_reads_do_not_pile_up(kind: str) -> None:
    served = speech.served() if kind == "realtime" else of_stream("m", pulsify.stream(look_ahead("B"), 4), None)
    service = Service([served], Settings(Machine(most=4, calibrate=False), Limits(waiting_bytes=10_000)))
    peer, name = Unread(), served.name

    async def talk() -> None:
        made = (Connection if kind == "stream" else Transcription)(service, service.models[name], peer)
        for _ in range(1000):
            made.text('{"type": "ping", "id": "are you there"}' if kind == "stream" else '{"type": "session.upgrade"}')

    asyncio.run(talk())
    assert peer.closed == 4408 and peer.waiting() < 12_000


def test_a_realtime_session_that_is_over_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client never answers the close."""
    monkeypatch.setattr(transcribe, "PATIENCE", 0.1)

    async def through(where: str) -> bytes:
        reader, writer = await asyncio.open_connection(*where.split(":"))
        ask = f"GET /v1/realtime HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(f"{ask}Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x81\xfe\x00\x80" + bytes(4) + b"?" * 128)  # longer than a message may be
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b"too_large"
        finally:
            writer.close()

    settings = Settings(Machine(most=4, calibrate=False), Limits(message_bytes=100))
    with serving([speech.served()], settings) as (_, where):
        assert b"too_large" in asyncio.run(through(where))
