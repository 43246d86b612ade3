"""What is known of every cell (i, j) where frame i meets frame j: a constant, or data.

Masks come in many forms: Where with either branch, adding -inf or -1e9, multiplying by 0, filling with 0 behind a
softmax, and/or/not of several. None of them is recognised as such. The operators are run on cells that are either
constants or live, with the few laws by which a constant wins over data (0 * x = 0, False and x = False, x - 1e9 is as
good as -1e9 before a softmax). What is not zero where the values are summed up is what a row looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pulsify.core.traits import traits
from pulsify.trace.evaluate import Array

ADDED = -5000.0  # what is added must be lower still: a bias may fall off slowly with the distance
LOW = -500.0  # a score this low has no weight behind a softmax: exp(-500) is nothing beside any score in use


@dataclass(frozen=True, eq=False)
class Cells:
    """live: depends on data. Elsewhere `value` is the constant. Both [rows, cols], or [rows, 1], [1, cols], [1, 1].

    weighed: cells that a softmax has looked at; they are needed even if a later mask hides them.
    soft: data may hide every cell of a row with a finite score, and a softmax would then look at all of them.
    """

    live: Array
    value: Array
    weighed: Array | None = None
    soft: bool = False

    @property
    def needed(self) -> Array:
        """Cells that take part in a sum, or in the weights of a row that does."""
        with np.errstate(invalid="ignore"):
            summed = self.live | ((self.value != 0) & ~np.isnan(self.value))
        if self.weighed is None:
            return summed
        return summed | (self.weighed & summed.any(1, keepdims=True))

    @property
    def turned(self) -> Cells:
        """Rows and columns exchanged."""
        return Cells(self.live.T, self.value.T, None if self.weighed is None else self.weighed.T, self.soft)


def data() -> Cells:
    """A value that depends on data in every cell."""
    return Cells(np.ones((1, 1), bool), np.zeros((1, 1), np.float32))


def constants(array: Array, axes: tuple[int | None, int | None]) -> Cells:
    """The cells of a known array whose axes `axes` are rows and cols (None: it has no such axis).

    Where heads differ, a cell is constant only if it is alike in all of them, or low in all of them.
    """
    x = np.asarray(array)
    spread = (slice(0, 1) if n == 0 and i not in axes else slice(None) for i, n in enumerate(x.strides))
    x = x[tuple(spread)].astype(np.float32)  # what is mere repetition is looked at once
    order = [a for a in axes if a is not None]
    rest = [i for i in range(x.ndim) if i not in order]
    x = x.transpose([*rest, *order]).reshape(-1, *(x.shape[a] for a in order))
    with np.errstate(invalid="ignore"):
        top, bottom = x.max(0), x.min(0)
        alike = (top == bottom) | (np.isnan(x).all(0)) | (top <= LOW)
    live = ~np.broadcast_to(alike, top.shape)
    shape = [x.shape[1 + order.index(a)] if a is not None else 1 for a in axes]
    return Cells(live.reshape(shape), top.reshape(shape))


def combine(op: str, cells: list[Cells], compute: Callable[[list[Array]], Array]) -> Cells:
    """An elementwise operator on cells. `compute` runs it on the constants."""
    lives = [c.live for c in cells]
    values = [c.value for c in cells]
    if op == "Where":
        return _where(*cells)
    weighed = _weighed(cells)
    soft = any(c.soft for c in cells) or (op == "Mul" and _times_low(cells))
    soft = soft and not (op == "Mul" and weighed is not None)
    shape = np.broadcast_shapes(*(v.shape for v in lives))
    live = np.broadcast_to(np.logical_or.reduce(np.broadcast_arrays(*lives)), shape).copy()
    with np.errstate(all="ignore"):
        value = np.broadcast_to(np.asarray(compute(values), np.float32), shape).copy()
    for c in cells:
        wins, result = _law(op, c)
        fixed = np.broadcast_to(~c.live & wins, shape) & live
        live[fixed] = False
        value[fixed] = np.broadcast_to(result, shape)[fixed]
    return Cells(live, value, weighed, soft)


def _times_low(cells: Sequence[Cells]) -> bool:
    """Data times a very low number: a mask that is data, about to be added to the scores."""
    return any(bool((x.live & ~y.live & (y.value <= ADDED) & np.isfinite(y.value)).any()) for x in cells for y in cells)


def _weighed(cells: Sequence[Cells]) -> Array | None:
    found = [c.weighed for c in cells if c.weighed is not None]
    return np.logical_or.reduce(np.broadcast_arrays(*found)) if found else None


def _law(op: str, c: Cells) -> tuple[Array, Array]:
    """Where a constant decides the result whatever the other operand is, and what it is then."""
    law = traits(op).law
    with np.errstate(invalid="ignore"):
        if law == "zero":
            return c.value == 0, np.zeros_like(c.value)
        if law == "one":
            return c.value != 0, np.ones_like(c.value)
        if law == "low":
            return c.value <= ADDED, c.value
    return np.zeros(c.value.shape, bool), c.value


def _where(condition: Cells, x: Cells, y: Cells) -> Cells:
    shape = np.broadcast_shapes(condition.live.shape, x.live.shape, y.live.shape)
    c, cl = (np.broadcast_to(a, shape) for a in (condition.value != 0, condition.live))
    xv, xl, yv, yl = (np.broadcast_to(a, shape) for a in (x.value, x.live, y.value, y.live))
    same = ~xl & ~yl & ((xv == yv) | ((xv <= LOW) & (yv <= LOW)))
    live = np.where(cl, ~same, np.where(c, xl, yl))
    weighed = _weighed((condition, x, y))
    hides = cl & ((~xl & (xv <= LOW) & np.isfinite(xv)) | (~yl & (yv <= LOW) & np.isfinite(yv)))
    zeroed = weighed is not None and bool((cl & ((~xl & (xv == 0)) | (~yl & (yv == 0)))).any())
    soft = (condition.soft or x.soft or y.soft or bool(hides.any())) and not zeroed
    return Cells(live, np.where(cl, np.maximum(xv, yv), np.where(c, xv, yv)), weighed, soft)


def softmax(c: Cells, axis: int) -> Cells:
    """Along rows (axis 0) or cols (axis 1): low constants beside data get no weight at all."""
    shown = np.where(c.live, 0.0, c.value)
    any_live = c.live.any(axis, keepdims=True)
    with np.errstate(all="ignore"):
        alone = np.exp(shown - shown.max(axis, keepdims=True))
        alone = alone / alone.sum(axis, keepdims=True)
    low = ~c.live & (c.value <= LOW)
    live = np.where(any_live, ~low, False) & np.ones_like(c.live)
    return Cells(live, np.where(any_live, 0.0, alone), live, c.soft)
