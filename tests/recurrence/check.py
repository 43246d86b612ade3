"""Stream and batch side by side, with static inputs, several streams at once and final states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import pulsify
from pulsify.core.chunks import chunkings
from tests.attention.build import Array
from tests.attention.check import TOLERANCE, Batch
from tests.property.check import collect, convert, difference
from tests.recurrence.build import STREAMS, Built

# For each chunking. ONNX Runtime's GRU takes NaN for a reason to keep its state, so a number must show it.
PADDINGS = (math.nan, 5.0, math.nan)


def ragged(stream: pulsify.Stream, shortest: int) -> list[int]:
    """The shortest there is, less than a pulse, whole pulses, ends at other phases, long enough to drift apart."""
    p = stream.pulse
    wanted = {shortest, shortest + 1, p - 1, p, p + 1, 2 * p, 3 * p + p // 2 + 1, 4 * p + shortest + 9}
    return sorted(n for n in wanted if n >= shortest)


def check(built: Built, factor: int, lengths: Iterable[int] = ()) -> pulsify.Stream:
    """At a pulse of so many granules, every length in several chunkings; the stream, for more questions."""
    stream = convert(built.model, factor)
    compare(built, stream, lengths or ragged(stream, built.shortest))
    return stream


def compare(built: Built, stream: pulsify.Stream, lengths: Iterable[int]) -> None:
    batch, rng = Batch(built.reference), np.random.default_rng(5)
    for length in lengths:
        feeds = built.feeds(length)
        wanted = batch.run(feeds)
        assert set(wanted) == {o.name for o in stream.outputs}
        for cuts, padding in zip(chunkings(length, stream.pulse, rng), PADDINGS, strict=True):
            got = run_stream(stream, built, feeds, cuts, padding)
            for o in stream.outputs:
                problem = difference(got[o.name], wanted[o.name], o.axis, TOLERANCE)
                assert not problem, f"pulse {stream.pulse} length {length} cuts {cuts[:5]}: {o.name} {problem}"


def open_session(stream: pulsify.Stream, built: Built, feeds: dict[str, Array], **options: Any) -> Any:
    given: dict[str, Any] = {"padding": math.nan, "statics": {n: feeds[n] for n in built.statics}} | options
    return stream.session(batch=STREAMS if stream.spec.batch else None, **given)


def frames(built: Built, feeds: dict[str, Array], start: int, end: int) -> dict[str, Array]:
    return {n: np.take(feeds[n], range(start, end), axis) for n, axis in built.streamed.items()}


def run_stream(
    stream: pulsify.Stream, built: Built, feeds: dict[str, Array], cuts: Sequence[int], padding: float = math.nan
) -> dict[str, Array]:
    """All outputs of one stream, cut as told; with several chunks as sessions run it, with one as it is saved."""
    session, at = open_session(stream, built, feeds, portable=len(cuts) == 1, padding=padding), 0
    parts: dict[str, list[Array]] = {o.name: [] for o in stream.outputs}
    for count in cuts:
        ready = session.push(frames(built, feeds, at, at + count))
        at += count
        if ready is not None:  # None: the only output is known at the end
            collect(parts, ready)
    collect(parts, session.flush())
    return joined(stream, parts)


def joined(stream: pulsify.Stream, parts: dict[str, list[Array]]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for o in stream.outputs:
        if o.axis is None:
            assert len(parts[o.name]) == 1, f"{o.name} is known at the end only, and came {len(parts[o.name])} times"
            out[o.name] = parts[o.name][0]
        else:
            out[o.name] = np.concatenate(parts[o.name], o.axis)
    return out
