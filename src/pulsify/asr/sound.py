"""Sound as a model takes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulsify.core.errors import InvalidChunk
from pulsify.core.spec import Input, Output
from pulsify.runtime.framer import one_number

Array = np.ndarray[Any, Any]


def one_channel(port: Input | Output) -> bool:
    """Numbers along time, one at a time?"""
    return port.axis is not None and port.dtype.kind in "fi" and one_number(port)


def shown_dims(port: Input | Output) -> str:
    return f"[{', '.join('time' if axis == port.axis else str(d) for axis, d in enumerate(port.dims))}]"


def shape_sound(samples: Array, port: Input) -> Array:
    """One channel of sound in the shape of an input: time on its axis, everything else of size one."""
    if not one_channel(port):
        shown = f"{port.dtype} {shown_dims(port)}"
        raise InvalidChunk(f"input '{port.name}' takes {shown}, which is not one channel of sound")
    if port.dtype.kind == "i":  # whole samples, at the scale of the type
        scale = 2.0 ** (8 * port.dtype.itemsize - 1)
        samples = np.floor(samples.astype(np.float64) * scale).astype(port.dtype)
    dims = [1] * len(port.dims)
    dims[port.axis] = -1
    return samples.astype(port.dtype).reshape(dims)
