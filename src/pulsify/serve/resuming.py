"""What a stream that can be resumed does with the store: its token, its snapshots, and whether it is still its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pulsify.serve.claims import Claim, Overtaken, Spent, begin
from pulsify.serve.protocol import Refused, Sound
from pulsify.serve.store import Kept, StoreFailed

if TYPE_CHECKING:
    from pulsify.serve.service import Service

UNKNOWN = "no such stream is kept here, or not as far back as you are, or its token was used before"


def elsewhere() -> Refused:
    return Refused("going_away", "this stream goes on in another connection")


class Resumption:
    """One stream's. All calls on the loop; the store is called elsewhere."""

    def __init__(self, service: Service, model: str) -> None:
        self._service, self._model = service, model
        self.claim: Claim | None = None
        self.mark = 0
        self._checked = self._kept = time.monotonic()
        self.confirmed = self._checking = False

    @property
    def token(self) -> str | None:
        return None if self.claim is None else self.claim.token

    async def find(self, token: str, have: Mapping[str, int]) -> Kept:
        """The newest snapshot of which the client has everything that had been sent."""
        vault = self._service.vault
        try:
            found = await vault.call(vault.claims.find, token)
        except Spent as error:
            raise Refused("unknown_stream", UNKNOWN) from error
        except StoreFailed as error:
            raise Refused("store_failed", f"{error}; try again") from error
        kept = next((each for each in found if each.fits(self._model) and each.within(have)), None)
        if kept is None:
            raise Refused("unknown_stream", UNKNOWN)
        return kept

    async def take(self, token: str, kept: Kept, given: Sound, wanted: Sound) -> None:
        """The stream is ours, and has a token of its own, under which there is what was kept."""
        self.mark, vault = kept.mark, self._service.vault
        facts = self._facts(kept.facts["sent"], given, wanted)
        try:
            self.claim = await vault.call(vault.claims.take, token, facts, kept.blob)
        except Overtaken as error:
            raise elsewhere() from error
        except Spent as error:
            raise Refused("unknown_stream", UNKNOWN) from error
        except StoreFailed as error:
            raise Refused("store_failed", f"{error}; try again") from error
        self.confirmed = False

    async def begin(self, given: Sound, wanted: Sound) -> str | None:
        """A token, under which there is something from the start; why nothing could be kept."""
        self.claim, vault, why = begin(), self._service.vault, None
        self.confirmed = True
        try:
            await vault.call(vault.claims.keep, self.claim, self._facts({}, given, wanted), b"")
        except StoreFailed as error:
            why = str(error)
        return why

    async def keep(self, sent: Mapping[str, int], blob: bytes, given: Sound, wanted: Sound) -> int:
        """A snapshot: its mark. StoreFailed, or Refused if the stream goes on elsewhere."""
        assert self.claim is not None
        self.mark += 1
        vault, mark = self._service.vault, self.mark
        try:
            ours = await vault.call(vault.claims.keep, self.claim, self._facts(sent, given, wanted), blob)
        except StoreFailed:
            self.mark -= 1
            raise
        self._checked = time.monotonic()
        if not ours:
            raise elsewhere()
        self._kept = self._checked
        return mark

    def due(self, now: float) -> bool:
        """Has nobody looked for a while whether the stream is still ours?"""
        every = max(2 * self._service.settings.snapshot_seconds, 1.0)
        return self.claim is not None and not self._checking and now - self._checked > every

    def old(self, now: float) -> bool:
        """Will the store soon forget the last snapshot?"""
        return self.claim is not None and now - self._kept > self._service.settings.keep_seconds / 3

    async def check(self) -> None:
        """Refused if the stream goes on elsewhere. A store that fails tells nothing."""
        assert self.claim is not None
        self._checking, vault = True, self._service.vault
        try:
            if not await vault.call(vault.claims.holds, self.claim):
                raise elsewhere()
        except StoreFailed:
            return
        finally:
            self._checked, self._checking = time.monotonic(), False

    async def confirm(self) -> None:
        """The client was seen to have the token: the one it came with counts no more."""
        if self.confirmed or self.claim is None:
            return
        self.confirmed, vault = True, self._service.vault
        try:
            confirmed = await vault.call(vault.claims.confirm, self.claim)
        except StoreFailed:
            self.confirmed = False  # with the next acknowledgement
            return
        if confirmed is None:
            raise elsewhere()
        self.claim = confirmed

    def _facts(self, sent: Mapping[str, int], given: Sound, wanted: Sound) -> dict[str, Any]:
        return {
            "model": self._model,
            "mark": self.mark,
            "sent": dict(sent),
            "input": [given.format, given.rate],
            "output": [wanted.format, wanted.rate],
        }
