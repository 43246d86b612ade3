"""Entries of known values at other places: carried along as few numbers, cut, looked up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pulsify.analysis.values.follow import FEW, Few, Fixed, Follower, Value
from pulsify.core.facet import Facet
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import affine_products as products
from pulsify.lengths.affine_array import FAR, ORIGIN, Spread, T, pair
from pulsify.lengths.indexing import placed
from pulsify.lengths.series import Series, Unsure
from pulsify.lengths.sizes import alike, bounds
from pulsify.trace.traced import known

COLUMNS = Facet[Callable[[Node, int], tuple[str, ...] | None]](
    "columns", "which values stand side by side on its last axis, of so many"
)


def carried(f: Follower, node: Node, value: Few, others: Sequence[Value | None]) -> list[Value]:
    """An operator that only moves entries about, on few numbers: it is run on their places."""
    places = np.arange(value.cells.size).reshape(value.dims)
    inputs = [known(places), *(None if v is None else known(f.fixed(v)) for v in others)]
    flat = value.cells.reshape(-1)
    out: list[Value] = []
    for moved in f.evaluator.run(node, inputs):
        cells = np.empty(moved.shape, object)
        for i in np.ndindex(moved.shape):
            cells[i] = flat[int(moved[i])]
        out.append(Few(cells, value.floating))
    return out


def few_moved(f: Follower, node: Node, ins: Sequence[Value | None]) -> list[Value] | None:
    """The outputs of an operator that moves entries about, if these are few numbers, and where to is fixed."""
    if isinstance(ins[0], Few) and all(v is None or isinstance(v, Fixed) for v in ins[1:]):
        return carried(f, node, ins[0], ins[1:])
    return None


def numbers_in(f: Follower, value: Value | None, what: str = "a size") -> list[Series]:
    """A shape, or places, given as a value: one number an entry."""
    cells = f.few(value).reshape(-1)
    if not all(isinstance(c, Series) for c in cells):
        raise Unsure(f"{what} is no linear function of the length")
    return list(cells)


def axes_of(f: Follower, node: Node, ins: Sequence[Value | None], rank: int, more: bool = False) -> set[int]:
    """The axes that a node names in its attribute or its second input; more: these come on top of the rank."""
    named = node.attr("axes")
    if named is None and len(ins) > 1 and ins[1] is not None:
        named = [int(a) for a in f.fixed(ins[1]).reshape(-1)]
    axes = named or []
    return {a % (rank + len(axes) if more else rank) for a in axes}


def numbers_of(f: Follower, node: Node, value: Spread) -> Value:
    """A value without a time axis is a few numbers, if it can be evaluated at all lengths it takes to know it."""
    if value.times or not all(s.constant for s in value.sizes):
        return value
    if math.prod(int(s.item) for s in value.sizes) > FEW:
        return value
    try:
        return f.count(node.outputs[0], value)
    except Unsure:
        return value


def sliced(f: Follower, value: Value, axis: int, start: Series, stop: Series, step: int) -> Value:
    """Entries from one place to another, along an axis."""
    v = f.spread(value)
    axis %= v.rank
    first, count = bounds(start, stop, step, v.sizes[axis])
    sizes = (*v.sizes[:axis], count, *v.sizes[axis + 1 :])
    if alike(count, v.sizes[axis]) and step == 1:
        return v
    if v.lo == v.hi and not v.slope and v.drift.none:  # one number throughout, wherever it is cut
        limit = min(v.limit, first.limit, count.limit)
        return replace(v, sizes=sizes, near={}, uses=frozenset(), period=1, limit=limit)
    if first.constant and count.constant and axis not in v.times and axis not in v.uses:
        limit = min(v.limit, first.limit, count.limit)  # the same entries at every length, of an axis that has no say
        return replace(v, sizes=sizes, limit=limit)
    place = replace(f.spread(Few(np.array(first, object))), limit=min(first.limit, count.limit))
    single = not count.growth and count.values.max() <= 1
    own = {} if single else {axis: Fraction(step)}
    places = replace(place, sizes=sizes, slope={**place.slope, **own}, uses=place.uses | ({axis} if own else set()))
    if own and not count.growth and count.period == 1 and not count.constant:  # fewer, if there are no more
        places = many.bounded(places, [axis])
    return taken(f, value, v, axis, places, {c: c for c in range(v.rank) if c != axis})


def taken(
    f: Follower, value: Value, v: Spread, axis: int, places: Spread, to: dict[int, int], wraps: bool = False
) -> Spread:
    """Entries of a value along an axis at certain places; wraps: negative ones count from the end."""
    if axis in v.times:
        return placed(v, axis, places, to, wraps and many.lowest(places) < 0)
    if (
        isinstance(value, Fixed)
        and (line := _line(value, v.sizes[axis])) is not None
        and places.slope
        and places.range[0] >= 0
    ):
        return _counted(v, axis, places, *line)
    if isinstance(value, Fixed) or axis not in v.uses:
        return _from_table(v, axis, places, to)
    raise Unsure("an axis along which it changes is looked up in a table")


def _counted(v: Spread, axis: int, places: Spread, first: float, step: Fraction) -> Spread:
    """Positions kept as a table: they are what they count."""
    counted = products.scaled(places, step)
    steep = sum(float(abs(q)) for q in many.streamwise(places).values())
    until = int((float(v.sizes[axis].item) - many.most(places)) / steep)
    lo, hi = counted.lo + first, counted.hi + first
    line = replace(counted, lo=lo, hi=hi, floating=v.floating, drift=v.drift, until=min(places.until, until))
    return many.rounded(replace(line, grain=Fraction(1)))


def _from_table(v: Spread, axis: int, places: Spread, to: dict[int, int]) -> Spread:
    """A table ends, and what points outside does not run."""
    rows = float(v.sizes[axis].item)
    try:
        near = many.plane(places, rows + many.most(places))
    except Unsure:
        near = {pair(ORIGIN, c): FAR for c in places.slope}
    looked = replace(
        many.with_near(places, near), slope={}, lo=v.lo, hi=v.hi, floating=v.floating, drift=v.drift, grain=v.step,
        least=v.least, final=None, hide=None, rises=False,
    )  # fmt: skip
    rest = replace(v, sizes=places.sizes, slope={}, near={}, uses=frozenset())
    moved = {(to[c] if c >= 0 else c): q for c, q in v.slope.items()}
    near_too = {pair(*(to[c] if c >= 0 else c for c in k)): g for k, g in v.near.items()}
    uses = frozenset(to[c] if c >= 0 else c for c in v.uses)
    return many.joint(
        places.sizes, replace(rest, near=near_too, uses=uses), looked, slope=moved, lo=v.lo, hi=v.hi,
        floating=v.floating, grain=v.step, least=v.least,
    )  # fmt: skip


def _line(value: Fixed, size: Series) -> tuple[float, Fraction] | None:
    """First entry and step of a table that counts evenly along an axis of this size, and has no other."""
    if math.prod(value.dims) != size.item or size.item < 3:
        return None
    rows = value.array().reshape(-1)
    if rows.dtype.kind not in "iuf" or not np.isfinite(rows).all():
        return None
    steps = np.diff(rows.astype(np.float64))
    even = (steps == steps[0]).all() and steps[0] == round(steps[0]) and float(rows[0]) == round(float(rows[0]))
    return (float(rows[0]), Fraction(int(steps[0]))) if even else None


def anything(v: Spread) -> Spread:
    """Of these entries the sizes are known, and that they never repeat."""
    places = [ORIGIN, T, *v.times]
    near = {pair(a, b): FAR for n, a in enumerate(places) for b in places[n + 1 :]}
    return Spread(v.sizes, lo=-FAR, hi=FAR, near=near, uses=frozenset(places[1:]), floating=v.floating, until=v.until)
