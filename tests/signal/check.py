"""Stream and batch side by side, at lengths that fall short of a frame, a hop or a pulse, and at ragged ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

import pulsify
from pulsify.core.chunks import chunkings
from tests.attention.check import run_stream
from tests.property.check import Batch, convert, difference, valid
from tests.signal.build import Signal


def lengths(pulse: int, reach: int) -> list[int]:
    """One sample, around a frame, several frames, several pulses and a rest."""
    around = [1, reach // 2, reach - 1, reach, reach + 1, 2 * reach + 3]
    return sorted({n for n in (*around, pulse + 1, 3 * pulse, 4 * pulse + 2 * reach + 3) if n > 0})


def check(built: Signal, factor: int | None = 1, at: Iterable[int] = (), cuts: Sequence[int] = ()) -> pulsify.Stream:
    """Stream at so many granules a pulse and compare; `cuts` is one more way to push, over and over."""
    stream = convert(built.model, factor, time=built.streamed)
    compare(built, stream, at or lengths(stream.pulse, built.reach), cuts)
    return stream


def compare(
    built: Signal,
    stream: pulsify.Stream,
    at: Iterable[int],
    cuts: Sequence[int] = (),
) -> None:
    batch, rng, compared = Batch(built.model), np.random.default_rng(5), 0
    for length in at:
        if not built.least <= length <= built.longest:
            continue
        feeds = built.feeds(length)
        wanted = batch.run(feeds["x"])
        if wanted is None:  # not a length for the model itself
            continue
        if not all(w.size for w in wanted.values()) and not valid(stream, length):
            continue  # it makes nothing of it
        compared += 1
        for way in (*chunkings(length, stream.pulse, rng), *([repeated(length, cuts)] if cuts else [])):
            got = run_stream(stream, built, feeds, way)
            for out in stream.outputs:
                problem = difference(got[out.name], wanted[out.name], out.axis, built.tolerance)
                assert not problem, f"pulse {stream.pulse} length {length} cuts {way[:5]}: {out.name} {problem}"
    assert compared, "the batch model ran at none of the lengths"


def repeated(total: int, cuts: Sequence[int]) -> list[int]:
    """These cuts, again and again."""
    made: list[int] = []
    while (left := total - sum(made)) > 0:
        made.append(min(left, cuts[len(made) % len(cuts)]))
    return made
