"""Sound as a model takes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulsify.core.errors import InvalidChunk
from pulsify.core.spec import Input

Array = np.ndarray[Any, Any]


def shape_sound(samples: Array, port: Input) -> Array:
    """One channel of sound in the shape of an input: time on its axis, everything else of size one."""
    others = [d for axis, d in enumerate(port.dims) if axis != port.axis]
    if any(isinstance(d, int) and d != 1 for d in others) or port.dtype.kind not in "fi":
        shown = ", ".join("time" if axis == port.axis else str(d) for axis, d in enumerate(port.dims))
        raise InvalidChunk(f"input '{port.name}' takes {port.dtype} [{shown}], which is not one channel of sound")
    if port.dtype.kind == "i":  # whole samples, at the scale of the type
        scale = 2.0 ** (8 * port.dtype.itemsize - 1)
        samples = np.floor(samples.astype(np.float64) * scale).astype(port.dtype)
    dims = [1] * len(port.dims)
    dims[port.axis] = -1
    return samples.astype(port.dtype).reshape(dims)
