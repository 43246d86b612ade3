"""A whole file at once: the same stream, with somebody who keeps what comes out."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from pulsify.serve import wav
from pulsify.serve.access import Client
from pulsify.serve.connection import Connection
from pulsify.serve.engine import shape_of
from pulsify.serve.hosted import Hosted
from pulsify.serve.protocol import Refused
from pulsify.serve.service import Service
from pulsify.serve.sinks import HEAD, little
from pulsify.serve.sources import Served
from pulsify.serve.uploads import GRACE, REPLY, SLOWEST, Held

CHUNK = 1 << 16
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Collector:
    """A peer that keeps everything, up to so many bytes."""

    def __init__(self, largest: int, held: Held) -> None:
        self.frames: list[bytes] = []
        self.said: list[dict[str, object]] = []
        self.closed, self.unpaused = asyncio.Event(), asyncio.Event()
        self.unpaused.set()
        self._left, self._held = largest, held

    def send(self, message: bytes | str) -> None:
        if isinstance(message, str):
            self.said.append(json.loads(message))
        elif (left := self._left - len(message)) >= 0:
            self._held.add(len(message))
            self._left = left
            self.frames.append(message)
        else:
            raise Refused("too_large", "more comes out than a reply may hold")

    def close(self, code: int, reason: str) -> None:
        self.closed.set()
        self.unpaused.set()

    def abort(self) -> None:
        self.closed.set()
        self.unpaused.set()

    def pause(self, paused: bool) -> None:
        self.unpaused.clear() if paused else self.unpaused.set()

    def waiting(self) -> int:
        return 0


class Reply(Response):
    """Bytes, sent a piece at a time as they are taken, and what is held for them until then."""

    def __init__(self, pieces: list[bytes | memoryview], holds: ExitStack) -> None:
        super().__init__(media_type="application/octet-stream")
        self.headers["Content-Length"] = str(sum(len(each) for each in pieces))
        self._pieces, self._holds = pieces, holds

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        with self._holds:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            began, size = time.monotonic(), 0
            for piece in self._pieces:
                for at in range(0, len(piece), CHUNK):
                    part = bytes(piece[at : at + CHUNK])
                    try:
                        async with asyncio.timeout(GRACE + size / SLOWEST - (time.monotonic() - began)):
                            await send({"type": "http.response.body", "body": part, "more_body": True})
                    except TimeoutError:  # it does not read, and what it holds is wanted
                        if (abort := scope.get("state", {}).get("abort")) is not None:
                            abort()
                        await asyncio.sleep(0.05)  # until uvicorn knows
                        return
                    size += len(part)
                    await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})


async def run_whole(
    service: Service, name: str, body: memoryview, kind: str, query: Mapping[str, str], client: Client, held: Held
) -> Response | list[bytes | memoryview]:
    """The reply to POST /v1/run/NAME, or what it consists of."""
    hosted = service.admit(name)
    opening, pieces = _sound(hosted.served, body, kind, query)
    peer = await collected(service, hosted, opening, pieces, client, held)
    if hosted.served.kind == "text":
        return JSONResponse({"text": peer.said[-1]["text"]})
    return await asyncio.to_thread(_joined, hosted.served, peer.frames)


async def collected(
    service: Service,
    hosted: Hosted,
    opening: Mapping[str, object],
    pieces: Iterator[bytes],
    client: Client,
    held: Held,
) -> Collector:
    """A stream from its beginning to its end, and all that came out; Refused if it failed."""
    peer = Collector(REPLY * service.settings.limits.run_bytes, held)
    connection = Connection(service, hosted, peer, client)
    try:
        connection.text(json.dumps({"type": "open", **opening}))
        for piece in pieces:
            await peer.unpaused.wait()
            await asyncio.sleep(0)  # others have their turn between any two
            if connection.over:
                break
            connection.binary(piece)
        connection.text(json.dumps({"type": "flush"}))
        await peer.closed.wait()
    finally:
        connection.gone()
    last = peer.said[-1]
    if last["type"] != "done":
        raise Refused(str(last.get("code", "failed")), str(last.get("message", "the stream ended")))
    return peer


def _pieces(served: Served, data: memoryview, sound: bool) -> Iterator[bytes]:
    """The file in chunks: of its bytes if it is sound, else of the array it is, along its time."""
    if sound:
        yield from (bytes(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
        return
    inputs = served.streams[0].inputs
    if len(inputs) > 1:
        raise Refused("unsupported", f"{served.name!r} has several inputs: open a stream")
    port, size = inputs[0], math.prod(shape_of(inputs[0], 1)) * inputs[0].dtype.itemsize
    if len(data) % size:
        raise Refused("bad_frames", f"{len(data)} bytes are no whole frames of '{port.name}': one is {size} bytes")
    array = np.frombuffer(data, little(port.dtype)).reshape(shape_of(port, len(data) // size))
    step = max(CHUNK // size, 1)
    for at in range(0, array.shape[port.axis], step):
        yield array[(*(slice(None),) * port.axis, slice(at, at + step))].tobytes()


def _joined(served: Served, frames: list[bytes]) -> list[bytes | memoryview]:
    """All of the first output as one array, in pieces; a value about the whole file is what came last."""
    outputs = served.streams[-1].outputs
    port = outputs[0]
    if len(outputs) > 1:
        frames = [f[HEAD:] for f in frames if not int.from_bytes(f[:HEAD], "little")]
    if port.axis is None or not frames:
        return [*frames[-1:]]
    shape = shape_of(port, 1)
    if math.prod(shape[: port.axis]) == 1:
        return [*frames]  # side by side already
    size = math.prod(shape) * port.dtype.itemsize
    arrays = [np.frombuffer(f, little(port.dtype)).reshape(shape_of(port, len(f) // size)) for f in frames]
    return [np.concatenate(arrays, port.axis).reshape(-1).view(np.uint8).data]


def _sound(
    served: Served, body: memoryview, kind: str, query: Mapping[str, str]
) -> tuple[dict[str, object], Iterator[bytes]]:
    """`open`, and what is sent then."""
    if unknown := set(query) - {"format", "rate"}:
        raise Refused("bad_message", f"unknown: {sorted(unknown)[0][:80]!r}; there are format and rate")
    if "wav" in kind or bytes(body[:4]) == b"RIFF":
        file = wav.read(body)
        return file.opening, file.pieces(CHUNK)
    opening: dict[str, object] = {}
    if "format" in query:
        opening["format"] = query["format"]
    if "rate" in query:
        if not query["rate"].isdecimal() or len(query["rate"]) > 8:
            raise Refused("unsupported", "rate: expected samples a second")
        opening["rate"] = int(query["rate"])
    return opening, _pieces(served, body, "format" in opening)
