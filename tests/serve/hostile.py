"""Clients that try to hurt others: a table of behaviours, each repeated until its time is up.

A behaviour is a function of a `Target`, made by one of the factories below. Whatever the server does to it (an error, a
close, a reset) it begins again.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import socket
import struct
import time
import wave
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.serve.bystanders import NAME, PULSE
from tests.serve.fuzz import masked

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPEN = '{"type": "open"}'
RNG = random.Random(0)
ENDS = (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError)


@dataclass(frozen=True)
class Target:
    """The server, and when to stop."""

    where: str
    until: float  # time.monotonic()

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until


Behaviour = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True)
class Hostile:
    """A behaviour under its name. clients: how many at once."""

    name: str
    act: Behaviour
    clients: int = 1

    async def attack(self, target: Target) -> None:
        """Again and again, all clients at once, until the time is up."""

        async def one() -> None:
            while not target.over:
                with suppress(*ENDS):
                    await asyncio.wait_for(self.act(target), max(target.until - time.monotonic(), 0.01))
                await asyncio.sleep(0.002)

        await asyncio.gather(*(one() for _ in range(self.clients)))


def text(message: str | bytes) -> bytes:
    return masked(TEXT, message.encode() if isinstance(message, str) else message, RNG)


def binary(message: bytes) -> bytes:
    return masked(BINARY, message, RNG)


def raw_frame(first: int, second: int, rest: bytes = b"") -> bytes:
    return bytes((first, second)) + rest


class Raw:
    """A TCP connection that says whatever it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._discarding: asyncio.Task[None] | None = None

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def discard(self) -> None:
        """Read everything from now on, and forget it."""

        async def read() -> None:
            with suppress(*ENDS):
                while await self.reader.read(1 << 16):
                    pass
            self.writer.close()

        self._discarding = asyncio.create_task(read())

    async def quiet(self, target: Target) -> None:
        """Until the server hangs up, or the time is up."""
        while not target.over and not self.reader.at_eof():
            with suppress(asyncio.TimeoutError):
                if not await asyncio.wait_for(self.reader.read(1 << 16), 0.1):
                    return

    def end(self, reset: bool) -> None:
        if self._discarding is not None:
            self._discarding.cancel()
        if reset:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


class Connected:
    """`async with Connected(target) as raw`: a bare connection, or a websocket whose handshake is through."""

    def __init__(
        self, target: Target, path: str | None = None, headers: str = "", reset: bool = False, buffer: int = 0
    ) -> None:
        self._target, self._path, self._headers = target, path, headers
        self._reset, self._buffer = reset, buffer
        self._raw: Raw

    async def __aenter__(self) -> Raw:
        host, port = self._target.where.split(":")
        sock = socket.socket()
        sock.setblocking(False)
        if self._buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
            self._raw = Raw(*await asyncio.open_connection(sock=sock, limit=1 << 16))
        except BaseException:
            sock.close()
            raise
        if self._path is not None:
            try:
                await self._raw.say(handshake(self._target.where, self._path, self._headers))
                await self._raw.reader.readuntil(b"\r\n\r\n")
            except BaseException:
                self._raw.end(True)
                raise
        return self._raw

    async def __aexit__(self, *_: object) -> None:
        self._raw.end(self._reset)


def handshake(where: str, path: str, headers: str = "", version: str = "13", key: str = "") -> bytes:
    key = key or base64.b64encode(bytes(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: {version}\r\n{headers}\r\n"
    ).encode()


STREAM = f"/v1/stream/{NAME}"


# ---- factories


def flooding(*frames: bytes, opening: str | None = OPEN, reads: bool = True, each: int = 1 << 16) -> Behaviour:
    """These frames over and over, as fast as they are taken. each: bytes a write."""
    blob = b"".join(frames)
    blob *= max(each // len(blob), 1)

    async def act(target: Target) -> None:
        async with Connected(target, STREAM, reset=True) as raw:
            if opening is not None:
                await raw.say(text(opening))
            if reads:
                raw.discard()
            while not target.over:
                await raw.say(blob)
                await asyncio.sleep(0)

    return act


def once(*messages: bytes, opening: str | None = OPEN, reset: bool = True, then: float = 0.0) -> Behaviour:
    """Open, say this, wait a moment, and go."""

    async def act(target: Target) -> None:
        async with Connected(target, STREAM, reset=reset) as raw:
            raw.discard()
            if opening is not None:
                await raw.say(text(opening))
            for message in messages:
                await raw.say(message)
            await asyncio.sleep(then)

    return act


def dripping(data: bytes, pause: float = 0.002, path: str | None = STREAM, size: int = 1) -> Behaviour:
    """A few bytes at a time."""

    async def act(target: Target) -> None:
        async with Connected(target, path) as raw:
            raw.discard()
            for at in range(0, len(data), size):
                await raw.say(data[at : at + size])
                await asyncio.sleep(pause)
            await asyncio.sleep(1)

    return act


def silent(data: bytes, path: str | None = None, connections: int = 20) -> Behaviour:
    """So much, and then nothing, on many connections."""

    async def act(target: Target) -> None:
        async def one() -> None:
            async with Connected(target, path) as raw:
                await raw.say(data)
                await raw.quiet(target)

        await asyncio.gather(*(one() for _ in range(connections)), return_exceptions=True)

    return act


def requesting(*requests: bytes, reads: bool = True) -> Behaviour:
    """HTTP on a connection of its own, over and over."""

    async def act(target: Target) -> None:
        async with Connected(target) as raw:
            if reads:
                raw.discard()
            for data in requests:
                await raw.say(data.replace(b"WHERE", target.where.encode()))
            await raw.quiet(target) if not reads else await asyncio.sleep(0.02)

    return act


def posting(head: str, *parts: bytes, pause: float = 0.0, reads: bool = True, name: str = NAME) -> Behaviour:
    """A file for /v1/run, in these parts."""
    first = f"POST /v1/run/{name} HTTP/1.1\r\nHost: WHERE\r\nConnection: close\r\n{head}\r\n"

    async def act(target: Target) -> None:
        async with Connected(target, buffer=0 if reads else 4096) as raw:
            if reads:
                raw.discard()
            await raw.say(first.replace("WHERE", target.where).encode())
            for part in parts:
                await raw.say(part)
                await asyncio.sleep(pause)
            await asyncio.sleep(0.2 if reads else 5)

    return act


def endlessly(first: bytes, again: bytes, path: str | None = None, opening: bytes = b"") -> Behaviour:
    """Something that never comes to its end."""

    async def act(target: Target) -> None:
        async with Connected(target, path) as raw:
            raw.discard()
            await raw.say(opening + first.replace(b"WHERE", target.where.encode()))
            while not target.over:
                await raw.say(again)
                await asyncio.sleep(0)

    return act


# ---- some that are like no other


async def odd_rates(target: Target) -> None:
    rate = RNG.randrange(1, 1_000_000) if RNG.random() < 0.5 else RNG.choice((1, 7, 8001, 11025, 999_999))
    await once(text(json.dumps({"type": "open", "format": "pcm16", "rate": rate})), opening=None, then=0.05)(target)


async def storm_of_tokens(target: Target) -> None:
    """A stream with a token, cut, and taken up again at once, by three at a time."""
    async with Connected(target, STREAM, reset=True) as raw:
        await raw.say(text('{"type": "open", "resume": true}'))
        said = await raw.reader.readuntil(b'"received"')
        token = said.split(b'"token":"')[1].split(b'"')[0].decode()
        await raw.say(binary(bytes(4 * PULSE)))
    again = text(json.dumps({"type": "open", "resume": token, "have": {}}))
    await asyncio.gather(*(once(again, opening=None, then=0.02)(target) for _ in range(3)), return_exceptions=True)


async def many_streams(target: Target) -> None:
    """Opened, and then silent."""
    await silent(text(OPEN), STREAM, 30)(target)


async def reader_of_drops(target: Target) -> None:
    """Sends as fast as it can, reads a byte now and then."""
    async with Connected(target, STREAM, reset=True, buffer=4096) as raw:
        await raw.say(text(OPEN))

        async def sip() -> None:
            while not target.over:
                await raw.reader.read(1)
                await asyncio.sleep(0.05)

        sipping = asyncio.create_task(sip())
        try:
            while not target.over:
                await raw.say(binary(bytes(4 * PULSE)) * 8)
        finally:
            sipping.cancel()


async def urgent(target: Target) -> None:
    async with Connected(target, STREAM, reset=True) as raw:
        raw.discard()
        sock = raw.writer.get_extra_info("socket")._sock
        while not target.over:
            sock.send(b"!", socket.MSG_OOB)
            await asyncio.sleep(0)


async def half_closed(target: Target) -> None:
    async with Connected(target, STREAM, reset=True) as raw:
        await raw.say(text(OPEN) + binary(bytes(4 * PULSE)) * 20)
        raw.writer.write_eof()
        await raw.quiet(target)


async def closed_at_once(target: Target) -> None:
    async with Connected(target, reset=True):
        pass


async def ended_at_once(target: Target) -> None:
    async with Connected(target) as raw:
        raw.writer.write_eof()
        await raw.quiet(target)


def sound_file(seconds: float, channels: int = 2, rate: int = 16000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(int(seconds * rate) * 2 * channels))
    return out.getvalue()


def a_file(body: bytes, kind: str = "audio/wav", **how: bool) -> Behaviour:
    head = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return posting(head, *(body[at : at + (1 << 18)] for at in range(0, len(body), 1 << 18)), **how)  # type: ignore[arg-type]


def odd_wav(**fields: int) -> bytes:
    """A header with numbers that are not meant."""
    given = {"size": 1 << 31, "kind": 1, "channels": 1, "rate": 16000, "bits": 16, "data": 1 << 31} | fields
    f = given
    width = max(f["channels"] * f["bits"] // 8, 0) & 0xFFFF
    head = struct.pack("<HHIIHH", f["kind"], f["channels"], f["rate"], 0, width, f["bits"])
    return (
        b"RIFF" + struct.pack("<I", f["size"]) + b"WAVEfmt \x10\0\0\0" + head + b"data" + struct.pack("<I", f["data"])
    )


def in_fragments(number: int, payload: bytes = b"", last: bool = True) -> bytes:
    parts = [masked(BINARY if not n else CONTINUED, payload, RNG, last=False) for n in range(number - 1)]
    return b"".join(parts) + masked(CONTINUED, b"", RNG, last=last)
