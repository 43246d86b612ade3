"""Fair shares of the event loop: whoever sends more than a live stream does waits in line for what is left over.

A connection may do a little at once (`Allowance`). What goes beyond that is done in slices of a millisecond, in turn
with all others in line; between two slices the loop belongs to everyone else for twice as long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

SLICE = 0.001  # seconds
SHARE = 1 / 3  # of the loop's time, for all in line
REQUEST = 0.0005  # seconds that are charged for a request over HTTP, whose work comes later
RATE, BURST = 100, 20  # such requests a second, and at once, that need not stand in line

log = logging.getLogger("pulsify.serve")

Work = Callable[[], bool]  # a little of it; is there more?


class Allowance:
    """So many a second, and `burst` at once after a rest."""

    __slots__ = ("_burst", "_left", "_rate", "_when")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._left = rate, burst, burst
        self._when = time.monotonic()

    def left(self) -> int:
        """How many are free now."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._when) * self._rate, self._burst)
        self._when = now
        return int(self._left)

    def take(self, count: int = 1) -> None:
        self._left -= count

    def spend(self) -> bool:
        """Take one, if one is left."""
        if self.left() < 1:
            return False
        self._left -= 1
        return True


class Turns:
    """The line. All of this is the event loop's."""

    def __init__(self) -> None:
        self._line: deque[Work] = deque()
        self._going = False
        self._owed = 0.0  # seconds of work that a slice has only begun
        self._requests = Allowance(RATE, BURST)
        self._last: list[Callable[[], None]] = []
        self._begun = False

    def join(self, work: Work) -> None:
        """Call it in its turn, again and again until it says that nothing is left."""
        self._line.append(work)
        if not self._going:
            self._going = True
            asyncio.get_running_loop().call_soon(self._slice)

    async def request(self) -> None:
        """Wait until a request may be worked on: at once, unless there are many."""
        if self._requests.spend():
            return
        came = asyncio.get_running_loop().create_future()

        def come() -> bool:
            self._owed += REQUEST
            if not came.done():
                came.set_result(None)
            return False

        self.join(come)
        await came

    def last(self, call: Callable[[], None]) -> None:
        """Call it once, when everything that is happening in this turn of the loop has happened."""
        if not self._last and not self._begun:
            asyncio.get_running_loop().call_soon(self.finish)
        self._last.append(call)

    def begin(self) -> None:
        """What happens from here to `finish` belongs together."""
        self._begun = True

    def finish(self) -> None:
        """Everything has happened."""
        self._begun = False
        calls, self._last = self._last, []
        for call in calls:
            call()

    def __len__(self) -> int:
        return len(self._line)

    def _slice(self) -> None:
        start = now = time.perf_counter()
        line, self._owed = self._line, 0.0
        while line and now - start + self._owed < SLICE:
            work = line.popleft()
            try:
                if work():
                    line.append(work)
            except Exception:  # a bug, of which the others in line must not hear
                log.exception("work in line")
            now = time.perf_counter()
        self._going = bool(line)
        if line:
            asyncio.get_running_loop().call_later((now - start + self._owed) * (1 / SHARE - 1), self._slice)
