"""What a client of OpenAI's realtime transcription says, and the events it gets."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import connect

Event = dict[str, Any]
BETA = {"OpenAI-Beta": "realtime=v1"}


class Session:
    """A connection and all its events so far."""

    def __init__(self, ws: Any) -> None:
        self.ws, self.events = ws, list[Event]()

    async def say(self, kind: str, **values: Any) -> None:
        await self.ws.send(json.dumps({"type": kind, **values}))

    async def append(self, data: bytes, size: int = 9600) -> None:
        for at in range(0, len(data), size):
            await self.say("input_audio_buffer.append", audio=base64.b64encode(data[at : at + size]).decode())

    async def commit(self) -> None:
        await self.say("input_audio_buffer.commit")

    async def format(self, rate: int) -> None:
        """Sound at that rate, without turn detection."""
        heard = {"format": {"type": "audio/pcm", "rate": rate}, "turn_detection": None}
        await self.say("session.update", session={"type": "transcription", "audio": {"input": heard}})

    async def until(self, enough: Callable[[Event], bool], count: int = 1, seconds: float = 30) -> Event:
        """Read events until so many are of that kind; the last of them."""
        async with asyncio.timeout(seconds):
            while True:
                self.events.append(event := json.loads(await self.ws.recv()))
                count -= enough(event)
                if not count:
                    return event

    async def kind(self, ending: str, count: int = 1) -> Event:
        return await self.until(lambda event: event["type"].endswith(ending), count)

    def of(self, ending: str) -> list[Event]:
        return [event for event in self.events if event["type"].endswith(ending)]


@asynccontextmanager
async def session(where: str, query: str = "model=recogniser", **how: Any) -> AsyncIterator[Session]:
    async with connect(f"ws://{where}/v1/realtime?{query}", max_size=None, compression=None, **how) as ws:
        made = Session(ws)
        await made.kind("session.created")
        yield made
