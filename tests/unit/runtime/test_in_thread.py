"""Sessions in an event loop: exact, the loop goes on, and nothing is left running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.core.arrays import Array
from pulsify.runtime.in_thread import in_thread
from tests import models
from tests.models import close, frames, run_batch


async def arriving(chunks: list[Array]) -> AsyncIterator[Array]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


def test_chunks_that_arrive_give_what_batch_gives() -> None:
    proto, x = models.look_ahead(), frames(1, 2, 33)
    stream = pulsify.stream(proto, pulse=4)
    cut = np.split(x, [4, 5, 5, 20], -1)

    async def collected(chunks: Any) -> list[Array]:
        return [y async for y in stream.session(by_name=False, padding=float("nan")).aiterate(chunks)]

    for chunks in (arriving(cut), cut, iter(cut)):
        got = asyncio.run(collected(chunks))
        assert len(got) == len(cut) + 1
        close(np.concatenate(got, -1), run_batch(proto, x)["y"])


def test_the_loop_goes_on_meanwhile() -> None:
    go_on = threading.Event()

    async def both() -> str:
        work = asyncio.create_task(in_thread(lambda: "done" if go_on.wait(60) else "the loop was held up"))
        await asyncio.sleep(0)
        go_on.set()
        return await work

    assert asyncio.run(both()) == "done"


@pytest.mark.parametrize("fails", [False, True])
def test_who_is_cancelled_waits_for_the_call(fails: bool) -> None:
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        running.set()
        go_on.wait(60)
        ended.set()
        if fails:
            raise ValueError("nobody asks")

    async def cancelled() -> bool:
        work = asyncio.create_task(in_thread(call))
        await asyncio.get_running_loop().run_in_executor(None, running.wait, 60)
        work.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        return ended.is_set()

    assert asyncio.run(cancelled())


def test_errors_come_through() -> None:
    session = pulsify.stream(models.look_ahead(), pulse=4, verify=False).session()

    def bad() -> Iterator[Array]:
        yield frames(1, 3, 4)

    async def drained() -> None:
        async for _ in session.aiterate(bad()):
            pass

    with pytest.raises(pulsify.InvalidChunk):
        asyncio.run(drained())
