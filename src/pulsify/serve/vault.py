"""The store, seen from the event loop. One that hangs has threads of its own to hang, and is soon left alone.

resume, snapshot ── call ──> breaker ──> crew: a few threads ──> Claims ──> the store
                             │ open: StoreFailed at once; every few seconds one call tries
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from pulsify.serve.claims import Claims, Spent
from pulsify.serve.store import StoreFailed

THREADS = 4
PATIENCE = 5.0  # seconds for one call
SLOW = 1.0  # a failure that took so long is one of not answering
FAILURES = 3  # of those, one after the other, until it is left alone
REST = 5.0  # seconds
SILENT = "the store of snapshots does not answer"
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("pulsify.serve")


class Crew:
    """Threads that nobody waits for: one that hangs does not keep the process from ending."""

    def __init__(self, name: str, count: int = THREADS) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._name, self._count, self._started = name, count, 0

    def call(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """On the loop. What is cancelled before a thread is free is not called."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            if future.cancelled():
                return
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        if self._started < self._count:
            self._started += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
        self._work.put(work)
        return future

    def end(self) -> None:
        """After what they do; does not wait for it."""
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class Vault:
    """Everything on the loop; what is called runs in the crew."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self.outcomes: Counter[str] = Counter()  # calls: ok, failed, timeout, skipped
        self._crew = Crew("pulsify-store")
        self._failures, self._until, self._trying = 0, 0.0, False

    @property
    def open(self) -> bool:
        """Is the store left alone? (As an electrician says it.)"""
        return self._failures >= FAILURES

    async def call(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The result. StoreFailed if there is none in time, or the store is left alone."""
        trying = self.open
        if trying and (self._trying or time.monotonic() < self._until):
            self.outcomes["skipped"] += 1
            raise StoreFailed(SILENT)
        self._trying = trying
        began = time.monotonic()
        try:
            result = await asyncio.wait_for(self._crew.call(lambda: call(*args, **named)), PATIENCE)
        except TimeoutError:
            self._failed("timeout", True)
            raise StoreFailed(SILENT) from None
        except Spent:
            self._answered("ok")
            raise
        except Exception as error:
            self._failed("failed", time.monotonic() - began > SLOW)
            if isinstance(error, StoreFailed):
                raise
            log.exception("the store of snapshots")
            raise StoreFailed(f"the store of snapshots: {type(error).__name__}") from error
        finally:
            if trying:
                self._trying = False
        self._answered("ok")
        return result

    def end(self) -> None:
        self._crew.end()

    def _failed(self, outcome: str, silent: bool) -> None:
        if not silent:
            self._answered(outcome)
            return
        self.outcomes[outcome] += 1
        self._failures += 1
        self._until = time.monotonic() + REST
        if self._failures == FAILURES:
            log.error("%s: streams go on, without snapshots", SILENT)

    def _answered(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        if self.open:
            log.info("the store of snapshots answers again")
        self._failures = 0
