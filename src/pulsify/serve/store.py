"""Where snapshots are kept: memory, a folder or Redis. What is in there is signed, and told apart by a hash alone.

A stream has two, by turns: the one its client is known to have heard of, and the one after it.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pulsify.core.errors import InvalidArgument
from pulsify.serve import boxes

SIGNATURE = 32
JUMP = 5.0  # seconds by which a clock is not merely inexact
TIMEOUT = 2.0  # seconds for an answer of Redis
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system without hard links
TURNS = 3  # one that the client has acknowledged, one on its way, and the last one of a server that stops


def hashed(token: str) -> str:
    """What may be known of a token where it is not shown."""
    return hashlib.sha256(token.encode()).hexdigest()


class StoreFailed(Exception):
    """It could not be kept, or not be read."""


class Store(Protocol):
    """Bytes by name, for some time. Any thread calls it; StoreFailed if it does not work.

    add: only if there is nothing of that name; of any number of callers anywhere, one is told True.
    """

    def put(self, name: str, data: bytes) -> None: ...
    def add(self, name: str, data: bytes) -> bool: ...
    def get(self, name: str) -> bytes | None: ...
    def drop(self, name: str) -> None: ...


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
            self._hold(name, data)

    def add(self, name: str, data: bytes) -> bool:
        with self._lock:
            self._expire()
            if name in self._held:
                return False
            self._hold(name, data)
            return True

    def _hold(self, name: str, data: bytes) -> None:
        if self.size + len(data) > self._largest:
            raise StoreFailed(f"{self._largest} bytes are full of snapshots")
        self._held[name] = time.monotonic(), data
        self.size += len(data)

    def get(self, name: str) -> bytes | None:
        with self._lock:
            self._expire()
            return self._held[name][1] if name in self._held else None

    def drop(self, name: str) -> None:
        with self._lock:
            self._forget(name)

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

    def add(self, name: str, data: bytes) -> bool:
        try:
            self._now()
            self._write(name, data, new=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise StoreFailed(f"the folder of snapshots: {error.strerror}") from error
        return True

    def _write(self, name: str, data: bytes, new: bool = False) -> None:
        """In one piece. new: FileExistsError if there is one of that name."""
        handle, temporary = tempfile.mkstemp(dir=self._path, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            if new:
                self._link(temporary, name, data)
            else:
                os.replace(temporary, self._path / name)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _link(self, temporary: str, name: str, data: bytes) -> None:
        try:
            os.link(temporary, self._path / name)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with open(self._path / name, "xb") as file:  # a reader that comes in between sees what is not signed
                file.write(data)

    def get(self, name: str) -> bytes | None:
        path = self._path / name
        try:
            now = self._now()
            return None if self._age(path, now) > self._keep else path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"the folder of snapshots: {error.strerror}") from error

    def drop(self, name: str) -> None:
        try:
            (self._path / name).unlink(missing_ok=True)
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
        try:
            client = redis.Redis.from_url(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)
        except ValueError as error:
            raise InvalidArgument(f"--store {url.split('@')[-1]}: {error}") from error
        return Redis(client, keep)

    def put(self, name: str, data: bytes) -> None:
        self._call("set", self._prefix + name, data, px=max(int(self._keep * 1000), 1))

    def add(self, name: str, data: bytes) -> bool:
        return bool(self._call("set", self._prefix + name, data, px=max(int(self._keep * 1000), 1), nx=True))

    def get(self, name: str) -> bytes | None:
        data: bytes | None = self._call("get", self._prefix + name)
        return data

    def drop(self, name: str) -> None:
        self._call("delete", self._prefix + name)

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

    def fits(self, model: str) -> bool:
        """Is it of this model, and as this version writes it?"""
        return self.facts.get("model") == model and {"sent", "input", "output"} <= self.facts.keys()

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
            body = self._opened(token, self._store.get(self._name(token, turn)))
            if body is None:
                continue
            facts, arrays = boxes.unpack(body)
            found.append(Kept(facts, arrays["state"].tobytes()))
        return sorted(found, key=lambda each: -each.mark)

    def drop(self, owner: str) -> None:
        """The snapshots of a token, of which the hash is known."""
        for turn in range(TURNS):
            self._store.drop(self._called(owner, turn))

    def add(self, name: str, body: bytes) -> bool:
        """A record that is not there yet; False if it is."""
        return self._store.add(self._name(name, 0), self._signed(name, body) + body)

    def read(self, name: str) -> bytes | None:
        """A record."""
        return self._opened(name, self._store.get(self._name(name, 0)))

    def refresh(self, name: str) -> None:
        """It is kept from now on as if it were new."""
        data = self._store.get(self._name(name, 0))
        if data is not None:
            self._store.put(self._name(name, 0), data)

    def _opened(self, token: str, data: bytes | None) -> bytes | None:
        """What was signed; None if it was not signed here, for this token."""
        if not isinstance(data, bytes):
            if data is None:
                return None
            raise StoreFailed("the store does not give back bytes")
        signed = hmac.compare_digest(data[:SIGNATURE], self._signed(token, data[SIGNATURE:]))
        return data[SIGNATURE:] if signed else None

    def _name(self, token: str, mark: int) -> str:
        """What a store calls it: no token can be read off it, and no path be made of it."""
        return self._called(hashed(token), mark)

    def _called(self, owner: str, mark: int) -> str:
        return f"{hashlib.sha256(b'pulsify' + self._key + owner.encode()).hexdigest()}-{mark % TURNS}"

    def _signed(self, token: str, body: bytes) -> bytes:
        digest = hmac.new(self._key, len(token).to_bytes(4, "little") + token.encode(), hashlib.sha256)
        digest.update(body)
        return digest.digest()
