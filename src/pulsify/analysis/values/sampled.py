"""Values that cannot be followed, looked at length by length: in all there are, if the caller has declared few (then it
is a proof all the same), or in a sample of them, if the caller accepts that (`proof="sampled"`)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.lengths.series import Series, Unsure

Array = np.ndarray[Any, Any]
NEAR, FAR = range(1, 385), (1000, 4097, 20011)  # lengths looked at, in units
PERIODS = range(1, 129)


def sample(at: Callable[[int], Array], unit: int = 1) -> list[Array]:
    """The value at all lengths of the sample at which it can be computed."""
    return [a for n in (*NEAR, *FAR) if (a := _quietly(at, n * unit)) is not None]


def _quietly(at: Callable[[int], Array], length: int) -> Array | None:
    from pulsify.trace.traced import CannotRun

    try:
        return np.asarray(at(length))
    except CannotRun:
        return None


def every(at: Callable[[int], Array], unit: int, longest: int) -> list[Array]:
    """The value at all lengths there are at which it can be computed."""
    return [a for n in range(1, longest // unit + 1) if (a := _quietly(at, n * unit)) is not None]


def exhausted(at: Callable[[int], Array], unit: int, longest: int) -> Array:
    """Series of what was seen at all lengths there are (dtype object)."""

    def series(values: Array) -> Series:
        growth = Fraction((values[-1] - values[-2]).item()) if len(values) > 1 and values.dtype.kind != "b" else 0
        return Series(values, len(values) - 1, Fraction(growth), unit, longest=longest).reduced()

    return _columns([_quietly(at, n * unit) for n in range(1, longest // unit + 1)], series)


def guess(at: Callable[[int], Array], unit: int) -> Array:
    """Series that explain what the sample shows (dtype object); Unsure if no simple one does."""
    return _columns([_quietly(at, n * unit) for n in NEAR], lambda values: _explained(values, unit))


def _columns(rows: list[Array | None], series: Callable[[Array], Series]) -> Array:
    """A Series for every entry; where a value cannot be computed there is none, and any will do."""
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
        out[i] = series(c.astype(np.float64) if c.dtype.kind == "f" else c)
    return out.reshape(shape)


def _explained(values: Array, unit: int) -> Series:
    horizon = len(values) // 3
    for p in PERIODS:
        d = values[horizon + p :].astype(np.float64) - values[horizon:-p].astype(np.float64)
        if (d == d[0]).all():
            return Series(values[: horizon + p], horizon, Fraction(float(d[0])), unit).reduced()
    raise Unsure("not even a sample of lengths shows what it is")
