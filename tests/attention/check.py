"""Stream and batch side by side: ragged lengths, several chunkings, NaN behind the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import pulsify
from pulsify.core.chunks import chunkings
from tests.attention.build import Array
from tests.attention.graphs import Built
from tests.side import Batch, streamed

TOLERANCE = 2e-5  # outputs are tanh of sums of a few numbers


class Streamed(Protocol):
    """What is known of a model's inputs: which of them are streamed, and on which axis."""

    @property
    def streamed(self) -> Mapping[str, int]: ...


def run_stream(
    stream: pulsify.Stream, built: Streamed, feeds: dict[str, Array], cuts: Sequence[int], portable: bool = False
) -> dict[str, Array]:
    """All outputs of one stream, cut as told."""
    return streamed(stream, {n: feeds[n] for n in built.streamed}, cuts, portable=portable)


def ragged(pulse: int, chunk: int) -> list[int]:
    """A single frame, less than a chunk, a whole number of chunks, ends at every other phase, long enough to forget."""
    return [1, chunk, 2 * chunk + 1, 5 * chunk + pulse // 2 + 2, 7 * chunk + 2 * pulse + 3]


def check(built: Built, pulse: int, lengths: Iterable[int], **options: Any) -> pulsify.Stream:
    """Stream at this pulse and compare at every length; the stream, for more questions."""
    stream = pulsify.stream(built.model, pulse=pulse, verify=False, **options)
    compare(built, stream, lengths)
    return stream


def compare(built: Built, stream: pulsify.Stream, lengths: Iterable[int]) -> None:
    batch, rng = Batch(built.model), np.random.default_rng(5)
    for length in lengths:
        feeds = built.feeds(length)
        wanted = batch.run(feeds)
        for i, cuts in enumerate(chunkings(length, stream.pulse, rng)):
            got = run_stream(stream, built, feeds, cuts, portable=i == 0)  # as saved, then as sessions run it
            for name, value in wanted.items():
                problem = difference(got[name], value)
                assert not problem, f"pulse {stream.pulse} length {length} cuts {cuts[:5]}: {name} {problem}"


def difference(got: Array, wanted: Array) -> str:
    """What is wrong, in words, or nothing. Frames are axis 1."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"is {got.dtype} {got.shape}, not {wanted.dtype} {wanted.shape}"
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        errors = np.where(same, 0.0, np.nan_to_num(np.abs(got.astype(float) - wanted), nan=math.inf))
    if not errors.size or errors.max() <= TOLERANCE:
        return ""
    frames = errors.max(tuple(i for i in range(errors.ndim) if i != 1)) if errors.ndim > 1 else errors
    bad = np.flatnonzero(frames > TOLERANCE)
    return f"error {errors.max():.2g} in {bad.size} of {frames.size} frames, {bad[0]} to {bad[-1]}"
