"""A server in this process, on a port of its own, and a client that says what it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from pulsify.serve.listening import Options
from pulsify.serve.running import server
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import Served
from pulsify.serve.store import Store

Array = np.ndarray[Any, Any]


@contextmanager
def serving(
    served: Sequence[Served], settings: Settings | None = None, store: Store | None = None, ws: str | None = None
) -> Iterator[tuple[Service, str]]:
    """The service, and where it is: 127.0.0.1:PORT. ws: uvloop, or another server's websockets, over ASGI."""
    service = Service(served, settings, store)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    made = server(service, Options())
    loop = asyncio.new_event_loop()
    if ws == "uvloop":
        import uvloop

        loop = uvloop.new_event_loop()
    elif ws is not None:
        made.config.ws = ws  # type: ignore[assignment]
    thread = threading.Thread(target=lambda: loop.run_until_complete(made._serve([listening])), daemon=True)
    thread.start()
    while not made.started:
        assert thread.is_alive()
        thread.join(0.01)
    try:
        yield service, f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        made.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


async def opened(ws: ClientConnection, **how: Any) -> dict[str, Any]:
    """open, and what is said to it."""
    await ws.send(json.dumps({"type": "open", **how}))
    said: dict[str, Any] = json.loads(await ws.recv())
    return said


async def exchange(
    where: str, name: str, chunks: Sequence[bytes], how: dict[str, Any] | None = None, pause: float = 0.0
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """A whole stream: binary messages and all others."""
    frames: list[bytes] = []
    said: list[dict[str, Any]] = []
    async with connect(f"ws://{where}/v1/stream/{name}", max_size=None, compression=None) as ws:
        said.append(await opened(ws, **(how or {})))

        async def send() -> None:
            for chunk in chunks:
                await ws.send(chunk)
                if pause:
                    await asyncio.sleep(pause)
            await ws.send(json.dumps({"type": "flush"}))

        sending = asyncio.create_task(send())
        with suppress(ConnectionClosed):  # how it ended is the last thing said
            async for message in ws:
                if isinstance(message, bytes):
                    frames.append(message)
                else:
                    said.append(json.loads(message))
        await asyncio.gather(sending, return_exceptions=True)
    return frames, said


def cut(array: Array, axis: int, sizes: Sequence[int]) -> list[bytes]:
    """Chunks of these sizes, by turns, as they are sent."""
    out, at, turn, length = [], 0, 0, array.shape[axis]
    while at < length:
        size = sizes[turn % len(sizes)]
        piece = array[(*(slice(None),) * axis, slice(at, at + size))]
        out.append(np.ascontiguousarray(piece).tobytes())
        at, turn = at + size, turn + 1
    return out
