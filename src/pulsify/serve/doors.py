"""Connections by address: how many there are, and which of them have asked for nothing yet."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any, Protocol

from pulsify.serve.turns import Allowance

RATE, BURST = 500, 100  # segments of HTTP a second, and at once, that are taken apart as they come
EARLY = "early"  # where a door leaves what came behind a request for a websocket
FILES, OTHER_FILES = 1 << 16, 256  # open files that are asked for, and those that are no streams
log = logging.getLogger("pulsify.serve")


class Watched(Protocol):
    """A connection that is no websocket."""

    def look(self, now: float, request_seconds: float, unread_seconds: float) -> None: ...


class Doors:
    """All connections by address, and those among them that are no websockets."""

    def __init__(self, most: int, request_seconds: float, unread_seconds: float) -> None:
        self.most, self._request, self._unread = most, request_seconds, unread_seconds
        self.addresses: Counter[str] = Counter()
        self.doors: dict[Watched, None] = {}
        self.allowance = Allowance(RATE, BURST)
        self._warned = -1e9

    def enter(self, address: str) -> bool:
        """One more of this address. False: it has too many."""
        self.addresses[address] += 1
        if self.addresses[address] <= self.most:
            return True
        if (now := time.monotonic()) - self._warned > 60:
            self._warned = now
            log.warning("%s has %d connections, and may have no more; see --connections", address, self.most)
        return False

    def leave(self, address: str) -> None:
        self.addresses[address] -= 1
        if self.addresses[address] <= 0:
            del self.addresses[address]

    def look(self, now: float) -> None:
        """Is any time up?"""
        for door in list(self.doors):
            door.look(now, self._request, self._unread)


def address_of(transport: Any) -> str:
    """Without the port; a socket of the file system has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def raise_open_files(streams: int) -> None:
    """As many open files as this process may have, within reason: every connection is one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < streams + OTHER_FILES:
        log.warning("open files are limited to %d (ulimit -n), which is not enough for %d streams", soft, streams)
