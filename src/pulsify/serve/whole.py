"""A whole file at once: the same stream, with somebody who keeps what comes out."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from pulsify.serve.connection import Connection
from pulsify.serve.protocol import Refused
from pulsify.serve.service import Service

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


async def run_whole(service: Service, name: str, body: bytes, kind: str, query: Mapping[str, str]) -> Response:
    """The reply to POST /v1/run/NAME."""
    hosted = service.admit(name)
    opening, data = _sound(body, kind, query)
    peer = Collector(8 * service.settings.limits.run_bytes)
    connection = Connection(service, hosted, peer)
    try:
        connection.text(json.dumps({"type": "open", **opening}))
        for at in range(0, len(data), CHUNK):
            await peer.unpaused.wait()
            if connection.over:
                break
            connection.binary(data[at : at + CHUNK])
        connection.text(json.dumps({"type": "flush"}))
        await peer.closed.wait()
    finally:
        connection.gone()
    last = peer.said[-1]
    if last["type"] != "done":
        raise Refused(str(last.get("code", "failed")), str(last.get("message", "the stream ended")))
    if hosted.served.kind == "text":
        return JSONResponse({"text": last["text"]})
    return Response(b"".join(peer.frames), media_type="application/octet-stream")


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
    import numpy as np

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
