"""What is known of every cell (i, j) where frame i meets frame j: a constant, or data.

Masks come in many forms: Where with either branch, adding -inf or -1e9, multiplying by 0, filling with 0 behind a
softmax, and/or/not of several. None of them is recognised as such. The operators are run on cells that are either
constants or live, with the few laws by which a constant wins over data (0 * x = 0, False and x = False, x - inf is
-inf). Of live cells it is kept what was added to the data: x - 1e9 is no constant, but far below x. A softmax gives no
weight to cells that lie that far below the best of their row. What is not zero where the values are summed up is what a
row looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pulsify.core.traits import traits
from pulsify.trace.evaluate import Array

ADDED = 5000.0  # data must lie so far below the best of a row to have no weight: a bias may fall off with the distance
FILLED = 500.0  # and constants so far: exp(-500) is nothing beside any score in use
LEVELS = {  # monotone, and level far down: what is that low is no data any more
    "Relu", "Exp", "Sigmoid", "HardSigmoid", "Softplus", "Clip", "Max", "Tanh", "Erf", "ThresholdedRelu",
    "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
}  # fmt: skip
KEEPS_OFFSETS = {"Add", "Sum", "Sub", "Neg", "Mul", "Div", "Min", "Max", "Identity", "Cast", "Dropout"}
Hider = tuple[str, bool]  # a value that depends on data, and which truth of it hides cells


@dataclass(frozen=True, eq=False)
class Cells:
    """live: depends on data. Elsewhere `value` is the constant. Both [rows, cols], or [rows, 1], [1, cols], [1, 1].

    value, where live: what was added to the data; NaN if nobody knows.
    weighed: cells that a softmax along the cols has looked at; they are needed even if a later mask hides them.
    across: the same along the rows.
    sink: as low as data may put cells by hiding them; 0 if they do not.
    hiders: what hides them so. doubtful: cells a softmax gives weight to if data hide all others of a row.
    lifted: data were multiplied by a number so large that taking it off hides.
    margin: scores that differ by less than this do what is said here.
    """

    live: Array
    value: Array
    weighed: Array | None = None
    across: Array | None = None
    sink: float = 0.0
    hiders: frozenset[Hider] = frozenset()
    doubtful: Array | None = None
    margin: float = math.inf
    lifted: bool = False

    @property
    def needed(self) -> Array:
        """Cells that take part in a sum, or in the weights of a row that does."""
        with np.errstate(invalid="ignore"):
            summed = self.live | ((self.value != 0) & ~np.isnan(self.value))
        if self.weighed is None:
            return summed
        return summed | (self.weighed & summed.any(1, keepdims=True))

    @property
    def soft(self) -> bool:
        """May data hide every cell of a row, so that a softmax looks at all cells that a mask hides as well?"""
        return self.doubtful is not None and (bool(self.hiders) or bool(self.doubtful.any()))

    @property
    def normalised(self) -> bool:
        return self.weighed is not None or self.across is not None

    @property
    def turned(self) -> Cells:
        """Rows and columns exchanged."""
        weighed, across, doubtful = (None if a is None else a.T for a in (self.across, self.weighed, self.doubtful))
        return replace(self, live=self.live.T, value=self.value.T, weighed=weighed, across=across, doubtful=doubtful)

    def spread(self, shape: tuple[int, ...]) -> Cells:
        """All cells, one by one."""
        live, value = np.broadcast_to(self.live, shape), np.broadcast_to(self.value, shape)
        return replace(self, live=live, value=value)


def data() -> Cells:
    """A value that depends on data in every cell."""
    return Cells(np.ones((1, 1), bool), np.zeros((1, 1), np.float32))


def constants(array: Array, axes: tuple[int | None, int | None]) -> Cells:
    """The cells of a known array whose axes `axes` are rows and cols (None: it has no such axis).

    Where heads differ, a cell is constant only if it is alike in all of them, or about as low in all of them.
    """
    x = np.asarray(array)
    spread = (slice(0, 1) if n == 0 and i not in axes else slice(None) for i, n in enumerate(x.strides))
    x = x[tuple(spread)].astype(np.float32)  # what is mere repetition is looked at once
    order = [a for a in axes if a is not None]
    rest = [i for i in range(x.ndim) if i not in order]
    x = x.transpose([*rest, *order]).reshape(-1, *(x.shape[a] for a in order))
    shape = [x.shape[1 + order.index(a)] if a is not None else 1 for a in axes]
    if len(x) == 1:
        return Cells(np.zeros(shape, bool), x.reshape(shape))
    with np.errstate(invalid="ignore"):
        top, bottom = x.max(0), x.min(0)
        near = top - bottom <= FILLED  # by so much the best of a row may be off
        alike = (top == bottom) | (np.isnan(x).all(0)) | ((top <= -FILLED) & near)
        top = np.where(alike | near | (top <= -FILLED), top, np.nan)
    live = ~np.broadcast_to(alike, top.shape)
    return Cells(live.reshape(shape), top.reshape(shape))


def combine(
    op: str,
    cells: list[Cells],
    compute: Callable[[list[Array]], Array],
    roots: Sequence[Hider | None] = (),
) -> Cells:
    """An elementwise operator on cells. `compute` runs it on the constants; roots: of what an operand is the truth."""
    roots = roots or [None] * len(cells)
    if op == "Where":
        return _where(cells[0], cells[1], cells[2], roots[0] or ("", True))
    shape = np.broadcast_shapes(*(c.live.shape for c in cells))
    lives = [np.broadcast_to(c.live, shape) for c in cells]
    live = np.logical_or.reduce(lives).copy()
    with np.errstate(all="ignore"):
        value = np.broadcast_to(np.asarray(compute([c.value for c in cells]), np.float32), shape).copy()
    margin = min(c.margin for c in cells)
    if live.any():
        _offsets(op, cells, live, value)
        margin = min(margin, _level(cells, shape, live, value, compute)) if op in LEVELS else margin
    for c in cells:
        wins, result = _law(op, c)
        fixed = np.broadcast_to(~c.live & wins, shape) & live
        live[fixed] = False
        value[fixed] = np.broadcast_to(result, shape)[fixed]
    sink, hiders = _hidden(op, cells, roots)
    weighed, across = (_either([getattr(c, w) for c in cells]) for w in ("weighed", "across"))
    lifted = any(c.lifted for c in cells) or (op == "Mul" and _times(cells, 1))
    return Cells(live, value, weighed, across, sink, hiders, _doubt(op, cells), margin, lifted)


def _offsets(op: str, cells: Sequence[Cells], live: Array, value: Array) -> None:
    """What was added to live cells, as far as that can be told: lines keep it."""
    several = op in ("Mul", "Div") and sum(bool(c.live.any()) for c in cells) > 1
    divides = op == "Div" and bool(cells[1].live.any())
    if op in KEEPS_OFFSETS and not several and not divides:
        return
    shifted = np.zeros((1, 1), bool)
    for c in cells:
        shifted = shifted | (c.live & (c.value != 0))  # NaN is such
    value[live] = 0.0
    value[live & shifted] = np.nan


def _level(
    cells: Sequence[Cells], shape: tuple[int, ...], live: Array, value: Array, compute: Callable[[list[Array]], Array]
) -> float:
    """Where data are so low that the result is the same whatever they are (Relu, Exp): it is a constant there.

    Returns how much data may vary for that.
    """
    for n, c in enumerate(cells):
        with np.errstate(invalid="ignore"):
            low = c.live & (c.value <= -ADDED)
        if not low.any():
            continue
        others = [np.broadcast_to(o.live, shape) for i, o in enumerate(cells) if i != n]
        alone = np.broadcast_to(low, shape) & ~np.logical_or.reduce(others, initial=False)
        with np.errstate(all="ignore"):
            ends = [
                np.broadcast_to(
                    compute([c.value * f if i == n else o.value for i, o in enumerate(cells)]).astype(np.float32), shape
                )
                for f in (np.float32(0.5), np.float32(1.5))
            ]
        flat = alone & (ends[0] == ends[1])
        live[flat], value[flat] = False, ends[0][flat]
        if flat.any():
            return float(-np.broadcast_to(c.value, shape)[flat].max()) / 2
    return math.inf


def _hidden(op: str, cells: Sequence[Cells], roots: Sequence[Hider | None]) -> tuple[float, frozenset[Hider]]:
    """As low as data may put cells, and which."""
    hiders = frozenset().union(*(c.hiders for c in cells))
    if op == "Mul":
        if any(c.normalised for c in cells):  # what the factor is false of is zero now
            hiders -= {(r[0], not r[1]) for r, c in zip(roots, cells, strict=True) if r and not c.normalised}
        elif _times(cells, -1):  # a mask that is data, about to be added to the scores
            return -math.inf, hiders | {("", True)}
    if (op == "Sub" and cells[1].lifted) or (op == "Neg" and cells[0].lifted):
        return -math.inf, hiders | {("", True)}
    sinks = [c.sink for c in cells]
    return (sum(sinks) if op in ("Add", "Sum") else min(sinks) if op != "Mul" or not min(sinks) else -math.inf), hiders


def _times(cells: Sequence[Cells], sign: int) -> bool:
    """Data times a number so large, or so low, that it hides."""
    return any(
        bool((x.live & ~y.live & (sign * y.value >= ADDED) & np.isfinite(y.value)).any())
        for x in cells
        for y in cells
        if x is not y
    )


def _doubt(op: str, cells: Sequence[Cells]) -> Array | None:
    found = None
    for c in cells:
        if c.doubtful is None:
            continue
        own = c.doubtful
        if op == "Mul":
            for o in cells:
                own = own & ~(~o.live & (o.value == 0)) if o is not c else own
        found = own if found is None else found | own
    return found


def _either(found: Sequence[Array | None]) -> Array | None:
    arrays = [a for a in found if a is not None]
    return np.logical_or.reduce(np.broadcast_arrays(*arrays)) if arrays else None


def _law(op: str, c: Cells) -> tuple[Array, Array]:
    """Where a constant decides the result whatever the other operand is, and what it is then."""
    law = traits(op).law
    with np.errstate(invalid="ignore"):
        if law == "zero":
            return c.value == 0, np.zeros_like(c.value)
        if law == "one":
            return c.value != 0, np.ones_like(c.value)
        if law == "low":
            return np.isneginf(c.value), c.value
    return np.zeros(c.value.shape, bool), c.value


def _where(condition: Cells, x: Cells, y: Cells, root: Hider) -> Cells:
    shape = np.broadcast_shapes(condition.live.shape, x.live.shape, y.live.shape)
    c, cl = (np.broadcast_to(a, shape) for a in (condition.value != 0, condition.live))
    xv, xl, yv, yl = (np.broadcast_to(a, shape) for a in (x.value, x.live, y.value, y.live))
    same = ~xl & ~yl & ((xv == yv) | ((xv <= -FILLED) & (yv <= -FILLED)))
    live = np.where(cl, ~same, np.where(c, xl, yl))
    weighed, across = (_either([getattr(v, w) for v in (condition, x, y)]) for w in ("weighed", "across"))
    hiders = condition.hiders | x.hiders | y.hiders
    sink = min(condition.sink, x.sink, y.sink)
    for v, alive, truth in ((xv, xl, root[1]), (yv, yl, not root[1])):
        hides = cl & ~same & (v <= -FILLED)
        if hides.any():
            sink, hiders = min(sink, float(v[hides].min())), hiders | {(root[0], truth)}
        if (x.normalised or y.normalised) and bool((cl & ~alive & (v == 0)).any()):
            hiders -= {(root[0], truth)}
    doubts = [np.broadcast_to(False if v.doubtful is None else v.doubtful, shape) for v in (x, y)]
    doubtful = np.where(cl, doubts[0] | doubts[1], np.where(c, *doubts))
    none = all(v.doubtful is None for v in (x, y))
    value = np.where(cl, np.maximum(xv, yv), np.where(c, xv, yv))
    margin = min(condition.margin, x.margin, y.margin)
    return Cells(live, value, weighed, across, sink, hiders, None if none else doubtful, margin)


def softmax(c: Cells, axis: int, log: bool = False) -> Cells:
    """Along rows (axis 0) or cols (axis 1): what lies far below the best of its row gets no weight at all."""
    shown = np.where(c.live, 0.0, c.value)
    any_live = c.live.any(axis, keepdims=True)
    with np.errstate(all="ignore"):
        alone = shown - shown.max(axis, keepdims=True)
        total = np.exp(alone).sum(axis, keepdims=True)
        alone = alone - np.log(total) if log else np.exp(alone) / total
        best = np.where(np.isnan(c.value), -np.inf, c.value).max(axis, keepdims=True)
        low = (c.value <= best - np.where(c.live, ADDED, FILLED)) & any_live
        finite = low & np.isfinite(c.value)
    margin, hiders, doubtful = c.margin, c.hiders, c.doubtful
    if finite.any():
        margin = min(margin, float((best - c.value)[finite].min()))
        if c.sink <= -FILLED and bool((finite & (c.value >= c.sink - FILLED)).any()):
            doubtful = finite if doubtful is None else doubtful | finite
    if doubtful is None:
        hiders = frozenset()
    live = any_live & ~low
    looked = _either([c.weighed if axis else c.across, live])
    weighed, across = (looked, c.across) if axis else (c.weighed, looked)
    if log:
        with np.errstate(invalid="ignore"):
            live = any_live & (c.live | ~np.isneginf(c.value))
            value = np.where(any_live, c.value - best, alone)
    else:
        value = np.where(any_live, 0.0, alone)
    return Cells(live, value, weighed, across, 0.0, hiders, doubtful, margin)
