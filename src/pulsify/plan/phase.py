"""The phase: the first pulse begins some frames before the stream, so that later ones end where frames are complete.

    conv (one ahead), blocks of 8, pulse 8

    phase 0    [ 0 ... 7 ) [ 8 ... 15 )            block 0 shows frame 8: it comes after 16 frames
    phase 7    [ . . 0 ) [ 1 ... 8 ) [ 9 ... 16 )  it comes after 9

What stands in front of the stream is filler, as behind its end. No graph but the step is needed: a window that begins
before frame 0 is what every delay makes.

Which phase has the smallest latency is worked out on the trails of a plan at phase 0, for all phases at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pulsify.core.length import Length, Table
from pulsify.plan.trail import Course, Look, Trail

AT_ONCE = 1 << 16  # phases
Ends = NDArray[np.int64]
ZERO = np.zeros(1, np.int64)


def best_phase(course: Course) -> int:
    """The phase of the smallest latency; of several the smallest."""
    if course.pulse == 1 or all(wire is None for _, wire in course.outputs):
        return 0
    best: tuple[int, int] | None = None
    for phases in _some(course.pulse):
        late = _latency(course, phases)
        at = int(late.argmin())
        if best is None or late[at] < best[0]:
            best = int(late[at]), int(phases[at])
    return best[1] if best is not None else 0


def _some(pulse: int) -> Iterator[Ends]:
    for first in range(0, pulse, AT_ONCE):
        yield np.arange(first, min(first + AT_ONCE, pulse), dtype=np.int64)


def _latency(course: Course, phases: Ends) -> Ends:
    """At every phase: by how much outputs are late, in a fraction of a frame of the stream."""
    timed = [(out, wire) for out, wire in course.outputs if wire is not None and out.axis is not None and out.frames]
    unit = math.lcm(*(out.frames for out, _ in timed), 1)
    ends, none = _ends(course, phases), _ends(course, ZERO)
    late = np.zeros(len(phases), np.int64)
    for out, wire in timed:
        waits = out.delay - (out.frames - min(int(none[wire][0]), out.frames))  # for something else than its wire
        delay = out.frames - np.minimum(ends[wire], out.frames) + waits
        late = np.maximum(late, delay * course.pulse * (unit // out.frames) - (phases + out.start_up) * unit)
    return late


def _ends(course: Course, phases: Ends) -> Mapping[str, Ends]:
    """Where the windows of every wire end."""
    found: dict[str, Ends] = {}
    exist: dict[Length, tuple[Ends, Ends]] = {}  # at these phases, and at 0
    for name, trail in course.trails.items():
        looks = [look for look in trail.spared or trail.looks if look.wire in found]
        if not looks:
            found[name] = trail.end + -phases * trail.p // course.pulse
            continue
        read = [_latest_end(look, found[look.wire]) for look in looks]
        whole = min(_latest_end(look, np.array(course.trails[look.wire].end)).item() for look in looks)
        if trail.length is not None:
            if trail.length not in exist:
                exist[trail.length] = (
                    _exist(trail.length, course.pulse, phases),
                    _exist(trail.length, course.pulse, ZERO),
                )
            read.append(exist[trail.length][0])
            whole = min(whole, int(exist[trail.length][1][0]))
        if trail.end < whole:
            read.append(_cap(trail, course.pulse, phases))
        found[name] = np.minimum.reduce(read)
    return found


def _cap(trail: Trail, pulse: int, phases: Ends) -> Ends:
    """Where its windows end for another reason than what they read, and whether that exists."""
    return np.full_like(phases, trail.p) if trail.why == "carry" else trail.end + -phases * trail.p // pulse


def _exist(length: Length, pulse: int, phases: Ends) -> Ends:
    """`Length.latest_end` at every phase, but for the shortest streams."""
    steady, frames = replace(length, short=(), floors=frozenset(), cap=None), int(length.rate * pulse)
    if steady.table is not None:
        steady = replace(steady, table=_fewest(steady.table))
    turns = range(length.period // math.gcd(length.period, pulse))
    return np.minimum.reduce([steady.each((n + 1) * pulse - phases) - n * frames for n in turns])


def _fewest(table: Table) -> Table:
    """For every length the least value at any length from there on."""
    values = np.array(table.values)
    behind = np.minimum.accumulate(values[::-1])[::-1]
    before = np.minimum.accumulate(np.concatenate([[behind[0]], values[:-1]]))
    return replace(table, values=tuple(np.minimum(behind, table.growth + before).tolist()))


def _latest_end(look: Look, end: NDArray[Any]) -> Ends:
    """The end of the frames that read only frames below an end."""
    last = np.maximum.accumulate([high for _, high in look.spans])
    last = np.maximum(last, last[-1] - look.step)  # none is there before those in front of it
    count = len(last)
    return np.minimum.reduce([((end - 1 - high) // look.step + 1) * count + k for k, high in enumerate(last.tolist())])
