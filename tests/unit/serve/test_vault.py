"""A store that hangs, fails or gives back nonsense costs those who ask for it some seconds, and then none."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from pulsify.serve import vault as vaults
from pulsify.serve.claims import Claims, Spent
from pulsify.serve.store import Keeper, Memory, StoreFailed
from pulsify.serve.vault import FAILURES, THREADS, Vault


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vaults, "PATIENCE", 0.05)
    monkeypatch.setattr(vaults, "REST", 0.1)


def vault() -> Vault:
    return Vault(Claims(Keeper(Memory(60), b"key"), 60))


async def failing(each: Vault, call: Any) -> str:
    with pytest.raises(StoreFailed) as caught:
        await each.call(call)
    return str(caught.value)


def test_what_hangs_is_left_alone_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    hanging, each = threading.Event(), vault()
    caplog.set_level(logging.INFO)

    async def through() -> None:
        await asyncio.gather(*(failing(each, hanging.wait) for _ in range(2 * THREADS)))
        assert each.open and each.outcomes == {"timeout": 2 * THREADS}
        began = time.thread_time()
        for _ in range(1000):
            await failing(each, hanging.wait)
        assert each.outcomes["skipped"] == 1000 and time.thread_time() - began < 1
        await asyncio.sleep(0.12)
        trying = [asyncio.create_task(failing(each, hanging.wait)) for _ in range(5)]  # one tries, in vain
        await asyncio.gather(*trying)
        assert each.outcomes["timeout"] == 2 * THREADS + 1 and each.open
        hanging.set()
        await asyncio.sleep(0.12)
        assert await each.call(lambda: 7) == 7
        assert not each.open and await each.call(lambda: 8) == 8

    asyncio.run(through())
    said = [r.getMessage() for r in caplog.records if r.name == "pulsify.serve"]
    assert said == [
        "the store of snapshots does not answer: streams go on, without snapshots",
        "the store of snapshots answers again",
    ]
    assert sum(t.name.startswith("pulsify-store") for t in threading.enumerate()) >= THREADS
    each.end()


def test_what_fails_at_once_is_asked_again_at_once() -> None:
    each = vault()

    def full() -> None:
        raise StoreFailed("no room")

    async def through() -> None:
        for _ in range(3 * FAILURES):
            assert await failing(each, full) == "no room"
        assert not each.open and each.outcomes == {"failed": 3 * FAILURES}

    asyncio.run(through())
    each.end()


def test_what_no_store_does_is_a_failure_and_what_is_spent_is_none() -> None:
    each = vault()

    def broken() -> None:
        raise ZeroDivisionError

    def spent() -> None:
        raise Spent("taken")

    async def through() -> None:
        assert "ZeroDivisionError" in await failing(each, broken)
        with pytest.raises(Spent):
            await each.call(spent)

    asyncio.run(through())
    assert each.outcomes == {"failed": 1, "ok": 1}
    each.end()


class Nonsense:
    """A store that gives back what was never put."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def put(self, name: str, data: bytes) -> None:
        return

    def add(self, name: str, data: bytes) -> bool:
        return True

    def get(self, name: str) -> Any:
        return self.what

    def drop(self, name: str) -> None:
        return


@pytest.mark.parametrize("what", [b"", b"x" * 31, b"x" * 1000, "text", 7, [b""]])
def test_nonsense_is_nobodys_snapshot(what: Any) -> None:
    claims = Claims(Keeper(Nonsense(what), b"key"), 60)
    if isinstance(what, bytes):
        assert claims.find("x" * 40 + "0") == []
    else:
        with pytest.raises(StoreFailed):
            claims.find("x" * 40 + "0")
