"""What the batch model is given in a comparison, and what to say of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.core.arrays import Array
from pulsify.core.spec import concrete
from pulsify.frontend.time import is_length_like

if TYPE_CHECKING:
    from pulsify.verify.subject import Subject


def fed(stream: Subject, names: Sequence[str]) -> tuple[str, ...]:
    """What inputs of the batch model were given that the stream does not have."""
    filled = {f.name: "ones" if f.value else "zeros" for f in stream.spec.filled}
    own = {*(i.name for i in stream.spec.inputs), *(s.name for s in stream.spec.statics)}
    guessed = {b.name for b in stream.spec.bindings if b.source == "guessed"}
    return tuple(
        f"{n} = {filled.get(n, 'number of frames')}" + (" (guessed)" if n in guessed else "")
        for n in names
        if n not in own
    )


def make_inputs(
    batch: Any,
    stream: Subject,
    length: int,
    rng: np.random.Generator,
    streams: int = 1,
    wide: bool = False,
    mean: float = 0.0,
) -> dict[str, Array]:
    """Random inputs of one length for the batch model, of one stream or several.

    wide: static inputs that are called like a length are up to as large; otherwise they are small, as an index is.
    mean: of floats with time.
    """
    spec = stream.spec
    timed = {i.name: i for i in spec.inputs}
    statics = {s.name: s for s in spec.statics}
    filled = {f.name: f for f in spec.filled}
    fixed = [d for i in spec.inputs for a, d in enumerate(i.dims[:2]) if a != i.axis and isinstance(d, int)]
    count = fixed[0] if spec.batch is None and fixed else streams  # masks and lengths, one a stream
    feeds = {}
    for port in batch.get_inputs():
        if port.name in timed:
            i = timed[port.name]
            sizes = list(concrete(i.dims, streams))
            sizes[i.axis] = int(length * i.rate)
            array = random_array(sizes, i.dtype, rng)
            feeds[port.name] = array + i.dtype.type(mean) if i.dtype.kind == "f" else array
        elif port.name in statics:
            s = statics[port.name]
            dims = concrete(s.dims, streams)
            counts = wide and s.dtype.kind in "iu" and is_length_like(s.name)
            feeds[port.name] = (
                rng.integers(0, length + 1, dims).astype(s.dtype) if counts else random_array(dims, s.dtype, rng)
            )
        elif port.name in filled:
            f = filled[port.name]
            sizes = [d if isinstance(d, int) else count for d in port.shape]
            sizes[f.axis] = int(length * f.rate)
            feeds[port.name] = np.full(sizes, f.value, f.dtype)
        else:  # bound to the length
            dtype = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}[port.type]
            feeds[port.name] = np.full([d if isinstance(d, int) else count for d in port.shape], length, dtype)
    return feeds


def random_array(dims: Any, dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, dims).astype(bool)
    if dtype.kind in "iu":
        # Small: an index into a table of unknown size, most likely; short types are samples or quantised values.
        high = 2 if dtype.itemsize >= 4 else np.iinfo(dtype).max
        return rng.integers(0 if dtype.itemsize >= 4 else np.iinfo(dtype).min, high, dims).astype(dtype)
    return rng.standard_normal(dims).astype(dtype)
