"""Stores: what was put is there for as long as it should be, and no longer; what is full says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import fakeredis
import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.serve import store as stores
from pulsify.serve.store import Folder, Keeper, Memory, Redis, Store, StoreFailed, open_store

MAKERS: dict[str, Callable[[Path, float], Store]] = {
    "memory": lambda path, keep: Memory(keep),
    "folder": Folder,
    "redis": lambda path, keep: Redis(fakeredis.FakeRedis(), keep),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_was_put_is_there_and_the_last_one_counts(kind: str, tmp_path: Path) -> None:
    made = MAKERS[kind](tmp_path, 60)
    assert made.get("a") is None
    made.put("a", b"1")
    made.put("b", b"2")
    made.put("a", b"3")
    assert (made.get("a"), made.get("b")) == (b"3", b"2")


def test_memory_forgets_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: now[0])
    made = Memory(10, largest=10)
    made.put("a", b"12345678")
    with pytest.raises(StoreFailed, match="full"):
        made.put("b", b"123")
    made.put("a", b"1234567890")  # in its own place there is room
    now[0] += 11
    made.put("b", b"123")
    assert (made.get("a"), made.get("b"), made.size) == (None, b"123", 3)


def test_a_folder_forgets_by_its_own_clock_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    made = Folder(tmp_path, 10)
    made.put("a", b"1")
    os.utime(tmp_path / "a", (0, 0))
    assert made.get("a") is None
    made._swept = 0.0
    made.put("b", b"2")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".clock", "b"]


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_folder_forgets_nothing_when_its_clock_jumps(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ours = Folder(tmp_path, 10), [100.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: ours[0])

    def dated(name: str, seconds: float) -> None:
        made.put(name, b"1")
        os.utime(tmp_path / name, (seconds, seconds))

    monkeypatch.setattr(made, "_stamp", lambda: 5000.0 + ours[0])
    made._runs.clear()
    dated("before", 5100.0)
    ours[0] += 1
    monkeypatch.setattr(made, "_stamp", lambda: 5000.0 + jump + ours[0])
    assert made.get("before") == b"1"
    dated("after", 5101.0 + jump)
    ours[0] += 8
    made._swept = 0.0
    made.put("another", b"1")  # sweeps
    assert (made.get("before"), made.get("after")) == (b"1", b"1")
    ours[0] += 3
    assert made.get("after") is None
    assert jump < 0 or made.get("before") is None


def test_a_folder_forgets_nothing_when_its_clock_goes_back_and_forth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ours, off = Folder(tmp_path, 60), [100.0], [0.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: ours[0])
    monkeypatch.setattr(made, "_stamp", lambda: 5000.0 + ours[0] + off[0])
    made._runs.clear()
    for name, jump in (("a", -3600.0), ("b", 5400.0), ("c", 0.0)):
        made.put(name, b"1")
        os.utime(tmp_path / name, (5000.0 + ours[0] + off[0],) * 2)
        ours[0] += 10
        made.get(name)
        off[0] += jump
    assert [made.get(name) for name in "abc"] == [b"1"] * 3
    ours[0] += 45
    assert [made.get(name) for name in "abc"] == [None, None, b"1"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    made = Folder(tmp_path / "kept", 10)
    (tmp_path / "kept" / ".clock").unlink()
    (tmp_path / "kept").rmdir()
    with pytest.raises(StoreFailed):
        made.put("a", b"1")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cannot be kept"):
        Folder(tmp_path / "file", 10)


def test_redis_that_does_not_answer_is_said() -> None:
    server = fakeredis.FakeServer()
    made = Redis(fakeredis.FakeRedis(server=server), 10)
    server.connected = False
    with pytest.raises(StoreFailed, match="Redis"):
        made.put("a", b"1")


def test_a_store_by_name(tmp_path: Path) -> None:
    assert isinstance(open_store("memory", 1), Memory)
    assert isinstance(open_store(str(tmp_path), 1), Folder)
    assert isinstance(open_store("redis://127.0.0.1:1/0", 1), Redis)


def test_the_newest_snapshot_comes_first_and_the_one_before_is_there() -> None:
    keeper = Keeper(Memory(60), b"key")
    for mark in range(5):
        keeper.put("token", {"mark": mark, "sent": {"y": 10 * mark}}, f"state{mark}".encode())
    found = keeper.get("token")
    assert [k.mark for k in found] == [4, 3, 2]
    assert [k.blob for k in found] == [b"state4", b"state3", b"state2"]
    assert [k.within({"y": 35}) for k in found] == [False, True, True]


def test_another_key_finds_nothing() -> None:
    shared = Memory(60)
    Keeper(shared, b"key").put("token", {"mark": 0, "sent": {}}, b"state")
    assert Keeper(shared, b"other").get("token") == []
