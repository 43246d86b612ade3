"""What one would write first: an asyncio server with a session per connection, called as messages come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from benchmarks.serve_models import Bench
from pulsify.serve.engine import shape_of


async def serve_plain(bench: Bench, say: Callable[[int], None]) -> None:
    served = bench.served()

    async def frames(ws: ServerConnection) -> None:
        await ws.recv()
        session, port = served.streams[0].session(), served.streams[0].inputs[0]
        size = int(np.prod(shape_of(port, 1))) * port.dtype.itemsize
        await ws.send('{"type":"ready"}')
        async for message in ws:
            assert isinstance(message, bytes)
            x = np.frombuffer(message, port.dtype).reshape(shape_of(port, len(message) // size))
            made: Any = session.push(x)
            if made.size:
                await ws.send(made.tobytes())

    async def text(ws: ServerConnection) -> None:
        await ws.recv()
        assert served.recogniser is not None
        heard = served.recogniser.transcriber()
        await ws.send('{"type":"ready"}')
        async for message in ws:
            assert isinstance(message, bytes)
            added = heard.push(np.frombuffer(message, "<i2").astype(np.float32) / np.float32(32768))
            if added:
                await ws.send('{"type":"text"}')

    handler = frames if served.recogniser is None else text

    async def quietly(ws: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await handler(ws)

    async with serve(quietly, "127.0.0.1", 0, compression=None, max_size=None) as server:
        say(next(iter(server.sockets)).getsockname()[1])
        await asyncio.Event().wait()
