"""Where snapshots are kept: memory, a folder or Redis. What is in there is signed, and told apart by a hash alone.

A stream has two, by turns: the one its client is known to have heard of, and the one after it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pulsify.core.errors import InvalidArgument
from pulsify.serve import boxes

SIGNATURE = 32
JUMP = 5.0  # seconds by which a clock is not merely inexact
TURNS = 3  # one that the client has acknowledged, one on its way, and the last one of a server that stops


class StoreFailed(Exception):
    """It could not be kept, or not be read."""


class Store(Protocol):
    """Bytes by name, for some time. Any thread calls it; StoreFailed if it does not work."""

    def put(self, name: str, data: bytes) -> None: ...
    def get(self, name: str) -> bytes | None: ...


class Memory:
    """Of this process, and no larger than so."""

    def __init__(self, keep: float, largest: int = 1 << 30) -> None:
        self._keep, self._largest = keep, largest
        self._held: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # oldest first
        self._lock = threading.Lock()
        self.size = 0

    def put(self, name: str, data: bytes) -> None:
        with self._lock:
            self._forget(name)
            self._expire()
            if self.size + len(data) > self._largest:
                raise StoreFailed(f"{self._largest} bytes are full of snapshots")
            self._held[name] = time.monotonic(), data
            self.size += len(data)

    def get(self, name: str) -> bytes | None:
        with self._lock:
            self._expire()
            return self._held[name][1] if name in self._held else None

    def _forget(self, name: str) -> None:
        if name in self._held:
            self.size -= len(self._held.pop(name)[1])

    def _expire(self) -> None:
        oldest = time.monotonic() - self._keep
        while self._held and next(iter(self._held.values()))[0] < oldest:
            self._forget(next(iter(self._held)))


class Folder:
    """A file each, whole or not there. How old one is is told by the folder's own clock, so that clocks may differ.

    That clock may jump, too, either way. `_runs` are the pieces between its jumps: where each was first seen, by
    it and by ours, and for how long nobody had looked.

        its clock   10:00 ──── 10:05, 09:05 ──── 09:10, 11:00 ── now       a file of 10:04 is seven minutes old
    """

    def __init__(self, path: str | os.PathLike[str], keep: float) -> None:
        self._path, self._keep, self._swept = Path(path), keep, 0.0
        self._lock = threading.Lock()
        self._runs: list[tuple[float, float, float]] = []
        self._looked = 0.0
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._now()
        except OSError as error:
            raise InvalidArgument(f"snapshots cannot be kept in {self._path}: {error.strerror}") from error

    def put(self, name: str, data: bytes) -> None:
        try:
            self._now()  # or nobody could tell later how old it is
            self._write(name, data)
            self._sweep()
        except OSError as error:
            raise StoreFailed(f"the folder of snapshots: {error.strerror}") from error

    def _write(self, name: str, data: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=self._path, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self._path / name)
        except BaseException:
            os.unlink(temporary)
            raise

    def get(self, name: str) -> bytes | None:
        path = self._path / name
        try:
            now = self._now()
            return None if self._age(path, now) > self._keep else path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"the folder of snapshots: {error.strerror}") from error

    def _now(self) -> float:
        """By our clock, with a look at the one that dates the files."""
        with self._lock:
            theirs, ours = self._stamp(), time.monotonic()
            if not self._runs or abs(theirs - self._runs[-1][0] - (ours - self._runs[-1][1])) > JUMP:
                self._runs.append((theirs, ours, ours - self._looked if self._runs else 0.0))
            self._looked = ours
            return ours

    def _stamp(self) -> float:
        clock = self._path / ".clock"
        clock.touch()
        return clock.stat().st_mtime

    def _age(self, path: Path, now: float) -> float:
        """The smallest it can have, if its date fits several times."""
        dated, runs = path.stat().st_mtime, self._runs
        ends = [ours for _, ours, _ in runs[1:]] + [now]
        fits = [
            now - ours - (dated - theirs)
            for (theirs, ours, blind), end in zip(runs, ends, strict=True)
            if -JUMP - blind <= dated - theirs <= end - ours + JUMP
        ]
        if fits:
            return min(fits)
        theirs, ours, _ = runs[0]
        return now - ours + theirs - dated if dated < theirs else 0.0

    def _sweep(self) -> None:
        if time.monotonic() < self._swept:
            return
        self._swept = time.monotonic() + max(self._keep / 4, 1)
        now = self._now()
        for path in self._path.iterdir():
            try:
                if path.name != ".clock" and self._age(path, now) > self._keep:
                    path.unlink()
            except FileNotFoundError:  # another server was quicker
                continue


class Redis:
    """A server that several of ours share. client: of the package redis, or like it."""

    def __init__(self, client: Any, keep: float, prefix: str = "pulsify:") -> None:
        self._client, self._keep, self._prefix = client, keep, prefix

    @staticmethod
    def open(url: str, keep: float) -> Redis:
        try:
            import redis
        except ImportError as error:
            raise InvalidArgument("--store redis://... needs redis: pip install 'pulsify[redis]'") from error
        return Redis(redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5), keep)

    def put(self, name: str, data: bytes) -> None:
        self._call("set", self._prefix + name, data, px=max(int(self._keep * 1000), 1))

    def get(self, name: str) -> bytes | None:
        made: bytes | None = self._call("get", self._prefix + name)
        return made

    def _call(self, method: str, *args: Any, **named: Any) -> Any:
        try:
            return getattr(self._client, method)(*args, **named)
        except Exception as error:  # the package's own classes, without importing it
            raise StoreFailed(f"Redis: {type(error).__name__}") from error


def open_store(text: str, keep: float) -> Store:
    """memory, redis://..., or a folder."""
    if text == "memory":
        return Memory(keep)
    if text.startswith(("redis://", "rediss://", "unix://")):
        return Redis.open(text, keep)
    return Folder(text, keep)


@dataclass(frozen=True)
class Kept:
    """A snapshot as it is read: facts about the stream, and its state."""

    facts: Mapping[str, Any]
    blob: bytes

    @property
    def mark(self) -> int:
        return int(self.facts["mark"])

    def within(self, have: Mapping[str, int]) -> bool:
        """Has the client all that had been sent by then?"""
        return all(have.get(name, 0) >= count for name, count in self.facts["sent"].items())


class Keeper:
    """A store with a key: what it did not sign itself, for this very token, it does not read."""

    def __init__(self, store: Store, key: bytes) -> None:
        self._store, self._key = store, key

    def put(self, token: str, facts: Mapping[str, Any], blob: bytes) -> None:
        body = boxes.pack(facts, {"state": np.frombuffer(blob, np.uint8)})
        self._store.put(self._name(token, int(facts["mark"])), self._signed(token, body) + body)

    def get(self, token: str) -> list[Kept]:
        """The newest first."""
        found = []
        for turn in range(TURNS):
            data = self._store.get(self._name(token, turn))
            if data is None or not hmac.compare_digest(data[:SIGNATURE], self._signed(token, data[SIGNATURE:])):
                continue
            facts, arrays = boxes.unpack(data[SIGNATURE:])
            found.append(Kept(facts, arrays["state"].tobytes()))
        return sorted(found, key=lambda each: -each.mark)

    def _name(self, token: str, mark: int) -> str:
        """What a store calls it: no token can be read off it, and no path be made of it."""
        return f"{hashlib.sha256(b'pulsify' + self._key + token.encode()).hexdigest()}-{mark % TURNS}"

    def _signed(self, token: str, body: bytes) -> bytes:
        digest = hmac.new(self._key, len(token).to_bytes(4, "little") + token.encode(), hashlib.sha256)
        digest.update(body)
        return digest.digest()
