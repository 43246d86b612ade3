"""A cut loses nothing but time: the stream goes on exactly, on this server or another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakeredis
import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.store import Folder, Keeper, Memory, Redis, Store, StoreFailed
from tests.models import frames, look_ahead
from tests.serve.live import exchange, serving
from tests.serve.returning import Returning

PROTO = look_ahead("B")
BATCH = ort.InferenceSession(PROTO.SerializeToString())
STREAM = pulsify.stream(PROTO, 4, verify=False)
SETTINGS = Settings(key=b"one key for all", snapshot_seconds=0.1)
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda path: Memory(60),
    "folder": lambda path: Folder(path, 60),
    "redis": lambda path: Redis(fakeredis.FakeRedis(), 60),
}


def checked(client: Returning) -> None:
    (want,) = BATCH.run(None, {"x": client.x})
    np.testing.assert_allclose(client.y, want, atol=1e-5, rtol=1e-5)
    assert client.done is not None and client.done["sent"] == {"y": want.shape[2]}


@pytest.mark.parametrize(("store", "ws"), [*((s, None) for s in STORES), ("memory", "websockets-sansio")])
def test_streams_go_on_exactly_on_two_servers_by_turns(store: str, ws: str | None, tmp_path: Path) -> None:
    shared = STORES[store](tmp_path / "kept")
    clients = [Returning(frames(1, 2, 400 + 13 * i, seed=i), 3, 4 + i, 0.004) for i in range(6)]

    async def all_of_them(urls: list[str]) -> None:
        await asyncio.gather(*(c.persist(urls, [90 + 7 * i, 200, 201 + 20 * i]) for i, c in enumerate(clients)))

    with ExitStack() as stack:
        made = [of_stream("m", STREAM, None)]
        settings = [replace(SETTINGS, machine=Machine(backend=backend)) for backend in (None, "ort")]  # C and not
        hosts = [stack.enter_context(serving(made, each, shared, ws))[1] for each in settings]
        asyncio.run(all_of_them([f"ws://{host}/v1/stream/m" for host in hosts]))
    for client in clients:
        checked(client)
        assert client.connections >= 4
    assert sum(client.marks for client in clients) >= 1


def test_a_stream_that_had_no_snapshot_yet_starts_again_unnoticed() -> None:
    client = Returning(frames(1, 2, 400), 3, 4)
    with serving([of_stream("m", STREAM, None)], Settings(snapshot_seconds=60)) as (_, where):
        asyncio.run(client.persist([f"ws://{where}/v1/stream/m"], [8, 50]))
    checked(client)
    assert client.marks == 0 and client.connections == 3


def refused(where: str, token: str) -> Any:
    _, said = asyncio.run(exchange(where, "m", [], {"resume": token, "have": {"y": 1 << 40}}))
    return said[-1].get("code")


def test_forged_and_foreign_snapshots_are_refused(tmp_path: Path) -> None:
    client = Returning(frames(1, 2, 4000), 3, 4, 0.004)
    kept = Folder(tmp_path, 60)
    with serving([of_stream("m", STREAM, None)], SETTINGS, kept) as (_, where):
        asyncio.run(client.go(f"ws://{where}/v1/stream/m", until=150))
        token = client.token
        assert client.marks and token is not None
        assert refused(where, "nobodys") == "unknown_stream"
    with serving([of_stream("m", STREAM, None)], Settings(key=b"another key"), kept) as (_, where):
        assert refused(where, token) == "unknown_stream"
    for path in tmp_path.glob("*-*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with serving([of_stream("m", STREAM, None)], SETTINGS, kept) as (_, where):
        assert refused(where, token) == "unknown_stream"


def test_a_snapshot_of_one_stream_is_none_of_anothers(tmp_path: Path) -> None:
    """Signed for its own token: one copied under another name is not read."""
    keeper = Keeper(Folder(tmp_path, 60), b"key")
    keeper.put("mine", {"mark": 0, "sent": {}, "model": "m"}, b"state")
    (name,) = (p.name for p in tmp_path.glob("*-0"))
    other = keeper._name("yours", 0)
    (tmp_path / other).write_bytes((tmp_path / name).read_bytes())
    assert keeper.get("yours") == []
    assert [k.blob for k in keeper.get("mine")] == [b"state"]


class Full:
    """A store that takes nothing for a while."""

    def __init__(self) -> None:
        self.inner, self.full = Memory(60), True

    def put(self, name: str, data: bytes) -> None:
        if self.full:
            raise StoreFailed("no room")
        self.inner.put(name, data)

    def get(self, name: str) -> bytes | None:
        return self.inner.get(name)


def test_a_full_store_is_said_and_the_stream_goes_on() -> None:
    client, store = Returning(frames(1, 2, 600), 3, 4, 0.004), Full()

    async def with_room_later(url: str) -> None:
        going = asyncio.create_task(client.persist([url], [450]))
        while not any(s.get("code") == "store_failed" for s in client.said):
            await asyncio.sleep(0.02)
        assert client.marks == 0
        store.full = False
        await going

    with serving([of_stream("m", STREAM, None)], SETTINGS, store) as (_, where):
        asyncio.run(with_room_later(f"ws://{where}/v1/stream/m"))
    checked(client)
    assert client.marks >= 1 and client.connections == 2


def test_a_server_that_is_told_to_stop_hands_its_streams_on() -> None:
    shared = Memory(60)
    settings = Settings(key=b"k", snapshot_seconds=60, drain_seconds=0.3)
    client = Returning(frames(1, 2, 2000), 3, 4, 0.002)

    async def drained(first: Any, urls: list[str]) -> None:
        going = asyncio.create_task(client.persist(urls, []))
        while client.have < 40:
            await asyncio.sleep(0.01)
        done = asyncio.run_coroutine_threadsafe(first.drain(), first._loop)
        await asyncio.wrap_future(done)
        client.pause = 0.0
        await going

    with ExitStack() as stack:
        found = [stack.enter_context(serving([of_stream("m", STREAM, None)], settings, shared)) for _ in range(2)]
        asyncio.run(drained(found[0][0], [f"ws://{host}/v1/stream/m" for _, host in found]))
    checked(client)
    codes = [s.get("code") for s in client.said]
    assert "draining" in codes and "going_away" in codes and client.connections == 2
