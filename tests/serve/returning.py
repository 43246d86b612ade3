"""A client that comes back after a cut: it keeps what was not acknowledged, and counts what it has."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.serve.live import Array


class Returning:
    """One stream of x [1, C, T] to y [1, D, U], through as many connections as it takes."""

    def __init__(self, x: Array, made: int, chunk: int, pause: float = 0.0) -> None:
        self.x, self.made, self.chunk, self.pause = x, made, chunk, pause
        self.frames: list[Array] = []
        self.token: str | None = None
        self.acked = 0  # input frames that the client has forgotten
        self.marks = self.connections = 0
        self.done: dict[str, Any] | None = None
        self.said: list[dict[str, Any]] = []

    @property
    def have(self) -> int:
        return sum(f.shape[2] for f in self.frames)

    @property
    def y(self) -> Array:
        return np.concatenate(self.frames, 2)

    async def go(self, url: str, until: int | None = None) -> None:
        """One connection: to the end, or cut without a word once so many output frames have come."""
        opening: dict[str, Any] = {"type": "open", "resume": True}
        if self.token is not None:
            opening = {"type": "open", "resume": self.token, "have": {"y": self.have}}
        self.connections += 1
        ws = await connect(url, max_size=None, compression=None)
        sending: asyncio.Task[None] | None = None
        try:
            await ws.send(json.dumps(opening))
            async for message in ws:
                if isinstance(message, bytes):
                    self.frames.append(np.frombuffer(message, "<f4").reshape(1, self.made, -1))
                    if until is not None and self.have >= until:
                        ws.transport.abort()
                        return
                    continue
                said = json.loads(message)
                self.said.append(said)
                if said["type"] == "ready":
                    assert said["received"]["x"] >= self.acked, "input was asked for that is forgotten"
                    assert said["sent"]["y"] == self.have
                    self.token = said["token"]
                    sending = asyncio.create_task(self._send(ws, said["received"]["x"]))
                elif said["type"] == "ack":
                    assert said["sent"]["y"] <= self.have, "an ack comes after its frames"
                    self.acked, self.marks = said["received"]["x"], self.marks + 1
                    with suppress(ConnectionClosed):  # there may be more to read
                        await ws.send(json.dumps({"type": "ack", "mark": said["mark"]}))
                elif said["type"] == "done":
                    self.done = said
        except (ConnectionClosed, OSError):
            return
        finally:
            if sending is not None:
                sending.cancel()
            await asyncio.gather(*([sending] if sending else []), return_exceptions=True)
            if self.done is not None:
                await ws.close()

    async def _send(self, ws: Any, at: int) -> None:
        while at < self.x.shape[2]:
            piece = self.x[:, :, at : at + self.chunk]
            await ws.send(np.ascontiguousarray(piece).tobytes())
            at += piece.shape[2]
            if self.pause:
                await asyncio.sleep(self.pause)
        await ws.send('{"type": "flush"}')

    async def persist(self, urls: list[str], cuts: list[int], tries: int = 50) -> None:
        """Through the servers by turns, cut at these numbers of frames, until it is done."""
        for turn in range(tries):
            try:
                await self.go(urls[turn % len(urls)], cuts[turn] if turn < len(cuts) else None)
            except (InvalidHandshake, OSError):  # turned away, or killed before it answered
                await asyncio.sleep(0.1)
            if self.done is not None:
                return
        raise AssertionError(f"not done after {tries} connections: {self.said[-3:]}")
