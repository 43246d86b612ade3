"""Is a server on time? Averages over seconds: one slow round says nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Clock = Callable[[], float]
HALF_LIFE = 5.0  # seconds after which what a round took counts half
PRIOR = 0.1  # seconds of rounds that took as long as they should, which every average starts from
SETTLE = 2.0  # seconds: of the average by which most of the time is meant
LATE, ON_TIME = 0.6, 0.3  # shares of late time at which congestion begins and ends


class Pace:
    """By how much the rounds of late took longer than expected. One thread writes."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._when = clock, clock()
        self._took = self._expected = 0.0

    def add(self, took: float, expected: float) -> None:
        """Seconds of a round. Nothing is learned where nothing was expected: its cost was never measured."""
        if not expected:
            return
        now = self._clock()
        kept = 0.5 ** ((now - self._when) / HALF_LIFE)
        self._took, self._expected = self._took * kept + took, self._expected * kept + expected
        self._when = now

    @property
    def slowdown(self) -> float:
        """1: as was measured at the start."""
        kept = 0.5 ** ((self._clock() - self._when) / HALF_LIFE)
        return max(1.0, (self._took * kept + PRIOR) / (self._expected * kept + PRIOR))


class Congestion:
    """Are results late most of the time? It begins and ends at different shares, so that it does not flicker."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._when, self._late = clock, clock(), 0.0
        self.present = False

    def look(self, late: bool) -> None:
        """late: now, which stands for all of the time since the last look."""
        now = self._clock()
        kept = math.exp(-(now - self._when) / SETTLE)
        self._when, self._late = now, self._late * kept + late * (1 - kept)
        self.present = self._late > (ON_TIME if self.present else LATE)
