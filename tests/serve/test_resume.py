"""A cut loses nothing but time: the stream goes on exactly, on this server or another one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakeredis
import numpy as np
import onnxruntime as ort
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import pulsify
from pulsify.serve import vault
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.store import Folder, Keeper, Memory, Redis, Store, StoreFailed
from tests.models import frames, look_ahead, model, node, weights
from tests.serve.live import Array, exchange, opened, serving
from tests.serve.returning import Returning

PROTO = look_ahead("B")
BATCH = ort.InferenceSession(PROTO.SerializeToString())
STREAM = pulsify.stream(PROTO, 4, verify=False)
SOUND = pulsify.stream(model([node("Neg", "x", "y")], {"x": ["B", "T"]}, {"y": ["B", "T"]}), 160, verify=False)
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

    def add(self, name: str, data: bytes) -> bool:
        if self.full:
            raise StoreFailed("no room")
        return self.inner.add(name, data)

    def get(self, name: str) -> bytes | None:
        return self.inner.get(name)

    def drop(self, name: str) -> None:
        self.inner.drop(name)


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


# ---- one client at a time


async def resumed(where: str, token: str, live: list[str]) -> None:
    """A client that never says it has its token; `live` has the streams whose connection is there."""
    async with connect(f"ws://{where}/v1/stream/m", max_size=None) as ws:
        said = await opened(ws, resume=token, have={})
        if said["type"] == "error":
            assert said["code"] in ("unknown_stream", "going_away"), said
            return
        live.append(said["stream"])
        try:
            async for message in ws:
                if isinstance(message, str) and json.loads(message)["type"] == "error":
                    assert json.loads(message)["code"] == "going_away"
                    return
        except ConnectionClosed:
            return
        finally:
            live.remove(said["stream"])


@pytest.mark.parametrize("store", STORES)
def test_of_many_clients_with_one_token_one_goes_on(store: str, tmp_path: Path) -> None:
    """23 at the same instant, on two servers; and the stream that they are all about ends, too."""

    async def begun(where: str) -> tuple[Any, str]:
        ws = await connect(f"ws://{where}/v1/stream/m", max_size=None)
        ready = await opened(ws, resume=True)
        return ws, ready["token"]

    async def all_of_them(services: list[Any], hosts: list[str]) -> None:
        first, token = await begun(hosts[0])
        live: list[str] = []
        going = [asyncio.create_task(resumed(hosts[i % 2], token, live)) for i in range(23)]
        while sum(task.done() for task in going) < 22 or sum(len(s.connections) for s in services) > 1:
            await asyncio.sleep(0.02)
        for _ in range(10):
            await asyncio.sleep(0.02)
            assert len(live) == 1 and sum(len(s.connections) for s in services) == 1
        await asyncio.wait_for(first.wait_closed(), 5)
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    shared = STORES[store](tmp_path / "kept")
    with ExitStack() as stack:
        found = [stack.enter_context(serving([of_stream("m", STREAM, None)], SETTINGS, shared)) for _ in range(2)]
        asyncio.run(all_of_them([service for service, _ in found], [host for _, host in found]))


def test_a_token_counts_no_more_once_its_client_has_the_next_one() -> None:
    client = Returning(frames(1, 2, 4000), 3, 4, 0.004)
    with serving([of_stream("m", STREAM, None)], SETTINGS) as (_, where):
        url = f"ws://{where}/v1/stream/m"
        asyncio.run(client.go(url, until=60))
        first, marks = client.token, client.marks

        async def until_confirmed() -> None:
            going = asyncio.create_task(client.go(url))
            while client.marks < marks + 2:
                await asyncio.sleep(0.02)
            assert first is not None
            async with connect(url) as ws:
                assert (await opened(ws, resume=first, have={}))["code"] == "unknown_stream"
            client.pause = 0.0
            await going

        asyncio.run(until_confirmed())
    checked(client)


class Hanging:
    """A store whose disk is gone: whoever asks waits."""

    def __init__(self) -> None:
        self.inner, self.works = Memory(60), threading.Event()
        self.works.set()

    def put(self, name: str, data: bytes) -> None:
        self.works.wait()
        self.inner.put(name, data)

    def add(self, name: str, data: bytes) -> bool:
        self.works.wait()
        return self.inner.add(name, data)

    def get(self, name: str) -> bytes | None:
        self.works.wait()
        return self.inner.get(name)

    def drop(self, name: str) -> None:
        self.works.wait()
        self.inner.drop(name)


def test_a_store_that_hangs_holds_up_those_who_resume_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other streams begin, at rates that are new here too; streams that are kept go on, and resume once it is back."""
    monkeypatch.setattr(vault, "PATIENCE", 0.2)
    monkeypatch.setattr(vault, "REST", 0.2)
    store, client = Hanging(), Returning(frames(1, 2, 3000), 3, 4, 0.004)
    heard = frames(1, 400).tobytes()

    async def through(service: Any, where: str) -> None:
        url = f"ws://{where}/v1/stream/m"
        going = asyncio.create_task(client.persist([url], [], tries=500))
        while client.marks < 2:
            await asyncio.sleep(0.01)
        store.works.clear()
        have = client.have
        async with connect(url) as ws:
            said = await opened(ws, resume=client.token, have={})
            assert said["code"] == "store_failed"
        while not service.vault.open:
            await asyncio.sleep(0.01)
        for rate in (24000, 8000):
            _, told = await exchange(where, "sound", [heard], {"format": "float32", "rate": rate})
            assert told[-1]["type"] == "done"
        async with connect(url) as ws:
            assert (await opened(ws, resume=True))["type"] == "warning"
            assert json.loads(await ws.recv())["type"] == "ready"
        while client.have < have + 100:
            await asyncio.sleep(0.01)
        store.works.set()
        while service.vault.open:
            await asyncio.sleep(0.01)
        marks = client.marks
        while client.marks < marks + 2:
            await asyncio.sleep(0.01)
        client.pause = 0.0
        await going

    served = [of_stream("m", STREAM, None), of_stream("sound", SOUND, 16000)]
    with serving(served, SETTINGS, store) as (service, where):
        asyncio.run(asyncio.wait_for(through(service, where), 50))
    checked(client)
    assert client.connections == 1


def test_a_server_ends_though_its_store_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault, "PATIENCE", 0.2)
    store = Hanging()

    async def begun(where: str) -> None:
        async with connect(f"ws://{where}/v1/stream/m") as ws:
            await opened(ws, resume=True)
            await ws.send(frames(1, 2, 8).tobytes())
            await ws.recv()
            store.works.clear()
            await ws.send(frames(1, 2, 8).tobytes())
            await asyncio.sleep(0.2)

    with serving([of_stream("m", STREAM, None)], SETTINGS, store) as (_, where):
        asyncio.run(begun(where))


def test_what_waits_to_be_computed_is_in_no_snapshot() -> None:
    """It may be megabytes. The client sends it again, and the stream is exact."""
    nodes = [node("Conv", "x w", "a", pads=[2, 0]), node("Conv", "z w", "b", pads=[2, 0]), node("Add", "a b", "y")]
    proto = model(nodes, {"x": ["B", 1, "T"], "z": ["B", 1, "T"]}, ["y"], {"w": weights(1, 1, 3)})
    store, x, z = Memory(60), frames(1, 1, 100_000), frames(1, 1, 100_000, seed=1)
    served = of_stream("m", pulsify.stream(proto, 4, verify=False), None)

    def chunks(array: Array, name: int, start: int, end: int) -> list[bytes]:
        head = name.to_bytes(4, "little")
        return [head + array[:, :, at : min(at + 25_000, end)].tobytes() for at in range(start, end, 25_000)]

    async def through(url: str) -> bytes:
        out = b""
        async with connect(url, max_size=None) as ws:
            await ws.send(json.dumps({"type": "open", "resume": True}))
            token = json.loads(await ws.recv())["token"]
            for message in (*chunks(z, 1, 0, 10), *chunks(x, 0, 0, 100_000)):
                await ws.send(message)
            while isinstance(message := await ws.recv(), bytes):
                out += message
            assert json.loads(message)["received"] == {"x": 8, "z": 8} and store.size < 50_000
            while len(out) < 4 * 8:
                out += await ws.recv()  # type: ignore[operator]
        async with connect(url, max_size=None) as ws:
            await ws.send(json.dumps({"type": "open", "resume": token, "have": {"y": len(out) // 4}}))
            had = json.loads(await ws.recv())["received"]
            for each in range(4):
                start, end = 25_000 * each, 25_000 * (each + 1)
                for message in (*chunks(x, 0, max(start, had["x"]), end), *chunks(z, 1, max(start, had["z"]), end)):
                    await ws.send(message)
            await ws.send('{"type": "flush"}')
            async for message in ws:
                out += message if isinstance(message, bytes) else b""
        return out

    with serving([served], SETTINGS, store) as (_, where):
        got = np.frombuffer(asyncio.run(through(f"ws://{where}/v1/stream/m")), "<f4")
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x, "z": z})
    np.testing.assert_allclose(got, want.ravel(), atol=1e-5)
