"""Snapshots in the parent's memory: any worker takes up a stream of another one, whether that one lives or not."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from typing import Any

from pulsify.serve.store import Store, StoreFailed

METHODS = ("put", "add", "get", "drop")


class InParent:
    """The parent's store, as a worker has it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        self._ask("put", name, data)

    def add(self, name: str, data: bytes) -> bool:
        added: bool = self._ask("add", name, data)
        return added

    def get(self, name: str) -> bytes | None:
        found: bytes | None = self._ask("get", name)
        return found

    def drop(self, name: str) -> None:
        self._ask("drop", name)

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            with self._lock:
                self._pipe.send((method, args))
                value, failure = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise StoreFailed("the parent process is gone") from error
        if failure is not None:
            raise StoreFailed(failure)
        return value


def answer(pipe: Connection, store: Store) -> None:
    """The parent's side of one worker, until that is gone: a thread of its own."""
    try:
        while True:
            method, args = pipe.recv()
            try:
                assert method in METHODS
                pipe.send((getattr(store, method)(*args), None))
            except StoreFailed as error:
                pipe.send((None, str(error)))
    except (EOFError, OSError):
        pipe.close()
