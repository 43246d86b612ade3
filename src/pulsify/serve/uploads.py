"""Files on their way through `/v1/run`: how many bytes are held for them, for whom, and how slowly they may come."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from pulsify.serve.protocol import Refused

if TYPE_CHECKING:
    from pulsify.serve.service import Limits

FILES = 16  # of one address at once
REPLY = 4  # times the largest file: bytes of a reply
HELD = 10  # likewise: bytes of files and replies that are held, for all
SHARE = 0.5  # of that, for one address
GRACE = 10.0  # seconds after which a file has to come at
SLOWEST = 1 << 15  # bytes a second


class Uploads:
    """All of them. An address may not hold more than its share."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.models: Counter[str] = Counter()  # files that are still coming, by model: each takes a stream's place
        self._files: Counter[str] = Counter()  # by address
        self._held: Counter[str] = Counter()

    @contextmanager
    def file(self, address: str) -> Iterator[Held]:
        """From its first byte to the last one of the reply."""
        if self._files[address] >= FILES:
            raise Refused("too_many_requests", f"{FILES} files of this address are on their way")
        self._files[address] += 1
        held = Held(self, address)
        try:
            yield held
        finally:
            self._change(address, -held.size)
            self._files[address] -= 1
            if not self._files[address]:
                del self._files[address]

    def hold(self, address: str, size: int) -> None:
        """So many bytes more; Refused if that is too much."""
        most = HELD * self._limits.run_bytes
        if self._held[address] + size > most * SHARE or self._held.total() + size > most:
            raise Refused("too_many_requests", "too much is held for files that are on their way; try again later")
        self._change(address, size)

    def _change(self, address: str, size: int) -> None:
        self._held[address] += size
        if not self._held[address]:
            del self._held[address]

    @property
    def held(self) -> int:
        """Bytes."""
        return self._held.total()


class Held:
    """What is held for one file and its reply."""

    def __init__(self, uploads: Uploads, address: str) -> None:
        self._uploads, self._address, self.size = uploads, address, 0

    def add(self, size: int) -> None:
        self._uploads.hold(self._address, size)
        self.size += size


async def body(parts: AsyncIterator[bytes], declared: str | None, limits: Limits, held: Held) -> memoryview:
    """All of a file, if it is not too large and does not come too slowly. declared: its length, as the client says."""
    largest, began = limits.run_bytes, time.monotonic()
    too_large = Refused("too_large", f"a file has {largest} bytes at the most")
    size = int(declared) if declared is not None and declared.isdecimal() and len(declared) < 20 else 0
    if size > largest:
        raise too_large
    held.add(size)
    out, filled = np.empty(size or largest, np.uint8).data, 0  # memory is taken as it is filled
    while True:
        left = min(GRACE + filled / SLOWEST, limits.run_seconds) - (time.monotonic() - began)
        try:
            part = await asyncio.wait_for(anext(parts), max(min(limits.idle_seconds, left), 0.001))
        except StopAsyncIteration:
            break
        except TimeoutError as error:
            raise Refused("idle", "the file comes too slowly, or not at all") from error
        end = filled + len(part)
        if end > largest:
            raise too_large
        if end > len(out):
            raise Refused("bad_message", "the file is longer than its Content-Length")
        if not size:
            held.add(len(part))
        out[filled:end] = part
        filled = end
    return out[:filled]
