"""The start-up: frames of the stream that come before the first output frame can, and are not waited for again.

    unpadded conv, 3 taps    x0 x1 x2 | x3 | x4 ...      y0 is made of x0 x1 x2: there are two frames fewer
                             y0       | y1 | y2          after two frames of start-up nothing is late

Counted from 0, frame k comes two frames after x_k. But the newest output is made of the newest input: that is no delay.
A stream without padding and one that is cut at its end both have fewer frames; in the second nothing is read ahead.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pulsify.core.length import Length
from pulsify.plan.trail import Trail

MOST = 1 << 16  # lengths, or frames, that are looked at
NONE = -(1 << 60)
Frames = NDArray[np.int64]


def start_up(trails: dict[str, Trail], wire: str, length: Length, pulse: int) -> int:
    """Of an output that is given out of a wire: frames that it is short of at the start, in units of the stream."""
    short = _fewer(length)
    return max(min(short, _ahead(trails, wire, pulse)), 0) if short > 0 and wire in trails else 0


def _fewer(length: Length) -> int:
    """By how much it is shorter than the stream, at the least: in units of the stream."""
    rate = length.rate
    if rate <= 0 or length.period > MOST or length.cap is not None:
        return 0
    steady = replace(length, short=(), floors=frozenset())
    lengths = np.arange(64 * length.period, 65 * length.period, dtype=np.int64)
    return int((lengths * rate.numerator - steady.each(lengths) * rate.denominator).min()) // rate.numerator


def _ahead(trails: dict[str, Trail], wire: str, pulse: int) -> int:
    """How far beyond its own place a frame reads at the least, in units of the stream."""
    frames = trails[wire].p
    if not 0 < frames <= MOST:
        return 0
    last: dict[str, Frames] = {wire: np.arange(frames, dtype=np.int64)}
    newest = np.full(frames, NONE, np.int64)
    for name in reversed(trails):
        if name not in last:
            continue
        trail, own = trails[name], last.pop(name)
        if not trail.looks:
            newest = np.maximum(newest, np.where(own > NONE, ((own + 1) * pulse - 1) // trail.p, NONE))
        for look in trail.least or trail.looks:
            count = len(look.spans)
            high = np.array([b for _, b in look.spans], np.int64)
            read = np.where(own > NONE, own // count * look.step + high[own % count], NONE)
            last[look.wire] = np.maximum(last.get(look.wire, NONE), read)
    places = (np.arange(1, frames + 1, dtype=np.int64) * pulse - 1) // frames  # the last unit of a frame's own time
    return math.floor((newest - places).min())
