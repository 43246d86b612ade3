"""The memory of ring caches: where the next frames go, and the same states as the portable model has them.

slot   0  1  2  3  4        `at` = 2: the next pulse is written from slot 2 on
frame  5  6  2  3  4        the state of the portable model: the last size - pulse frames, in order
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pulsify.backends.seam import Cache, Ring
from pulsify.core.spec import concrete

Array = np.ndarray[Any, Any]


class RingStore:
    """All caches of one ring in one session."""

    def __init__(self, ring: Ring, types: Mapping[str, Any], batch: int) -> None:
        self._ring = ring
        self.arrays = {c.state: np.zeros(concrete(c.shape, batch), types[c.state]) for c in ring.caches}
        self._bounds = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._places = {c.index: _places(c, ring.pulse, batch) for c in ring.caches}
        self.inputs: dict[str, Array] = {ring.start: self._bounds[0], ring.stop: self._bounds[1], **self._places}
        self._columns = [p[..., -1] for p in self._places.values()]
        self._slots = {at: (np.arange(ring.pulse) + at) % ring.size for at in _turn(ring)}
        self._at = 0

    def aim(self) -> None:
        """Before a pulse: where its frames go, and where turned windows start."""
        ring, at = self._ring, self._at
        for column in self._columns:
            column[...] = self._slots[at]
        start = -(at + ring.pulse) % ring.size
        self._bounds[0][0], self._bounds[1][0] = start, start + ring.size

    def advance(self) -> None:
        self._at = (self._at + self._ring.pulse) % self._ring.size

    def reset(self) -> None:
        self._at = 0
        for array in self.arrays.values():
            array.fill(0)

    def states(self) -> dict[str, Array]:
        past = self._ring.size - self._ring.pulse
        slots = (np.arange(past) + self._at - past) % self._ring.size
        return {c.state: np.take(self._own(c), slots, axis=c.axis) for c in self._ring.caches}

    def restore(self, states: Mapping[str, Array]) -> None:
        past = self._ring.size - self._ring.pulse
        self._at = past
        for c in self._ring.caches:
            self._own(c)[(slice(None),) * c.axis + (slice(0, past),)] = states[c.state]

    def _own(self, cache: Cache) -> Array:
        """The ring with its axes as the portable state has them."""
        array = self.arrays[cache.state]
        return array.swapaxes(-1, -2) if cache.swapped else array


def _turn(ring: Ring) -> list[int]:
    """The slots at which pulses begin, from any of those that a stream or a restored one starts at."""
    step = math.gcd(ring.size, ring.pulse)
    return list(range(0, ring.size, step))


def _places(cache: Cache, pulse: int, batch: int) -> Array:
    """ScatterND's indices: every place in front of time, and the slot (the last column, filled in at every pulse)."""
    dims = (*concrete(cache.lead, batch), pulse)
    return np.ascontiguousarray(np.moveaxis(np.indices(dims, dtype=np.int64), 0, -1))
