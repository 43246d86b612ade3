"""A whole file at once: the same stream, with somebody who keeps what comes out."""

from __future__ import annotations

import asyncio
import io
import json
import math
import wave
from collections.abc import Iterator, Mapping

import numpy as np
from starlette.responses import JSONResponse, Response

from pulsify.serve.access import Client
from pulsify.serve.connection import Connection
from pulsify.serve.engine import shape_of
from pulsify.serve.protocol import Refused
from pulsify.serve.service import Service
from pulsify.serve.sinks import HEAD, little
from pulsify.serve.sources import Served

CHUNK = 1 << 16


class Collector:
    """A peer that keeps everything, up to so many bytes."""

    def __init__(self, largest: int) -> None:
        self.frames: list[bytes] = []
        self.said: list[dict[str, object]] = []
        self.closed, self.unpaused = asyncio.Event(), asyncio.Event()
        self.unpaused.set()
        self._left = largest

    def send(self, message: bytes | str) -> None:
        if isinstance(message, str):
            self.said.append(json.loads(message))
        elif (left := self._left - len(message)) >= 0:
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


async def run_whole(
    service: Service, name: str, body: bytes, kind: str, query: Mapping[str, str], client: Client
) -> Response:
    """The reply to POST /v1/run/NAME."""
    hosted = service.admit(name)
    opening, data = _sound(body, kind, query)
    peer = Collector(8 * service.settings.limits.run_bytes)
    connection = Connection(service, hosted, peer, client)
    try:
        connection.text(json.dumps({"type": "open", **opening}))
        for piece in _pieces(hosted.served, data, "format" in opening):
            await peer.unpaused.wait()
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
    if hosted.served.kind == "text":
        return JSONResponse({"text": last["text"]})
    return Response(_joined(hosted.served, peer.frames), media_type="application/octet-stream")


def _pieces(served: Served, data: bytes, sound: bool) -> Iterator[bytes]:
    """The file in chunks: of its bytes if it is sound, else of the array it is, along its time."""
    if sound:
        yield from (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))
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


def _joined(served: Served, frames: list[bytes]) -> bytes:
    """All of the first output as one array; a value about the whole file is what came last."""
    outputs = served.streams[-1].outputs
    port = outputs[0]
    if len(outputs) > 1:
        frames = [f[HEAD:] for f in frames if not int.from_bytes(f[:HEAD], "little")]
    if port.axis is None or not frames:
        return b"".join(frames[-1:])
    size = math.prod(shape_of(port, 1)) * port.dtype.itemsize
    arrays = [np.frombuffer(f, little(port.dtype)).reshape(shape_of(port, len(f) // size)) for f in frames]
    return np.concatenate(arrays, port.axis).tobytes()


def _sound(body: bytes, kind: str, query: Mapping[str, str]) -> tuple[dict[str, object], bytes]:
    """`open`, and what is sent then."""
    if unknown := set(query) - {"format", "rate"}:
        raise Refused("bad_message", f"unknown: {sorted(unknown)[0][:80]!r}; there are format and rate")
    if "wav" in kind or body[:4] == b"RIFF":
        return _wav(body)
    opening: dict[str, object] = {}
    if "format" in query:
        opening["format"] = query["format"]
    if "rate" in query:
        if not query["rate"].isdecimal() or len(query["rate"]) > 8:
            raise Refused("unsupported", "rate: expected samples a second")
        opening["rate"] = int(query["rate"])
    return opening, body


def _wav(body: bytes) -> tuple[dict[str, object], bytes]:
    try:
        with wave.open(io.BytesIO(body), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError, ValueError) as error:
        raise Refused("unsupported", f"not a .wav file that can be read ({error})") from error
    if width != 2:
        raise Refused("unsupported", f"a .wav file of {8 * width} bits: expected 16")
    if channels > 1:
        samples = np.frombuffer(data, "<i2")
        mean = samples[: len(samples) // channels * channels].reshape(-1, channels).mean(1) / 32768
        return {"format": "float32", "rate": rate}, mean.astype("<f4").tobytes()
    return {"format": "pcm16", "rate": rate}, data[: len(data) // 2 * 2]
