"""Rows of a known value at a place that moves with the length: are they the same at every length?

A table of relative positions has its middle further on the longer the stream is, and what stands there is the same:

    T = 3      g(2) g(1) [g(0)] g(-1) g(-2)               the place is T - 1, the row is what T - 1 - place says
    T = 4      g(3) g(2) g(1) [g(0)] g(-1) g(-2) g(-3)

Where a value is a line of length and place, that shows in its slope. Anything made of it row by row is then the same
too, so the walk goes from the table back to such lines, to constants, and to tables that are cut at a moving place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pulsify.convert.known import series as one
from pulsify.convert.known.follow import Few, Fixed, Follower, Value
from pulsify.convert.known.moves import bounds
from pulsify.convert.known.series import LONGEST, Series, Unsure, constant
from pulsify.convert.known.spread import ORIGIN, Spread, T
from pulsify.convert.known.sums import labels
from pulsify.core.traits import ELEMENTWISE

if TYPE_CHECKING:
    from pulsify.frontend.model import Node


@dataclass(frozen=True)
class Settles:
    """Past `until` frames it only depends on the length modulo `period`; certain for streams up to `limit` frames."""

    until: int = 0
    period: int = 1
    limit: int = LONGEST

    def __or__(self, other: Settles) -> Settles:
        period = math.lcm(self.period, other.period)
        return Settles(max(self.until, other.until), period, min(self.limit, other.limit))


def pinned(f: Follower, name: str, axis: int | None, at: Series) -> Settles:
    """When do the entries of a known value at place `at` of an axis (or all, if None) stay the same? Unsure if never.

    at.longest: no stream is longer, so nothing has to hold further out.
    """
    key = name, axis, at.values.tobytes(), at.horizon, at.growth, at.longest
    if key not in f.pinned:  # layers share tables
        f.pinned[key] = _pinned(f, name, axis, at)
    return f.pinned[key]


def _pinned(f: Follower, name: str, axis: int | None, at: Series) -> Settles:
    try:
        if (found := _seen(f.value(name), axis, at)) is not None:
            return found
    except Unsure:
        pass  # what it is made of may tell
    node = f.model.producers.get(name)
    rule = None if node is None else _BACK.get(node.op)
    if node is None or rule is None:
        raise Unsure(f"rows of '{name}' cannot be followed as the stream gets longer")
    return rule(f, node, axis, at)


def _seen(value: Value, axis: int | None, at: Series) -> Settles | None:
    """Where the value itself says so; None if it takes a look at what it is made of."""
    if isinstance(value, Fixed):
        if axis is None or value.dims[axis] == 1:
            return Settles(limit=value.limit)
        found = _stands(at)
        return found if found is None else found | Settles(limit=value.limit)
    if isinstance(value, Few):
        cells = np.take(value.cells, [0], axis) if axis is not None and value.dims[axis] == 1 else value.cells
        if not all(isinstance(c, Series) and not c.growth for c in cells.flat):
            return None
        out = Settles() if axis is None else _settles(at)
        for c in cells.flat:
            out |= _settles(c)
        return out if axis is None or not at.growth else None
    return _on_line(value, axis, at)


def _stands(at: Series) -> Settles | None:
    """From where on it is one number, as long as streams get."""
    if not at.growth:
        return _settles(at)
    count = at.longest // at.unit
    if count > one.MOST:
        return None
    changes = np.flatnonzero(np.diff(at.look(count)))
    return Settles(int(changes[-1] + 2) * at.unit if changes.size else 0)


def _settles(s: Series) -> Settles:
    return Settles(s.settled if s.horizon else 0, s.repeats, s.certain)


def _on_line(v: Spread, axis: int | None, at: Series) -> Settles | None:
    if axis is not None and v.sizes[axis].constant and v.sizes[axis].item == 1:
        axis = None
    if (v.uses | set(v.slope)) - {T, axis}:
        return None
    rate = at.rate if axis is not None else Fraction(0)
    if v.slope.get(T, Fraction(0)) + (v.slope.get(axis, Fraction(0)) * rate if axis is not None else 0):
        return None
    moves = rate / v.rate(axis) if axis is not None else Fraction(0)  # frames of the stream by frame of the stream
    off = _off(at) / float(v.rate(axis)) if axis is not None else 0.0
    until = 0.0
    for (a, b), g in v.near.items():
        apart = {ORIGIN: Fraction(0), T: Fraction(1)}
        grows = abs(apart.get(a, moves) - apart.get(b, moves))
        if not grows:
            continue
        if not math.isfinite(g):
            return None
        until = max(until, (g + off) / float(grows))
    own = Settles(math.ceil(until), v.period, v.certain)
    return own | _settles(at) if axis is not None else own


def _off(at: Series) -> float:
    """How far it is from the line through the origin that it goes along with."""
    line = float(at.rate) * at.unit * np.arange(1, len(at.values) + 1)
    return float(np.abs(at.values - line).max())


# ---- one operator back

Back = Callable[[Follower, "Node", int | None, Series], Settles]


def _all(f: Follower, node: Node, at: Series, axes: Mapping[int, int | None]) -> Settles:
    """The rows are made of these rows of the inputs, and of nothing else."""
    out = Settles()
    for i, axis in axes.items():
        if node.inputs[i]:
            out |= pinned(f, node.inputs[i], axis, at)
    return out


def _rank(f: Follower, name: str) -> int:
    return len(f.first(name).dims)


def _entrywise(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    own, axes = _rank(f, node.outputs[0]), dict[int, int | None]()
    for i, name in enumerate(node.inputs):
        if not name:
            continue
        shifted = None if axis is None else axis - own + _rank(f, name)
        axes[i] = None if shifted is None or shifted < 0 or f.first(name).dims[shifted] == 1 else shifted
    return _all(f, node, at, axes)


def _shaped(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    """The input's axis that goes on as this one: as long, with as much before it."""
    if axis is None:
        return _all(f, node, at, {0: None})
    before = f.sizes_of(node.outputs[0])
    ahead = math.prod(int(s.item) if s.constant else 0 for s in before[:axis])
    count = 1
    for i, size in enumerate(f.sizes_of(node.inputs[0])):
        alike = count == ahead and size.constant == before[axis].constant
        if alike and (longest := _equal(size, before[axis], at.longest)):
            return _all(f, node, replace(at, longest=longest), {0: i})
        count *= int(size.item) if size.constant else 0
    raise Unsure("rows are cut or joined")


def _equal(a: Series, b: Series, longest: int) -> int:
    """The longest stream up to which two sizes are equal: past it a table has ended, and batch finds no shape."""
    off = one.subtract(a, b)
    if off.constant:
        return 0 if off.item else longest
    differ = np.flatnonzero(off.look(min(off.horizon + 1, longest // a.unit)))
    return min(int(differ[0]) * a.unit if differ.size else 0, longest)


def _transposed(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    rank = _rank(f, node.inputs[0])
    order = node.attr("perm") or tuple(reversed(range(rank)))
    return _all(f, node, at, {0: None if axis is None else order[axis]})


def _multiplied(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    if axis is None:
        raise Unsure("rows are summed over")
    own = _rank(f, node.outputs[0])
    left, right = (_rank(f, n) for n in node.inputs[:2])
    if min(left, right) < 2:
        raise Unsure("rows are multiplied in a way that is not followed")
    if axis < own - 2:
        return _entrywise(f, node, axis, at)  # one product for every row
    return _all(f, node, at, {0: left - 2, 1: None} if axis == own - 2 else {0: None, 1: right - 1})


def _gemm(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    if axis != 0 or node.attr("transA", 0):
        raise Unsure("rows are multiplied in a way that is not followed")
    whole = dict.fromkeys(range(1, len(node.inputs)))
    return _all(f, node, at, {0: 0, **whole})


def _einsum(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    letters, out = labels(node)
    axes = {i: own.index(out[axis]) if axis is not None and out[axis] in own else None for i, own in enumerate(letters)}
    return _all(f, node, at, axes)


def _joined(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    if axis is None or node.attr("axis", 0) % _rank(f, node.outputs[0]) == axis:
        raise Unsure("rows are joined to others")
    return _all(f, node, at, dict.fromkeys(range(len(node.inputs)), axis))


def _sliced(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    given = [f.few(f.value(n)).reshape(-1) if n else None for n in node.inputs[1:]]
    starts, rank = given[0], _rank(f, node.inputs[0])
    assert starts is not None
    unit = at.unit
    axes = [int(a.item) % rank for a in given[2]] if len(given) > 2 and given[2] is not None else range(len(starts))
    steps = given[3] if len(given) > 3 and given[3] is not None else [constant(1, unit)] * len(starts)
    for start, on, step in zip(starts, axes, steps, strict=True):
        if on != axis:
            if not (start.constant and step.constant):
                raise Unsure("it is cut at changing places")
            continue
        if not (step.constant and step.item == 1):
            raise Unsure("rows are skipped")
        first, _ = bounds(start, start, 1, f.sizes_of(node.inputs[0])[on])
        at = replace(one.add(at, first), longest=at.longest)
    return _all(f, node, at, {0: axis})


def _gathered(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    on = node.attr("axis", 0) % _rank(f, node.inputs[0])
    ranks = _rank(f, node.inputs[1])
    if axis is None or axis < on:
        return _all(f, node, at, {0: axis, 1: None})
    if axis >= on + ranks:
        return _all(f, node, at, {0: axis - ranks + 1, 1: None})
    return pinned(f, node.inputs[1], axis - on, at) | _whole(f, node.inputs[0])


def _gathered_nd(f: Follower, node: Node, axis: int | None, at: Series) -> Settles:
    if axis is None or axis >= _rank(f, node.inputs[1]) - 1 or node.attr("batch_dims", 0):
        raise Unsure("rows are looked up in a way that is not followed")
    return pinned(f, node.inputs[1], axis, at) | _whole(f, node.inputs[0])


def _whole(f: Follower, name: str) -> Settles:
    """All of it is the same."""
    if not isinstance(f.value(name), Fixed):
        raise Unsure("the table itself changes with the length")
    return Settles()


_BACK: dict[str, Back] = {
    **dict.fromkeys(ELEMENTWISE, _entrywise),  # entry by entry, so row by row
    **dict.fromkeys(("Unsqueeze", "Squeeze", "Reshape", "Flatten"), _shaped),
    "Transpose": _transposed,
    "MatMul": _multiplied,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Concat": _joined,
    "Slice": _sliced,
    "Gather": _gathered,
    "GatherND": _gathered_nd,
}
