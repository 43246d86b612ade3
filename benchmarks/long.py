"""Is an old stream as quick and as small as a young one?    python -m benchmarks --long

A stream that has a million frames behind it is timed beside a fresh one, in turns.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pulsify
from benchmarks.cases import Case
from benchmarks.runners import endless, warmed
from benchmarks.turns import Run, figures, measure

FRAMES = 1_000_000
NAMES = ("conv_4", "attention_chunk")
SLOWER, LARGER = 1.05, 1 << 20  # the bars: time of the old stream over that of the young one; bytes


def run(case: Case, paths: Mapping[str, Path], seconds: float, frames: int = FRAMES) -> dict[str, Any]:
    stream = pulsify.stream(paths[case.batch], pulse=case.pulse)
    old, young, chunk = warmed(stream), warmed(stream), endless(stream)
    pulses = frames // stream.pulse
    for _ in range(pulses // 10):
        old.push(chunk())
    before = resident()
    for _ in range(pulses - pulses // 10):
        old.push(chunk())
    grown = resident() - before
    times = measure({"young": Run(lambda: young.push(chunk())), "old": Run(lambda: old.push(chunk()))}, seconds)
    ratio = times["old"].ratio(times["young"])
    return {
        "name": case.name,
        "frames": frames,
        **figures(times),
        "ratio": ratio,
        "resident_bytes": before,
        "grown_bytes": grown,
        "met": ratio <= SLOWER and grown <= LARGER,
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    old, young = result["old"], result["young"]
    yield (
        f"{result['name']:20s} {result['frames']:,} frames: p50 {young['p50_us']:.1f} µs young, "
        f"{old['p50_us']:.1f} old ({result['ratio']:.3f}x), memory {result['resident_bytes'] / 1e6:.1f} MB and "
        f"{result['grown_bytes'] / 1e6:+.2f} MB since the first tenth: {'met' if result['met'] else 'MISSED'}"
    )


def resident() -> int:
    """Bytes of memory this process has now; where that is not known, its peak."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
