"""Clients that mean no good: random, cut, huge and out-of-order messages, by the thousand."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
from collections import Counter
from contextlib import suppress

import numpy as np

OPENINGS = (
    {"type": "open"},
    {"type": "open", "format": "float32"},
    {"type": "open", "format": "pcm16", "rate": 8000},
    {"type": "open", "resume": True},
    {"type": "open", "resume": "nobody", "have": {"y": 3}},
    {"type": "open", "output": {"format": "pcm16"}},
)
WORDS = ("flush", "peek", "ping", "ack", "open", "close", "done", "ready", "", "\x00", "open" * 50)
VALUES = (None, True, -1, 0, 1, 2**63, 1e308, "x", "raw", [], {}, [[]], {"y": -1}, "\ud800", "€" * 40)


def masked(kind: int, payload: bytes, rng: random.Random, last: bool = True) -> bytes:
    size, key = len(payload), rng.randbytes(4)
    first = (0x80 if last else 0) | kind
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0xFE, size)
    else:
        head = struct.pack("!BBQ", first, 0xFF, size)
    array = np.frombuffer(payload, np.uint8)
    return head + key + (array ^ np.resize(np.frombuffer(key, np.uint8), size)).tobytes()


def some_json(rng: random.Random) -> bytes:
    kind = rng.randrange(5)
    if kind == 0:
        return json.dumps(rng.choice(OPENINGS)).encode()
    if kind == 1:
        said = {"type": rng.choice(WORDS), rng.choice(("mark", "id", "format", "resume", "q")): rng.choice(VALUES)}
        return json.dumps(said).encode()
    if kind == 2:
        return json.dumps({"type": rng.choice(WORDS[:4])}).encode()
    if kind == 3:
        whole = json.dumps(rng.choice(OPENINGS)).encode()
        return whole[: rng.randrange(len(whole))]
    return rng.choice((b"[" * 5000, b'{"a":' * 1000, b"9" * 6000, b"NaN", b'"', b"\xef\xbb\xbf{}", rng.randbytes(40)))


def some_frames(rng: random.Random, frame: int) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return np.full(frame // 4 * rng.randrange(1, 9), rng.choice((np.nan, np.inf)), np.float32).tobytes()
    if kind == 2:
        return bytes(frame * rng.randrange(3000))
    rows = rng.randrange(1, 40)
    return np.random.default_rng(rng.randrange(1 << 30)).standard_normal(rows * frame // 4).astype("<f4").tobytes()


def some_message(rng: random.Random, frame: int) -> bytes:
    """Most are frames of a websocket, some are not."""
    kind = rng.randrange(20)
    if kind < 8:
        return masked(2, some_frames(rng, frame), rng)
    if kind < 15:
        return masked(1, some_json(rng), rng)
    if kind == 15:
        return masked(rng.choice((8, 9, 10)), rng.randbytes(rng.randrange(130)), rng)
    if kind == 16:
        return masked(rng.choice((0, 1, 2)), rng.randbytes(rng.randrange(300)), rng, last=rng.random() < 0.5)
    if kind == 17:  # a size that is not meant
        return struct.pack("!BBQ", 0x82, 0xFF, rng.choice((1 << 21, 1 << 40, (1 << 63) - 1))) + rng.randbytes(60)
    if kind == 18:
        whole = masked(2, some_frames(rng, frame), rng)
        return whole[: rng.randrange(len(whole))]
    return rng.randbytes(rng.randrange(1, 60))


async def one_client(where: str, path: str, rng: random.Random, frame: int, seen: Counter[str]) -> int:
    """A connection and some messages; how many."""
    host, port = where.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    count, most = 0, rng.randrange(1, 40)
    try:
        key = base64.b64encode(rng.randbytes(16)).decode()
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        seen[head.split(b" ")[1].decode()] += 1
        if rng.random() < 0.8:
            opening = OPENINGS[rng.choice((0, 0, 0, 0, 3, 3, 1, 4))]
            writer.write(masked(1, json.dumps(opening).encode(), rng))
            count += 1
        while count < most and not reader.at_eof():
            writer.write(some_message(rng, frame))
            count += 1
            if rng.random() < 0.3:
                await asyncio.wait_for(writer.drain(), 10)
                await asyncio.sleep(0)
        if rng.random() < 0.5:
            with suppress(asyncio.TimeoutError):
                said = await asyncio.wait_for(reader.read(1 << 20), 0.2)
                for code in ("bad_message", "bad_frames", "too_large", "unsupported", "unknown_stream", "failed"):
                    seen[code] += f'"{code}"'.encode() in said
                seen["done"] += b'"done"' in said
    except (OSError, asyncio.IncompleteReadError):
        seen["cut"] += 1
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()
    return count


async def fuzz(where: str, path: str, frame: int, messages: int, seed: int, at_once: int = 16) -> Counter[str]:
    """So many messages, from many clients at once. What was seen, by kind."""
    seen: Counter[str] = Counter()

    async def one_after_the_other(number: int) -> None:
        rng = random.Random(f"{seed}-{number}")
        while seen["messages"] < messages:
            count = await one_client(where, path, rng, frame, seen)
            seen["messages"] += count

    await asyncio.gather(*(one_after_the_other(n) for n in range(at_once)))
    return seen
