"""Zeros at the ends of constants: taps and samples that count for nothing, so that no frame waits for them.

    kernel     0 . . . 0 0          a frame reads three input frames; the two after them need not have come

Only constants are looked at, slice by slice from the outside in: the first that is not zero ends the search.
"""

from __future__ import annotations

import math

import numpy as np

from pulsify.analysis.questions import Questions
from pulsify.trace.traced import Array

Ends = tuple[int, int]  # so many of the first, and so many of the last
NONE: Ends = (0, 0)
MOST = 1 << 20  # elements of a constant that has to be computed


def weights(ask: Questions, name: str) -> Array | None:
    """A constant, or what is made of constants if it is small."""
    tensor = ask.model.constants.get(name)
    if tensor is not None:
        try:
            return np.asarray(tensor.numpy())
        except (OSError, ValueError):  # its file is missing or too short: whoever runs the model says so
            return None
    value = ask.traces.runs[0][name]
    if not value.known or math.prod(value.dims) > MOST or not _of_constants(ask, name):
        return None
    return value.array


def _of_constants(ask: Questions, name: str) -> bool:
    node = ask.model.producers.get(name)
    return node is not None and all(not i or i in ask.model.constants or _of_constants(ask, i) for i in node.reads)


def zero_ends(array: Array, axis: int, zero: Array | int = 0) -> Ends:
    """How many slices along an axis hold nothing but zeros: in front, and behind. One slice is always left.

    zero: what stands for zero, if it is another number (quantised weights).
    """
    rows = np.moveaxis(array, axis, 0)
    nothing = np.moveaxis(np.broadcast_to(zero, array.shape), axis, 0)

    def silent(i: int) -> bool:
        corner = (slice(1),) * (rows.ndim - 1)  # of most weights one number decides
        return not (rows[i][corner] != nothing[i][corner]).any() and not (rows[i] != nothing[i]).any()

    front = back = 0
    while back < len(rows) - 1 and silent(len(rows) - 1 - back):
        back += 1
    while front < len(rows) - 1 - back and silent(front):
        front += 1
    return front, back
