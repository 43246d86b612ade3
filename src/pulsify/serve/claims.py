"""Who may go on with a stream. A token is taken once: whoever takes it gets the next one, and the stream with it.

Each stream has a chain of records in the store. A record is only ever added, by whoever is first: that decides between
two servers which are asked at the same instant.

    0  (nothing)        the stream began, its token is A
    1  owner B, after A A was taken; B may not have reached the client, so A can still be taken once more:
    2  owner C, after A ... and whoever has the stream with B ends. It may be that B had reached the client, and that
                        what asked for C was left over from before a cut: until C is seen, B can be taken, too
    3  owner C          the client was seen to have C: A and B count no more
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pulsify.serve.store import Keeper, Kept, StoreFailed, hashed

TOKEN = re.compile(r"(?P<stream>[A-Za-z0-9_-]{16})[A-Za-z0-9_-]{24}(?P<version>[0-9]{1,9})")
TRIES = 100  # of a token that others take as well
LONGEST = 1000  # times that a token is taken and the one that was given for it never shown
MOST = 10_000  # records whose age is remembered


class Spent(Exception):
    """Another one has gone on with this stream, or it never was."""


class Overtaken(Spent):
    """Another one has gone on with this stream just now; if its client has left, the token is still good."""


@dataclass(frozen=True)
class Claim:
    """A token, and the record in the chain of its stream that makes it valid."""

    stream: str
    token: str
    version: int

    @staticmethod
    def of(token: str) -> Claim:
        match = TOKEN.fullmatch(token)
        if match is None:
            raise Spent("no such token")
        return Claim(match["stream"], token, int(match["version"]))

    def next(self, version: int) -> Claim:
        return _claim(self.stream, version)

    @property
    def owner(self) -> str:
        """What a store may know of the token."""
        return hashed(self.token)


def begin() -> Claim:
    """Of a stream that is new."""
    return _claim(secrets.token_urlsafe(12), 0)


def _claim(stream: str, version: int) -> Claim:
    return Claim(stream, f"{stream}{secrets.token_urlsafe(18)}{version}", version)


class Claims:
    """The chains, and the snapshots. Any thread calls; StoreFailed if the store does not work."""

    def __init__(self, keeper: Keeper, keep: float) -> None:
        """keep: seconds after which the store forgets."""
        self._keeper, self._keep = keeper, keep
        self._fresh: dict[str, float] = {}  # records, and when they were last written

    def find(self, token: str) -> list[Kept]:
        """The snapshots of a token that may be taken, the newest first. Spent if it may not."""
        claim = Claim.of(token)
        self._latest(claim)
        return self._keeper.get(token)

    def take(self, token: str, facts: Mapping[str, Any], blob: bytes) -> Claim:
        """The next token, with a first snapshot of its own. Spent if somebody else was quicker."""
        claim = Claim.of(token)
        for _ in range(TRIES):
            version = self._latest(claim)
            mine = claim.next(version + 1)
            if self._add(mine, {"owner": mine.owner, "after": claim.owner}):
                break
        else:
            raise StoreFailed("too many want to go on with this stream")
        if not self.keep(mine, facts, blob):
            raise Overtaken("another one goes on with it")
        self._forget(mine)
        return mine

    def _forget(self, claim: Claim) -> None:
        """Drop what was kept for tokens that count no more: whoever comes back often would fill the store."""
        with suppress(StoreFailed):  # then it is there as long as anything
            newest, *before = [self._record(claim.stream, claim.version - back) or {} for back in range(3)]
            valid = {newest.get("owner"), newest.get("after")}
            if "after" in newest and before[0].get("after") == newest["after"]:
                valid.add(before[0].get("owner"))
            for owner in {each.get(key) for each in before for key in ("owner", "after")} - valid - {None}:
                self._keeper.drop(str(owner))

    def keep(self, claim: Claim, facts: Mapping[str, Any], blob: bytes) -> bool:
        """A snapshot; False if another one has gone on with the stream, before or meanwhile."""
        if not self.holds(claim):
            return False
        self._keeper.put(claim.token, facts, blob)
        return self.holds(claim)

    def holds(self, claim: Claim) -> bool:
        """Is it still the last one of its stream? The record is kept as long as that."""
        version = claim.version
        while (following := self._record(claim.stream, version + 1)) is not None:
            if following.get("owner") != claim.owner:
                return False
            version += 1  # confirmed, though the store may have failed before it said so
        if version:
            self._refresh(_name(claim.stream, version))
        return True

    def _refresh(self, name: str) -> None:
        now = time.monotonic()
        if now - self._fresh.get(name, -self._keep) > self._keep / 4:
            if len(self._fresh) > MOST:
                self._fresh.clear()
            self._keeper.refresh(name)
            self._fresh[name] = now

    def confirm(self, claim: Claim) -> Claim | None:
        """The client has this token: the one before counts no more. None if another one was quicker."""
        record = self._record(claim.stream, claim.version)
        if record is None or "after" not in record:
            return claim
        confirmed = Claim(claim.stream, claim.token, claim.version + 1)
        if self._add(confirmed, {"owner": claim.owner}):
            self._forget(confirmed)
            return confirmed
        there = self._record(claim.stream, confirmed.version) or {}
        return confirmed if there.get("owner") == claim.owner else None

    def _latest(self, claim: Claim) -> int:
        """The end of the chain; Spent unless the token is the last one, or may be the last that its client has.

        A record that rules a token out is not followed by one that does not.
        """
        version, record = claim.version, self._record(claim.stream, claim.version)
        if record is not None and record.get("owner") != claim.owner:
            raise Spent("no such token")
        known = {claim.owner, (record or {}).get("after", claim.owner)}
        while True:
            if record is not None and not known & {record.get("owner"), record.get("after")}:
                raise Spent("another one has gone on with it")
            record = self._record(claim.stream, version + 1)
            if record is None:
                return version
            version += 1
            if version > claim.version + LONGEST or version >= 10**9 - 2:
                raise Spent("taken too often")

    def _add(self, claim: Claim, record: dict[str, str]) -> bool:
        return self._keeper.add(_name(claim.stream, claim.version), json.dumps(record).encode())

    def _record(self, stream: str, version: int) -> dict[str, Any] | None:
        data = self._keeper.read(_name(stream, version))
        return None if data is None else json.loads(data)


def _name(stream: str, version: int) -> str:
    return f"{stream} {version}"
