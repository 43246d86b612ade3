"""How many streams there is time for: measured at the start, and corrected by what is measured from then on.

A batch of n pulses takes t(n) seconds. All n streams bring their next pulse one pulse later, so n is too many once
t(n) is more than a share of that: frames would be late, for everyone. Streams of several models share the machine, so
their shares add up. A stream counts from when it is admitted, whether it has sent anything or not.

    Capacity          at the start: the line t(n) = base + each * n, through several sizes of a batch
    pace.Pace         from then on: by how much rounds take longer than that line says
    pace.Congestion   whether results are late most of the time, whatever the reason
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pulsify.serve.engine import Chunks, Engine, shape_of
from pulsify.serve.stage import Cost, Stage

SHARE = 0.8  # of the time that may be spent
BUDGET = 1.0  # seconds of pulses that are timed in a calibration
LEAST = 4  # sizes that are timed whatever they take, unless a pulse takes longer than it lasts
FITTED = 4  # the largest sizes, through which the line is
REPEATS = 3  # of a pulse that is timed; the quickest counts
LONGEST_START = 64  # pulses of a new stream at the most, before its pulse is timed
Clock = Callable[[], float]
STEP = 4  # from one size of a batch to the next
MESSAGE = 40e-6  # seconds of a core that a message in and one out take, whatever the model (docs/design/server.md)
MESSAGE_EVERY = 0.08  # seconds: clients send sound in such pieces, however long a pulse is
TRIED = 16  # streams at once, where two back ends are compared


@dataclass(frozen=True)
class Capacity:
    """What a pulse of n streams takes: `base` for the call, `each` for a stream, and `message` for what it sends.

    pulse_seconds: the longest pulse of the model's stages; None: unknown, and there is room for `most`.
    """

    most: int
    pulse_seconds: float | None = None
    base: float = 0.0
    each: float = 0.0
    message: float = 0.0

    @property
    def streams(self) -> int:
        """So many can be served in time."""
        return self.most if self.in_time is None else min(self.most, self.in_time)

    @property
    def in_time(self) -> int | None:
        """Likewise, however many there may be; None: unknown."""
        share = self.share()
        return max(1, math.floor(1 / share + 1e-6)) if share else None

    def share(self, slowdown: float = 1.0) -> float:
        """Of the machine's time, that a stream takes if the model takes so many times as long as was measured."""
        if self.pulse_seconds is None or not self.each + self.message:
            return 0.0
        left = SHARE * self.pulse_seconds - self.base * slowdown
        each = self.each * slowdown + self.message
        return each / left if left > each else 1.0


def fitted(most: int, pulse_seconds: float, counts: Sequence[int], seconds: Sequence[float]) -> Capacity:
    """The line that is nearest to the largest sizes, relative to what they take."""
    cost = line(counts, seconds)
    return Capacity(most, pulse_seconds, cost.base, cost.each)


def line(counts: Sequence[int], seconds: Sequence[float]) -> Cost:
    """Least squares, each size counting the same; neither part is negative. One size: nothing is base."""
    n, took = np.array(counts[-FITTED:], float), np.maximum(np.array(seconds[-FITTED:], float), 1e-9)
    each = float(np.sum(n / took) / np.sum((n / took) ** 2))  # without a base
    if len(n) == 1:
        return Cost(0.0, each)
    base, slope = np.linalg.lstsq(np.stack([1 / took, n / took], 1), np.ones(len(n)), rcond=None)[0]
    if slope <= 0:
        return Cost(float(took.max()), 1e-9)
    return Cost(float(base), float(slope)) if base > 0 else Cost(0.0, each)


def calibrated(
    stages: Sequence[tuple[Stage, float]],
    pulse_seconds: float | None,
    most: int,
    clock: Clock = time.thread_time,
    step: int = STEP,
) -> Capacity:
    """Noise through all stages of a model, in batches of more and more streams. Each stage learns its `cost`.

    A batch of each size is computed until it is as it will be from then on, compiled and recorded, before it is timed:
    that takes what it takes. stages: each with how many of its pulses go into the longest one. clock: of this thread,
    if it does the work itself: what others do on the machine just now is no property of the model, and shows in the
    rounds later on. step: from one size to the next; 2 goes through all sizes of a back end that has powers of two.
    """
    if pulse_seconds is None:
        return Capacity(most)
    counts: list[int] = []
    took: list[list[float]] = []  # by size, by stage
    left = BUDGET
    for count in _sizes(most, step):
        timed = [_pulse_of(stage, count, clock) for stage, _ in stages]
        took.append([seconds for seconds, _ in timed])
        counts.append(count)
        left -= sum(spent for _, spent in timed)
        total = sum(each * pulses for each, (_, pulses) in zip(took[-1], stages, strict=True))
        if total > pulse_seconds or (left <= 0 and len(counts) >= LEAST and step == STEP):
            break
    base = each = 0.0
    for (stage, pulses), seconds in zip(stages, zip(*took, strict=True), strict=True):
        stage.cost = line(counts, seconds)
        base, each = base + pulses * stage.cost.base, each + pulses * stage.cost.each
    return Capacity(most, pulse_seconds, base, each, MESSAGE * max(1.0, pulse_seconds / MESSAGE_EVERY))


def quicker(stages: Sequence[Stage], most: int) -> Stage:
    """The one that takes less for a pulse of some streams at once."""
    if len(stages) == 1:
        return stages[0]
    return min(stages, key=lambda stage: _pulse_of(stage, min(TRIED, most), time.thread_time)[0])


def _sizes(most: int, step: int) -> list[int]:
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(sizes[-1] * step, most))
    return sizes


def _pulse_of(stage: Stage, count: int, clock: Clock) -> tuple[float, float]:
    """Seconds for one pulse of so many streams, away from their start; and those of all pulses that were timed."""
    engine: Engine = stage.engine
    rng = np.random.default_rng(0)
    places = [engine.open() for _ in range(count)]
    try:
        feeds = [_noise(stage, rng) for _ in places]
        if stage.opening:
            engine.pushes([(p, _noise(stage, rng, dict(stage.first)), False) for p in places])
        for _ in range(min(engine.settles, LONGEST_START) + 2):  # the first ones also make what is kept
            engine.pulses(places, feeds)
        took = [_timed(lambda: engine.pulses(places, feeds), clock) for _ in range(REPEATS)]
        return min(took), sum(took)
    finally:
        for place in places:
            engine.close(place)


def _noise(stage: Stage, rng: np.random.Generator, frames: Mapping[str, int] | None = None) -> Chunks:
    """So many frames of every input; a pulse, if nothing else is said."""
    sizes = frames or {i.name: i.frames for i in stage.spec.inputs}
    return {i.name: (rng.standard_normal(shape_of(i, sizes[i.name])) * 0.1).astype(i.dtype) for i in stage.spec.inputs}


def _timed(call: Callable[[], object], clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start
