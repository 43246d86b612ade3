"""Timing side by side: everyone gets a few milliseconds in turn, so what slows the machine down slows all of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

import numpy as np

TURN = 5e6  # nanoseconds, more or less
WARM = 2  # calls at the start of a turn that are not counted: the caches are another one's
LONG = 1e7  # nanoseconds; a call that takes so long finds nothing of use in the caches anyway
ROUNDS = 12  # at least


@dataclasses.dataclass(frozen=True)
class Run:
    """One call, and how many pulses it stands for."""

    call: Callable[[], object]
    pulses: float = 1.0


@dataclasses.dataclass(frozen=True)
class Times:
    """Microseconds per pulse."""

    p50_us: float
    p99_us: float
    count: int
    rounds_us: tuple[float, ...]  # the median of every round
    least_us: float = 0.0  # of a single call, when nobody else was on the core

    def ratio(self, other: Times) -> float:
        """The median over the rounds of that round's ratio: a machine that changes its speed changes both."""
        return float(np.median(np.divide(self.rounds_us, other.rounds_us)))


def measure(runs: Mapping[str, Run], seconds: float) -> dict[str, Times]:
    """All runs, by name, for about so many seconds each."""
    calls = {name: _turn(_guess(run)) for name, run in runs.items()}
    taken: dict[str, list[list[float]]] = {name: [] for name in runs}
    end, rounds = time.monotonic() + seconds * len(runs), 0
    while rounds < ROUNDS or time.monotonic() < end:
        for name, run in runs.items():
            warm, counted = calls[name]
            for _ in range(warm):
                run.call()
            turn = []
            for _ in range(counted):
                start = time.perf_counter_ns()
                run.call()
                turn.append((time.perf_counter_ns() - start) / 1e3 / run.pulses)
            taken[name].append(turn)
        rounds += 1
    return {name: summary(times) for name, times in taken.items()}


def summary(turns: list[list[float]]) -> Times:
    p50, p99 = np.percentile(np.concatenate(turns), [50, 99])
    medians = tuple(float(np.median(turn)) for turn in turns)
    return Times(float(p50), float(p99), sum(map(len, turns)), medians, min(map(min, turns)))


def figures(times: Mapping[str, Times]) -> dict[str, dict[str, float]]:
    """As plain data, by name."""
    return {name: {"p50_us": t.p50_us, "p99_us": t.p99_us, "count": t.count} for name, t in times.items()}


def _turn(call: float) -> tuple[int, int]:
    """Calls of a turn: those not counted, and those that are."""
    return (0, 1) if call >= LONG else (WARM, int(np.clip(TURN / call, 4 * WARM, 200)))


def _guess(run: Run) -> float:
    """Nanoseconds of a call, once it is warm."""
    run.call()
    spans = []
    for _ in range(3):
        start = time.perf_counter_ns()
        run.call()
        spans.append(time.perf_counter_ns() - start)
    return max(min(spans), 1)
