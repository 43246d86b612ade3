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
from typing import Literal

import numpy as np

from pulsify.core.facet import Facet
from pulsify.core.traits import Traits, traits
from pulsify.trace.traced import Array

ADDED = 5000.0  # data must lie so far below the best of a row to have no weight: a bias may fall off with the distance
FILLED = 500.0  # and constants so far: exp(-500) is nothing beside any score in use
Hider = tuple[str, bool]  # a value that depends on data, and which truth of it hides cells


@dataclass(frozen=True)
class CellLaw:
    """What an operator does to cells.

    kind: of cells (i, j) of its inputs, entry by entry, it makes cell (i, j); or it chooses one of them; it moves the
    cells of its first input elsewhere; it joins heads, mixes them, or adds them up by weights; it normalises rows or
    columns.
    """

    kind: Literal["entries", "chooses", "moves", "joins", "mixes", "weighs", "normalises"]
    same: bool = False  # cells are of the same data as before, changed in no way but the type
    negates: bool = False
    inverts: bool = False  # what was true is false
    keeps_offset: bool = False  # what was added to data is still added to what comes out
    sums: bool = False  # its operands are added up
    scales: bool = False  # by each other
    divides: bool = False  # by the second
    levels: bool = False  # monotone, and level far down: what is that low is no data any more
    of_alike: Callable[[Array, int], Array] | None = None  # what mixing makes of so many heads alike
    logarithm: bool = False  # of what it normalises


def _by_traits(t: Traits) -> CellLaw | None:
    if t.elementwise:
        return CellLaw("entries")
    return CellLaw("moves", same=t.copies) if t.keeps_cells else None


CELLS = Facet[CellLaw]("cells", "what it does to the cells of a mask", default=_by_traits)


@dataclass(frozen=True, eq=False)
class Cells:
    """live: depends on data. Elsewhere `value` is the constant. Both [rows, cols], or [rows, 1], [1, cols], [1, 1].

    value, where live: what was added to the data; NaN if unknown.
    weighed: cells that a softmax along the cols has looked at; they are needed even if a later mask hides them.
    across: the same along the rows.
    sink: as low as data may put cells by hiding them; 0 if they do not.
    hiders: what hides them so, or hides whole rows of a softmax, which are NaN then.
    doubtful: cells a softmax gives weight to if data hide all others of a row.
    margin: scores that differ by less than this do what is said here.
    hidden: cells that data may hide; None: no cell is.
    above: the largest live cell of a row is greater than this.
    """

    live: Array
    value: Array
    weighed: Array | None = None
    across: Array | None = None
    sink: float = 0.0
    hiders: frozenset[Hider] = frozenset()
    doubtful: Array | None = None
    margin: float = math.inf
    hidden: Array | None = None
    above: float = -math.inf

    @property
    def needed(self) -> Array:
        """Cells that take part in a sum, or in the weights of a row that does."""
        summed = self.live | (self.value != 0)
        none = ~self.live & np.isnan(self.value)
        if none.any():  # in a row of nothing else it is what every cell is; beside data it spoils all of them
            summed = summed & ~(none & ~self.live.any(1, keepdims=True))
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
        weighed, across, doubtful, hidden = (
            None if a is None else a.T for a in (self.across, self.weighed, self.doubtful, self.hidden)
        )
        return replace(
            self, live=self.live.T, value=self.value.T, weighed=weighed, across=across, doubtful=doubtful,
            hidden=hidden, above=-math.inf,
        )  # fmt: skip

    def spread(self, shape: tuple[int, ...]) -> Cells:
        """All cells, one by one."""
        live, value = np.broadcast_to(self.live, shape), np.broadcast_to(self.value, shape)
        return replace(self, live=live, value=value)


def data() -> Cells:
    """A value that depends on data in every cell."""
    return Cells(np.ones((1, 1), bool), np.zeros((1, 1), np.float32))


def hiding(name: str) -> Cells:
    """Data that hide cells they are added to, wherever they like."""
    return Cells(
        np.ones((1, 1), bool), np.full((1, 1), np.nan, np.float32), sink=-math.inf, hiders=frozenset({(name, True)}),
        hidden=np.ones((1, 1), bool),
    )  # fmt: skip


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
    roots, law = roots or [None] * len(cells), CELLS.named(op) or CellLaw("entries")
    if law.kind == "chooses":
        return _where(cells[0], cells[1], cells[2], roots[0] or ("", True))
    shape = np.broadcast_shapes(*(c.live.shape for c in cells))
    lives = [np.broadcast_to(c.live, shape) for c in cells]
    live = np.logical_or.reduce(lives).copy()
    with np.errstate(all="ignore"):
        value = np.broadcast_to(np.asarray(compute([c.value for c in cells]), np.float32), shape).copy()
    margin = min(c.margin for c in cells)
    if live.any():
        _offsets(law, cells, live, value)
        margin = min(margin, _level(cells, shape, live, value, compute)) if law.levels else margin
    for n, c in enumerate(cells):
        wins, result = _decided(op, c, first=n == 0)
        fixed = np.broadcast_to(~c.live & wins, shape) & live
        live[fixed] = False
        value[fixed] = np.broadcast_to(result, shape)[fixed]
    sink, hiders = _hidden(law, cells, roots)
    weighed, across = (_either([getattr(c, w) for c in cells]) for w in ("weighed", "across"))
    hidden = _either([*(c.hidden for c in cells), *_scaled(law, cells)])
    above = cells[0].above if law.same else -math.inf
    return Cells(live, value, weighed, across, sink, hiders, _doubt(law, cells), margin, hidden, above)


def _offsets(law: CellLaw, cells: Sequence[Cells], live: Array, value: Array) -> None:
    """What was added to live cells, as far as that can be told: lines keep it."""
    for large in _scaled(law, cells):
        value[np.broadcast_to(large, live.shape)] = np.nan
    several = (law.scales or law.divides) and sum(bool(c.live.any()) for c in cells) > 1
    divides = law.divides and bool(cells[1].live.any())
    if law.keeps_offset and not several and not divides:
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


def _hidden(law: CellLaw, cells: Sequence[Cells], roots: Sequence[Hider | None]) -> tuple[float, frozenset[Hider]]:
    """As low as data may put cells, and which."""
    hiders = frozenset().union(*(c.hiders for c in cells))
    if law.scales:
        if any(c.normalised for c in cells):  # what the factor is false of is zero now
            hiders -= {(r[0], not r[1]) for r, c in zip(roots, cells, strict=True) if r and not c.normalised}
        elif any(bool(a.any()) for a in _scaled(law, cells)):  # a mask that is data, about to be added to the scores
            return -math.inf, hiders | {("", True)}
    sinks = [c.sink for c in cells]
    return (sum(sinks) if law.sums else min(sinks) if not law.scales or not min(sinks) else -math.inf), hiders


def _scaled(law: CellLaw, cells: Sequence[Cells]) -> list[Array]:
    """Data times a number so large that adding it hides: whatever else is added, where they are is unknown."""
    pairs = [(x, y) for x in cells for y in cells if x is not y] if law.scales else []
    return [x.live & ~y.live & (np.abs(y.value) >= ADDED) & np.isfinite(y.value) for x, y in pairs]


def _doubt(law: CellLaw, cells: Sequence[Cells]) -> Array | None:
    found = None
    for c in cells:
        if c.doubtful is None:
            continue
        own = c.doubtful
        if law.scales:
            for o in cells:
                own = own & ~(~o.live & (o.value == 0)) if o is not c else own
        found = own if found is None else found | own
    return found


def _either(found: Sequence[Array | None]) -> Array | None:
    arrays = [a for a in found if a is not None]
    return np.logical_or.reduce(np.broadcast_arrays(*arrays)) if arrays else None


def _decided(op: str, c: Cells, first: bool) -> tuple[Array, Array]:
    """Where a constant decides the result whatever the other operand is, and what it is then."""
    law = traits(op).law
    if not first and not traits(op).either:
        law = ""
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
    weighed, across = (_either([getattr(v, w) for v in (condition, x, y)]) for w in ("weighed", "across"))
    hiders = condition.hiders | x.hiders | y.hiders
    sink, margin = min(condition.sink, x.sink, y.sink), min(condition.margin, x.margin, y.margin)
    c, decided = condition.value != 0, not condition.live.any()

    def chosen(one: Array | None, other: Array | None) -> Array | None:
        """Of the branch that is taken; where data decide, of either."""
        if one is None and other is None:
            return None
        one, other = (np.zeros((1, 1), bool) if a is None else a for a in (one, other))
        known = np.where(c, one, other)
        return known if decided else np.where(condition.live, one | other, known)

    hidden, doubtful = chosen(x.hidden, y.hidden), chosen(x.doubtful, y.doubtful)
    live, value = (np.broadcast_to(np.where(c, *v), shape) for v in ((x.live, y.live), (x.value, y.value)))
    if decided:
        return Cells(live, value, weighed, across, sink, hiders, doubtful, margin, hidden)
    same = ~x.live & ~y.live & ((x.value == y.value) | ((x.value <= -FILLED) & (y.value <= -FILLED)))
    live = np.where(condition.live, ~same, live)
    for v, truth in ((x, root[1]), (y, not root[1])):
        hides = np.broadcast_to(condition.live & ~same & (v.value <= -FILLED), shape)
        if hides.any():
            lowest = float(np.broadcast_to(v.value, shape)[hides].min())
            sink, hiders, hidden = min(sink, lowest), hiders | {(root[0], truth)}, _either([hidden, hides])
        if (x.normalised or y.normalised) and bool((condition.live & ~v.live & (v.value == 0)).any()):
            hiders -= {(root[0], truth)}
    value = np.where(condition.live, _either_added(x.value, y.value), value)
    return Cells(live, value, weighed, across, sink, hiders, doubtful, margin, hidden)


def _either_added(x: Array, y: Array) -> Array:
    """What was added, where data choose: the larger, unless it lies so far above that the other would count as hidden.

    (What is low itself hides, and is kept as such.)
    """
    top, bottom = np.maximum(x, y), np.minimum(x, y)
    with np.errstate(invalid="ignore"):
        return np.where((top - bottom <= FILLED) | ((bottom <= -FILLED) & (top < FILLED)), top, np.float32(np.nan))


def softmax(c: Cells, axis: int, log: bool = False) -> Cells:
    """Along rows (axis 0) or cols (axis 1): what lies far below the best of its row gets no weight at all."""
    any_live: Array = np.asarray(c.live.any(axis, keepdims=True))
    with np.errstate(all="ignore"):
        unknown = np.isnan(c.value)
        best = (np.where(unknown, _unknown(c), c.value) if unknown.any() else c.value).max(axis, keepdims=True)
        low = np.where(c.live, c.value <= best - ADDED, c.value <= best - FILLED)
        low &= any_live
        finite = low & np.isfinite(c.value)
    margin, hiders, doubtful = c.margin, c.hiders, c.doubtful
    if finite.any():
        margin = min(margin, float(np.where(finite, best - c.value, np.inf).min()))
        unsure = finite & ~_seen_for_sure(c, low, axis)
        if c.sink <= -FILLED and bool((unsure & (c.value >= c.sink - FILLED)).any()):
            doubtful = unsure if doubtful is None else doubtful | unsure
    none = c.hidden is not None and bool((any_live & ~_seen_for_sure(c, low, axis)).any())  # NaN, if data hide all
    if doubtful is None and not none:
        hiders = frozenset()
    live = any_live & ~low
    looked = _either([c.weighed if axis else c.across, live])
    weighed, across = (looked, c.across) if axis else (c.weighed, looked)
    alone = _alone(c, axis, log, any_live)
    if log:
        with np.errstate(invalid="ignore"):
            live = any_live & (c.live | ~np.isneginf(c.value))
            value = np.where(any_live, c.value - best, alone)
    else:
        value = np.where(any_live, np.float32(0), alone)
    above = -math.inf if log or not axis else 0.0  # some weight is
    return Cells(live, value, weighed, across, 0.0, hiders, doubtful, margin, above=above)


def _alone(c: Cells, axis: int, log: bool, any_live: Array) -> Array:
    """What a softmax makes of rows that are constant."""
    if any_live.all():
        return np.zeros((1, 1), np.float32)
    shown = np.where(c.live, np.float32(0), c.value)
    with np.errstate(all="ignore"):
        out = shown - shown.max(axis, keepdims=True)
        total = np.exp(out).sum(axis, keepdims=True)
        return out - np.log(total) if log else np.exp(out) / total


def _unknown(c: Cells) -> Array:
    """How high cells may be if it is unknown what was added: those that data hide are scores where they do not."""
    return np.where(False if c.hidden is None else c.hidden, 0.0, -np.inf)


def _seen_for_sure(c: Cells, low: Array, axis: int) -> Array:
    """Rows with a cell that no data can hide."""
    sure = c.live & ~low
    return (sure if c.hidden is None else sure & ~c.hidden).any(axis, keepdims=True)


def joined(parts: Sequence[Cells]) -> Cells:
    """Heads put side by side, or mixed: a cell is constant only if it is alike in all of them, of data or not."""
    first, *others = parts
    out = first
    for c in others:
        with np.errstate(invalid="ignore"):
            near = np.abs(out.value - c.value) <= FILLED
            alike = (out.value == c.value) | (np.isnan(out.value) & np.isnan(c.value))
            top = np.where(alike | near, np.maximum(out.value, c.value), np.nan)
        either = [_either([getattr(x, what) for x in (out, c)]) for what in ("weighed", "across", "doubtful", "hidden")]
        weighed, across, doubtful, hidden = either
        out = Cells(
            out.live | c.live | ~alike, top, weighed, across, min(out.sink, c.sink), out.hiders | c.hiders, doubtful,
            min(out.margin, c.margin), hidden, min(out.above, c.above),
        )  # fmt: skip
    return out


def weighed_up(c: Cells) -> Cells:
    """Sums over heads with weights that are data. Where all heads are zero the sum is; elsewhere it is unknown."""
    nothing = ~c.live & (c.value == 0)
    value = np.where(nothing | (c.live & (c.value == 0)), 0, np.nan).astype(np.float32)
    return replace(c, live=~nothing, value=value, above=-math.inf)


def mixed(c: Cells, compute: Callable[[Array], Array], keeps: bool) -> Cells:
    """A reduction over heads, by what it makes of constants; keeps: what was added to data stays added."""
    with np.errstate(all="ignore"):
        value = np.where(c.live, c.value, compute(c.value))
    if not keeps:
        value = np.where(c.live & (c.value != 0), np.nan, value)
    return replace(c, value=value.astype(np.float32), above=-math.inf)
