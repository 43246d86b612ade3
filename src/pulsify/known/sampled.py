"""What a sample of lengths says, where nothing is certain and the caller accepts that (`proof="sampled"`)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.known.series import Series, Unsure

Array = np.ndarray[Any, Any]
NEAR, FAR = range(1, 385), (1000, 4097, 20011)  # lengths looked at, in units
PERIODS = range(1, 129)


def sample(at: Callable[[int], Array], unit: int = 1) -> list[Array]:
    """The value at all lengths of the sample at which it can be computed."""
    return [a for n in (*NEAR, *FAR) if (a := _quietly(at, n * unit)) is not None]


def _quietly(at: Callable[[int], Array], length: int) -> Array | None:
    from pulsify.trace.evaluate import CannotRun

    try:
        return np.asarray(at(length))
    except CannotRun:
        return None


def guess(at: Callable[[int], Array], around: int, unit: int) -> Array:
    """Series that explain what the sample shows (dtype object); Unsure if no simple one does."""
    rows = [_quietly(at, n * unit) for n in NEAR]
    shape = next((r.shape for r in reversed(rows) if r is not None), None)
    if shape is None or any(r is not None and r.shape != shape for r in rows):
        raise Unsure("not even a sample of lengths shows what it is")
    first = next(r for r in rows if r is not None)
    filled = []
    for r in rows:
        first = first if r is None else r
        filled.append(first.reshape(-1))
    columns = np.stack(filled, 1)
    out = np.empty(len(columns), object)
    for i, c in enumerate(columns):
        out[i] = _explained(c.astype(np.float64) if c.dtype.kind == "f" else c, unit)
    return out.reshape(shape)


def _explained(values: Array, unit: int) -> Series:
    horizon = len(values) // 3
    for p in PERIODS:
        d = values[horizon + p :].astype(np.float64) - values[horizon:-p].astype(np.float64)
        if (d == d[0]).all():
            return Series(values[: horizon + p], horizon, Fraction(float(d[0])), unit).reduced()
    raise Unsure("not even a sample of lengths shows what it is")
