"""One long stream, wherever a value is carried over all of it: rounding adds up with the frames.

Its inputs have a mean: sums that grow are what shows the rounding. How long it is, is bounded by what it costs: it gets
four times as long while batch and stream together stay below that, batch taken to grow with the square of its length.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pulsify.core.arrays import Arrays
from pulsify.core.traits import traits

if TYPE_CHECKING:
    from pulsify.verify.subject import Subject

MEAN = 10.0  # of its inputs, which deviate from that by 1
GATED = 1.0  # of a model with recurrent layers: gates that saturate hold a state that rounding alone moves
CARRIED = ("carry", "fold")  # states that hold what the whole stream has come to
STEP = 4


@dataclass(frozen=True)
class Budget:
    """How long it may be at the most, and what it may cost."""

    frames: int
    pulses: int
    seconds: float  # of CPU


QUICK = Budget(1 << 14, 1 << 9, 0.3)
THOROUGH = Budget(1 << 17, 1 << 14, 4.0)


def carries(stream: Subject) -> bool:
    """Is there a value that all frames so far have gone into?"""
    return any(s.kind in CARRIED and s.dtype.kind == "f" for s in stream.spec.states)


def mean_of(stream: Subject) -> float:
    """Of the inputs of a long stream."""
    recurrent = any(traits(node.op_type, node.domain).recurrent for node in stream.model.graph)
    return GATED if recurrent else MEAN


def long_batch(
    stream: Subject,
    budget: Budget,
    shortest: int,
    batch: Callable[[int], tuple[int, Arrays, Arrays] | None],
    streamed: Callable[[int, Arrays], object],
) -> tuple[int, Arrays, Arrays] | None:
    """The batch model at the longest length that the budget allows; None if that is no longer than `shortest`.

    batch: its length, inputs and outputs at about this length, if there are any. streamed: what a stream of these
    inputs gives.
    """
    most = min(budget.frames, budget.pulses * stream.spec.pulse, stream.spec.exact_up_to or budget.frames)
    most = min(most, stream.spec.proof.limit or most)
    start = time.process_time()
    run = batch(max(most // STEP**3, shortest))
    if run is None or run[0] >= most:
        return None
    seconds = time.process_time() - start
    streamed(run[0], run[1])  # once before it is timed: sessions take time to open
    start = time.process_time()
    streamed(run[0], run[1])
    per_frame = (time.process_time() - start) / run[0]
    while run[0] < most:
        wished = min(run[0] * STEP, most)
        if seconds * (wished / run[0]) ** 2 + per_frame * wished > budget.seconds:
            break
        start = time.process_time()
        if (longer := batch(wished)) is None:
            break
        run, seconds = longer, time.process_time() - start
    finite = all(np.isfinite(a).all() for a in run[2].values() if a.dtype.kind == "f")
    return run if finite and run[0] > shortest else None
