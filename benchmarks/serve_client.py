"""Live clients for the benchmark: streams that send as a microphone would, and time what comes back."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serve_models import Bench


@dataclass(frozen=True)
class Load:
    """So many streams for so long. churn: short ones, one after the other, in each place. flat: as fast as it goes."""

    port: int
    bench: Bench
    streams: int
    seconds: float
    churn: bool = False
    flat: bool = False


@dataclass
class Seen:
    """Latencies over the model's own delay, in seconds; messages that should have come and those that did."""

    latencies: list[float] = field(default_factory=list)
    expected: int = 0
    answered: int = 0
    errors: int = 0
    streams: int = 0
    lasted: float = 0.0
    server_bytes: int = 0
    cpu: float = 0.0  # seconds that the client itself took


@dataclass(frozen=True)
class Script:
    """What a stream sends, message by message, as frames of a websocket; and which message brings which answer.

    answer_of: for the n-th answer the number of the message that brings it. reaches: how much has come by then, in
    bytes or characters: a server that has fallen behind may say several answers in one.
    """

    messages: list[bytes]
    answer_of: list[int]
    reaches: list[int]


def framed(kind: int, payload: bytes) -> bytes:
    """Masked with zeros, which leave it as it is: a client need not be quick at what is not measured."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | kind, 0x80 | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 0xFE, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 0xFF, size)
    return head + bytes(4) + payload


def scripted(bench: Bench, count: int) -> Script:
    served = bench.served()
    if served.recogniser is not None:
        return _speech(served, bench, count)
    port, out = served.streams[0].inputs[0], served.streams[0].outputs[0]
    from pulsify.serve.engine import shape_of

    rng = np.random.default_rng(0)
    frames = round(bench.pulse_seconds * float(served.sample_rate or 1))
    made = [
        framed(2, (rng.standard_normal(shape_of(port, frames)) * 0.1).astype(np.float32).tobytes()) for _ in range(8)
    ]
    pulses = frames // port.frames
    size = int(np.prod(shape_of(out, 1))) * out.dtype.itemsize
    given = [max(out.frames * pulses * (i + 1) - out.delay, 0) * size for i in range(count)]
    quiet = sum(g == 0 for g in given)  # messages before the first that is answered
    return Script([made[i % 8] for i in range(count)], list(range(quiet, count)), given[quiet:])


def _speech(served: Any, bench: Bench, count: int) -> Script:
    """The built-in sound over and over; what is said after which message is known beforehand."""
    import wave

    from pulsify.serve.sources import BUILT_IN

    with wave.open(str(BUILT_IN.parent / "lights.wav"), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    size = round(bench.pulse_seconds * float(served.sample_rate))
    sound = np.resize(samples, size * count)
    heard = served.recogniser.transcriber()
    answers, reaches = [], [0]
    for i in range(count):
        piece = sound[i * size : (i + 1) * size]
        if added := heard.push(piece.astype(np.float32) / np.float32(32768)):
            answers.append(i)
            reaches.append(reaches[-1] + len(added))
    return Script([framed(2, sound[i * size : (i + 1) * size].tobytes()) for i in range(count)], answers, reaches[1:])


class Client(asyncio.Protocol):
    """One stream. Answers are counted, not looked at."""

    def __init__(self, load: Load, script: Script, seen: Seen, done: asyncio.Event) -> None:
        self._load, self._script, self._seen, self._done = load, script, seen, done
        self._sent: list[float] = []
        self._rest = b""
        self._answers, self._got, self.ready, self._shaken, self.over = 0, 0, asyncio.Event(), False, False
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        path = f"/v1/stream/{self._load.bench.name}"
        self._transport.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._load.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        if not self._shaken:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = head
                return
            self._shaken = True
            if b" 101 " not in head[:20]:
                self._seen.errors += 1
                self.over = True
                self.ready.set()
                return
            self._transport.write(framed(1, self._load.bench.opening.encode()))
        at, size = 0, len(data)
        now = time.perf_counter()
        while size - at >= 2:
            length, start = data[at + 1], at + 2
            if length == 126:
                if size - at < 4:
                    break
                length, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif length == 127:
                if size - at < 10:
                    break
                length, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if size - start < length:
                break
            self._message(data[at] & 15, data[start : start + length], now)
            at = start + length
        self._rest = data[at:]

    def _message(self, kind: int, payload: bytes, now: float) -> None:
        if kind == 2 or (kind == 1 and payload.startswith(b'{"type":"text"')):
            self._got += len(payload) if kind == 2 else len(json.loads(payload)["added"])
            script = self._script
            while self._answers < len(script.reaches) and script.reaches[self._answers] <= self._got:
                self._seen.latencies.append(now - self._sent[script.answer_of[self._answers]])
                self._answers += 1
        elif payload.startswith(b'{"type":"ready"'):
            self.ready.set()
        elif payload.startswith(b'{"type":"done"'):
            self.over = True
        elif kind == 8:
            self.over = True
            self._transport.close()
        elif payload.startswith((b'{"type":"error"', b'{"type":"warning"')):
            self._seen.errors += 1
            self.over = True
            self.ready.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.over = True
        self.ready.set()
        self._done.set()

    def say(self, number: int) -> None:
        self._sent.append(time.perf_counter())
        self._transport.write(self._script.messages[number])

    def end(self) -> None:
        sent = len(self._sent)
        self._seen.expected += sum(a < sent for a in self._script.answer_of)
        self._seen.answered += min(self._answers, sum(a < sent for a in self._script.answer_of))

    def flush(self) -> None:
        self._transport.write(framed(1, b'{"type": "flush"}'))


async def _stream(load: Load, script: Script, seen: Seen, start: float, phase: float, count: int) -> Client | None:
    """One stream from its open to its last message, each sent when it would have been heard."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    made = await loop.create_connection(lambda: Client(load, script, seen, done), "127.0.0.1", load.port)
    client = made[1]
    await asyncio.wait_for(client.ready.wait(), 60)
    seen.streams += 1
    begin = max(start, time.perf_counter()) + phase
    for number in range(count):
        left = begin + number * load.bench.pulse_seconds - time.perf_counter()
        if left > 0:
            await asyncio.sleep(left)
        if client.over:
            break
        client.say(number)
    return client


async def _drive(load: Load, script: Script, count: int) -> Seen:
    seen, rng = Seen(), random.Random(0)
    if load.flat:
        await _flat_out(load, script, seen, count)
        return seen
    if load.churn:
        await asyncio.gather(*(_come_and_go(load, script, seen, random.Random(i)) for i in range(load.streams)))
        return seen
    start = time.perf_counter() + 0.5 + load.streams * 0.004
    phases = [rng.uniform(0, load.bench.pulse_seconds) for _ in range(load.streams)]
    tasks = []
    for phase in phases:
        tasks.append(asyncio.create_task(_stream(load, script, seen, start, phase, count)))
        await asyncio.sleep(0.002)
    clients = [c for c in await asyncio.gather(*tasks) if c is not None]
    seen.lasted = time.perf_counter() - start
    await asyncio.sleep(2 * load.bench.pulse_seconds + 0.05)
    for client in clients:
        client.end()
    seen.server_bytes = _server_bytes(load.port)
    for client in clients:
        client._transport.abort()
    await asyncio.sleep(0.3)
    return seen


async def _flat_out(load: Load, script: Script, seen: Seen, count: int) -> None:
    """Everything at once, to its end: what it costs a core does not depend on who else is on the machine."""
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(load.streams):
        made = await loop.create_connection(lambda: Client(load, script, seen, asyncio.Event()), "127.0.0.1", load.port)
        clients.append(made[1])
    await asyncio.gather(*(c.ready.wait() for c in clients))
    start = time.perf_counter()
    for number in range(count):
        for client in clients:
            client.say(number)
        while any(c._transport.get_write_buffer_size() > 1 << 16 for c in clients):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
    for client in clients:
        client.flush()
    while not all(c.over for c in clients):
        await asyncio.sleep(0.005)
    seen.lasted, seen.streams = time.perf_counter() - start, len(clients)
    for client in clients:
        client.end()
        client._transport.abort()


async def _come_and_go(load: Load, script: Script, seen: Seen, rng: random.Random) -> None:
    """Short streams until the time is up: some end well, some are cut."""
    end = time.perf_counter() + load.seconds
    while time.perf_counter() < end:
        client = await _stream(load, script, seen, 0.0, 0.0, rng.randrange(1, 20))
        assert client is not None
        if rng.random() < 0.6:
            client.flush()
            for _ in range(200):
                if client.over:
                    break
                await asyncio.sleep(0.01)
        client._transport.abort()


def _server_bytes(port: int) -> int:
    """Memory of the process that listens there, while all streams are open; 0 if it cannot be told."""
    wanted = f":{port:04X} "
    nodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if wanted in line[:25]}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            for link in (folder / "fd").iterdir():
                name = os.readlink(link)
                if name.startswith("socket:[") and name[8:-1] in nodes and folder.name != str(os.getpid()):
                    pages = int((folder / "statm").read_text().split()[1])
                    return pages * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return 0


def drive(load: Load) -> Seen:
    count = int(load.seconds / load.bench.pulse_seconds)
    script, start = scripted(load.bench, count), time.process_time()
    seen = asyncio.run(_drive(load, script, count))
    seen.cpu = time.process_time() - start
    return seen
