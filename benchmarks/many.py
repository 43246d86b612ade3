"""How much more work many streams in one call get done.    python -m benchmarks --many"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pulsify
from benchmarks.cases import Case
from benchmarks.runners import endless, warmed
from benchmarks.turns import Run, figures, measure

COUNTS = (1, 8, 64)


def in_step(stream: pulsify.Stream, streams: int) -> Run:
    """One session of so many streams that get their chunks at the same time."""
    session, chunk = warmed(stream, streams), endless(stream, streams)
    return Run(lambda: session.push(chunk()), streams)


def pooled(stream: pulsify.Stream, streams: int) -> Run:
    """A pool of so many streams that could each go at their own pace."""
    pool, chunk = POOL(stream, most=streams), endless(stream)
    lanes = [pool.open() for _ in range(streams)]

    def turn() -> object:
        for lane in lanes:
            lane.push(chunk())
        return pool.run()

    for _ in range(stream.warm // stream.pulse + 1):
        turn()
    return Run(turn, streams)


POOL: Any = getattr(pulsify, "Pool", None)
WAYS: dict[str, Callable[[pulsify.Stream, int], Run]] = {"session": in_step, **({"pool": pooled} if POOL else {})}


def run(case: Case, paths: Mapping[str, Path], seconds: float) -> dict[str, Any]:
    assert case.many is not None
    stream = pulsify.stream(paths[case.many], pulse=case.pulse)
    runs = {f"{way} of {n}": make(stream, n) for way, make in WAYS.items() for n in COUNTS}
    times = measure(runs, seconds)
    return {
        "name": case.name,
        "pulse": stream.pulse,
        "times": figures(times),
        "frames_per_second": {name: stream.pulse * 1e6 / t.p50_us for name, t in times.items()},
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    alone = result["times"]["session of 1"]["p50_us"]
    for name, times in result["times"].items():
        yield (
            f"{result['name']:20s} {name:16s}{times['p50_us']:10.2f} µs a pulse and stream, "
            f"{result['frames_per_second'][name]:14,.0f} frames a second, {alone / times['p50_us']:.1f}x"
        )
