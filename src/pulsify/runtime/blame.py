"""Which of several streams in step is the bad one?"""

from __future__ import annotations

import numpy as np

from pulsify.backends.seam import Array, Stepper, stream_axis
from pulsify.core.spec import Dims, Spec


def guilty(stepper: Stepper, spec: Spec, batch: int, length: int | None) -> tuple[int, ...]:
    """The streams whose frames fail when all have them; none if all of them do, or none does.

    The model has failed on what lies in `stepper.inputs`. States are worth nothing afterwards.
    """
    if batch == 1:
        return ()
    taken = {i.name: stepper.inputs[i.name].copy() for i in spec.inputs}
    found = []
    for row in range(batch):
        for i in spec.inputs:
            stepper.inputs[i.name][...] = _repeated(taken[i.name], i.dims, batch, row)
        try:
            stepper.run(length)
        except Exception:  # runtimes have no common class for them
            found.append(row)
    return tuple(found) if len(found) < batch else ()


def _repeated(array: Array, dims: Dims, batch: int, row: int) -> Array:
    """What one stream has, for all of them."""
    axis = stream_axis(dims)
    if axis is None:
        return array
    return np.concatenate([np.split(array, batch, axis)[row]] * batch, axis)


def first_stream(marked: Array, dims: Dims, batch: int) -> int | None:
    """The first stream that has a mark; None if there is one stream alone."""
    axis = stream_axis(dims)
    if batch == 1 or axis is None:
        return None
    return next((row for row, part in enumerate(np.split(marked, batch, axis)) if part.any()), None)


def said(rows: tuple[int, ...], batch: int) -> str:
    """Streams as a person counts them here, from 0."""
    if not rows:
        return ""
    named = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
    return f"{'stream' if len(rows) == 1 else 'streams'} {named} of {batch}, counted from 0"
