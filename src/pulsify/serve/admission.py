"""How many streams there is time for: measured at the start, and again with every batch since.

A batch of n pulses takes t(n) seconds. All n streams bring their next pulse one pulse later, so n is too many once
t(n) is more than a share of that: frames would be late, for everyone. Streams of several models share the machine, so
their shares add up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pulsify.serve.engine import Chunks, Engine, shape_of
from pulsify.serve.stage import Stage

SHARE = 0.8  # of the time that may be spent
BUDGET = 1.0  # seconds for a calibration
Clock = Callable[[], float]
STEP = 4  # from one size of a batch to the next
MESSAGE = 40e-6  # seconds of a core that a message in and one out take, whatever the model (docs/design.md)
TRIED = 16  # streams at once, where two back ends are compared


@dataclass(frozen=True)
class Capacity:
    """What a pulse of n streams takes, as a line: `base` for the call and `each` for a stream.

    pulse_seconds: the longest pulse of the model's stages; None: nobody said, and there is room for `most`.
    """

    most: int
    pulse_seconds: float | None = None
    base: float = 0.0
    each: float = 0.0

    @property
    def streams(self) -> int:
        """So many can be served in time."""
        return self.most if self._in_time is None else min(self.most, self._in_time)

    @property
    def share(self) -> float:
        """Of the machine's time, that a stream takes. It goes by what was measured alone, however few there may be."""
        return 0.0 if self._in_time is None else 1 / self._in_time

    @property
    def _in_time(self) -> int | None:
        if self.pulse_seconds is None or not self.each:
            return None
        return max(1, math.floor((SHARE * self.pulse_seconds - self.base) / self.each))

    def late(self, slowest: float) -> bool:
        """Do rounds that take so long leave no time for one more? Whatever the reason: it is measured."""
        return self.pulse_seconds is not None and slowest + self.each > SHARE * self.pulse_seconds


def fitted(most: int, pulse_seconds: float, counts: list[int], seconds: list[float]) -> Capacity:
    """The line through the fewest streams and the most."""
    if len(counts) == 1:
        return Capacity(most, pulse_seconds, 0.0, seconds[0] / counts[0])
    each = max((seconds[-1] - seconds[0]) / (counts[-1] - counts[0]), 1e-9)
    return Capacity(most, pulse_seconds, max(seconds[-1] - each * counts[-1], 0.0), each)


def calibrated(
    stages: list[tuple[Stage, float]], pulse_seconds: float | None, most: int, clock: Clock = time.thread_time
) -> Capacity:
    """Noise through all stages of a model, in batches of more and more streams.

    stages: each with how many of its pulses go into the longest one, for which a client sends a message. clock: of this
    thread, if it does the work itself: what others do on the machine just now is no property of the model, and shows in
    the rounds later on.
    """
    if pulse_seconds is None:
        return Capacity(most)
    counts: list[int] = []
    seconds: list[float] = []
    end = time.perf_counter() + BUDGET
    for count in _sizes(most):
        start = time.perf_counter()
        took = sum(pulses * _pulse_of(stage, count, clock) for stage, pulses in stages)
        counts.append(count)
        seconds.append(took)
        now = time.perf_counter()
        if took > pulse_seconds or now + STEP * (now - start) > end:
            break
    line = fitted(most, pulse_seconds, counts, seconds)
    return replace(line, each=line.each + MESSAGE)


def quicker(stages: Sequence[Stage], most: int) -> Stage:
    """The one that takes less for a pulse of some streams at once."""
    if len(stages) == 1:
        return stages[0]
    return min(stages, key=lambda stage: _pulse_of(stage, min(TRIED, most), time.thread_time))


def _sizes(most: int) -> list[int]:
    return sorted({min(STEP**k, most) for k in range(7)})


def _pulse_of(stage: Stage, count: int, clock: Clock) -> float:
    """Seconds for one pulse of so many streams."""
    engine: Engine = stage.engine
    rng = np.random.default_rng(0)
    places = [engine.open() for _ in range(count)]
    try:
        feeds = [_noise(stage, rng) for _ in places]
        opening = stage.opening
        if opening:
            engine.pushes([(p, _noise(stage, rng, opening), False) for p in places])
        for _ in range(2):  # the first ones also make what is kept
            engine.pulses(places, feeds)
        return min(_timed(lambda: engine.pulses(places, feeds), clock) for _ in range(3))
    finally:
        for place in places:
            engine.close(place)


def _noise(stage: Stage, rng: np.random.Generator, pulses: int = 1) -> Chunks:
    return {
        i.name: (rng.standard_normal(shape_of(i, i.frames * pulses)) * 0.1).astype(i.dtype) for i in stage.spec.inputs
    }


def _timed(call: Callable[[], object], clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start
