"""Known values moved about: reshaped, cut, joined, looked up."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.analysis.values.extremes import always_below
from pulsify.analysis.values.follow import FEW, VALUES, Few, Fixed, Follower, Value
from pulsify.analysis.values.reshaping import alike, carried, floored
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import FAR, ORIGIN, Spread, T, pair
from pulsify.lengths.float_limits import OF_SIZE, Drift, step_of
from pulsify.lengths.indexing import moved_axes, placed
from pulsify.lengths.series import Series, Unsure, constant

Array = np.ndarray[Any, Any]


# ---- cutting and joining


@VALUES("Slice")
def cut(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if isinstance(ins[0], Few) and all(v is None or isinstance(v, Fixed) for v in ins[1:]):
        return carried(f, node, ins[0], ins[1:])
    starts, stops = (f.few(v).reshape(-1) for v in ins[1:3])
    axes, steps = (f.fixed(v).reshape(-1) if v is not None else None for v in [*ins[3:], None, None][:2])
    v: Value = ins[0]
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        axis, step = int(axes[i]) if axes is not None else i, int(steps[i]) if steps is not None else 1
        if not isinstance(start, Series) or not isinstance(stop, Series):
            raise Unsure("where it cuts is no linear function of the length")
        v = _cut(f, v, axis, start, stop, step)
    return v


def bounds(start: Series, stop: Series, step: int, size: Series) -> tuple[Series, Series]:
    """The first place of a slice, and how many there are: as Python's slices have it, but that backwards a start in
    front of the first entry is the first entry."""
    unit = size.unit
    zero = constant(0, unit)

    def anchored(x: Series, low: Series, high: Series) -> Series:
        below = one.compare(x, zero, np.less)
        from_end = one.add(x, size) if not (x.constant and abs(x.item) > one.LONGEST) else low
        chosen = from_end if below.constant and below.item else x
        if not below.constant:
            chosen = one.choose(below, from_end, x)
        return one.extreme(one.extreme(chosen, low, np.maximum), high, np.minimum)

    if step > 0:
        first, last = anchored(start, zero, size), anchored(stop, zero, size)
        span = one.subtract(last, first)
    else:
        end, least = one.add(size, constant(-1, unit)), constant(-1, unit)
        first, last = anchored(start, zero, end), anchored(stop, least, end)
        span = one.subtract(first, last)
    by = constant(abs(step), unit)
    count = one.negated(floored(one.negated(span), by)) if abs(step) > 1 else span
    return first, one.extreme(count, zero, np.maximum)


def _cut(f: Follower, value: Value, axis: int, start: Series, stop: Series, step: int) -> Value:
    v = f.spread(value)
    axis %= v.rank
    first, count = bounds(start, stop, step, v.sizes[axis])
    sizes = (*v.sizes[:axis], count, *v.sizes[axis + 1 :])
    if alike(count, v.sizes[axis]) and step == 1:
        return v
    if first.constant and count.constant and axis not in v.times and axis not in v.uses:
        limit = min(v.limit, first.limit, count.limit)  # the same entries at every length, of an axis that has no say
        return replace(v, sizes=sizes, limit=limit)
    place = replace(f.spread(Few(np.array(first, object))), limit=min(first.limit, count.limit))
    own = {} if count.constant and count.item == 1 else {axis: Fraction(step)}
    at = replace(place, sizes=sizes, slope={**place.slope, **own}, uses=place.uses | ({axis} if own else set()))
    return _taken(f, value, v, axis, at, {c: c for c in range(v.rank) if c != axis})


def _taken(
    f: Follower, value: Value, v: Spread, axis: int, at: Spread, to: dict[int, int], wraps: bool = False
) -> Spread:
    """Entries of a value along an axis at certain places; wraps: negative ones count from the end."""
    if axis in v.times:
        return placed(v, axis, at, to, wraps and many.lowest(at) < 0)
    if isinstance(value, Fixed) and (line := _line(value, axis)) is not None and at.slope and at.range[0] >= 0:
        first, step = line  # positions kept as a table: they are what they count
        counted = many.scaled(at, step)
        steep = sum(float(abs(q)) for q in many.streamwise(at).values())
        until = int((float(v.sizes[axis].item) - many.most(at)) / steep)
        lo, hi = counted.lo + first, counted.hi + first
        made = replace(counted, lo=lo, hi=hi, floating=v.floating, drift=v.drift, until=min(at.until, until))
        return many.rounded(replace(made, grain=Fraction(1)))
    if isinstance(value, Fixed) or axis not in v.uses:  # a table: it ends, and what points outside does not run
        rows = float(v.sizes[axis].item)
        try:
            near = many.plane(at, rows + many.most(at))
        except Unsure:
            near = {pair(ORIGIN, c): FAR for c in at.slope}
        looked = replace(
            many.with_near(at, near), slope={}, lo=v.lo, hi=v.hi, floating=v.floating, drift=v.drift, grain=v.step,
            least=v.least, final=None, hide=None, rises=False,
        )  # fmt: skip
        rest = replace(v, sizes=at.sizes, slope={}, near={}, uses=frozenset())
        moved = {(to[c] if c >= 0 else c): q for c, q in v.slope.items()}
        near_too = {pair(*(to[c] if c >= 0 else c for c in k)): g for k, g in v.near.items()}
        uses = frozenset(to[c] if c >= 0 else c for c in v.uses)
        return many.joint(
            at.sizes, replace(rest, near=near_too, uses=uses), looked, slope=moved, lo=v.lo, hi=v.hi,
            floating=v.floating, grain=v.step, least=v.least,
        )  # fmt: skip
    raise Unsure("an axis along which it changes is looked up in a table")


def _line(value: Fixed, axis: int) -> tuple[float, Fraction] | None:
    """First entry and step of a table that counts evenly along an axis, and has no other."""
    if math.prod(value.dims) != value.dims[axis] or value.dims[axis] < 3:
        return None
    rows = value.array().reshape(-1)
    if rows.dtype.kind not in "iuf" or not np.isfinite(rows).all():
        return None
    steps = np.diff(rows.astype(np.float64))
    even = (steps == steps[0]).all() and steps[0] == round(steps[0]) and float(rows[0]) == round(float(rows[0]))
    return (float(rows[0]), Fraction(int(steps[0]))) if even else None


@VALUES("Gather")
def gather(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    data, index = ins[0], ins[1]
    if isinstance(data, Few) and isinstance(index, Fixed) and math.prod(index.dims) <= FEW:
        return carried(f, node, data, [index])
    v = f.spread(data)
    axis = node.attr("axis", 0) % v.rank
    at, wraps = f.spread(index), True
    if isinstance(index, Fixed) and axis in v.times:
        array = index.array()
        if array.size and array.max() < 0:  # counted from the end
            size = f.spread(Few(np.array(v.sizes[axis], object)))
            at = many.summed(at.sizes, at, moved_axes(size, {}, at.sizes))
            wraps = False
        elif array.size and array.min() < 0:
            raise Unsure("it takes frames from both ends")
    sizes = (*v.sizes[:axis], *at.sizes, *v.sizes[axis + 1 :])
    placed = moved_axes(at, {c: c + axis for c in range(at.rank)}, sizes)
    to = {c: c if c < axis else c + at.rank - 1 for c in range(v.rank) if c != axis}
    made = _taken(f, data, v, axis, placed, to, wraps)
    return numbers_of(f, node, made)


def numbers_of(f: Follower, node: Node, made: Spread) -> Value:
    """A value without a time axis is a few numbers, if it can be evaluated at all lengths it takes to know it."""
    if made.times or not all(s.constant for s in made.sizes):
        return made
    if math.prod(int(s.item) for s in made.sizes) > FEW:
        return made
    try:
        return f.count(node.outputs[0], made)
    except Unsure:
        return made


@VALUES("GatherND")
def gather_nd(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    index = f.spread(ins[1])
    if (made := _same_entry(f, node, ins, index)) is not None:
        return made
    if node.attr("batch_dims", 0) or not index.sizes[-1].constant or index.sizes[-1].item != 1:
        raise Unsure("it picks single entries")
    v = f.spread(ins[0])
    if index.rank - 1 in index.uses:
        raise Unsure("it picks single entries")
    at = moved_axes(index, {c: c for c in range(index.rank - 1)}, (*index.sizes[:-1], *v.sizes[1:]))
    to = {c: c + index.rank - 2 for c in range(1, v.rank)}
    return numbers_of(f, node, _taken(f, ins[0], v, 0, at, to, wraps=True))


def _same_entry(f: Follower, node: Node, ins: list[Value], index: Spread) -> Spread | None:
    """Entries that are the same wherever they are picked from, at places that exist at every length."""
    v = f.spread(ins[0])
    if v.slope or v.uses or v.near or node.attr("batch_dims", 0) or not index.sizes[-1].constant:
        return None
    axes = int(index.sizes[-1].item)
    source = f.model.producers.get(node.inputs[1])
    joined = source is not None and source.op == "Concat" and source.attr("axis") % index.rank == index.rank - 1
    parts = [f.value(i) for i in source.inputs] if source is not None and joined else [ins[1]] * axes
    if len(parts) != axes:
        return None
    zero = constant(0, f.unit)
    for axis, part in enumerate(parts):
        moves = axis not in v.times and v.lo != v.hi and (f.spread(part).slope or f.spread(part).uses)
        inside = always_below(f, part, v.sizes[axis]) and always_below(f, zero, part, strictly=False)
        if moves or not inside:
            return None
    return replace(v, sizes=(*index.sizes[:-1], *v.sizes[axes:]), limit=min(v.limit, index.limit))


@VALUES("Concat")
def concat(f: Follower, node: Node, ins: list[Value]) -> Value:
    if sum(FEW + 1 if isinstance(v, Spread) else math.prod(v.dims) for v in ins) <= FEW:
        cells = np.concatenate([f.few(v) for v in ins], node.attr("axis"))
        return Few(cells, any(isinstance(c, Series) and c.floating for c in cells.flat))
    parts = [f.spread(v) for v in ins]
    axis = node.attr("axis") % parts[0].rank
    size = parts[0].sizes[axis]
    for p in parts[1:]:
        size = one.add(size, p.sizes[axis])
    sizes = tuple(size if a == axis else _widest([p.sizes[a] for p in parts]) for a in range(parts[0].rank))
    if size.constant:
        return _beside([replace(p, sizes=sizes) for p in parts], sizes)
    growing = [i for i, p in enumerate(parts) if axis in p.times]
    if len(growing) != 1:
        raise Unsure("it puts one stream behind another")
    at = growing[0]
    front = sum(int(p.sizes[axis].item) for p in parts[:at])
    behind = sum(int(p.sizes[axis].item) for p in parts[at + 1 :])
    others = [replace(p, sizes=sizes) for i, p in enumerate(parts) if i != at]
    return framed(parts[at], axis, sizes, front, behind, others)


def _widest(sizes: list[Series]) -> Series:
    return next((s for s in sizes if not s.constant), sizes[0])


def _beside(parts: list[Spread], sizes: tuple[Series, ...]) -> Spread:
    """Parts side by side on an axis that is no time axis."""
    if not all(many.same_slope(p, parts[0]) for p in parts):
        parts = [many.exactly(p) for p in parts]
    lo, hi, least = min(p.lo for p in parts), max(p.hi for p in parts), min(map(many.lowest, parts))
    floating = any(p.floating for p in parts)
    return many.joint(sizes, *parts, slope=dict(parts[0].slope), lo=lo, hi=hi, least=least, floating=floating)


def framed(main: Spread, axis: int, sizes: tuple[Series, ...], front: int, behind: int, others: list[Spread]) -> Spread:
    """A value over time with some frames more in front of it and behind it."""
    at = Spread(sizes, {axis: Fraction(1)}, -front, -front, uses=frozenset({axis}))
    moved = placed(main, axis, at, {c: c for c in range(main.rank) if c != axis})
    if others and moved.slope:
        moved, others = many.exactly(moved), [many.exactly(p) for p in others]
    beyond = many.ragged(sizes[axis])
    rate = float(sizes[axis].pace)
    ends = {pair(ORIGIN, axis): front / rate} if front else {}
    if behind:
        ends[pair(axis, T)] = behind / rate + beyond
    lo, hi = min([moved.lo, *(p.lo for p in others)]), max([moved.hi, *(p.hi for p in others)])
    least = min(map(many.lowest, [main, *others]))
    out = many.joint(sizes, moved, *others, slope=dict(moved.slope), lo=lo, hi=hi, least=least, floating=main.floating)
    uses = out.uses | ({axis} if front or behind else set()) | ({T} if behind else set())
    return replace(many.with_near(out, ends), uses=frozenset(uses))


@VALUES("Pad")
def pad(f: Follower, node: Node, ins: list[Value]) -> Value:
    v = f.spread(ins[0])
    pads = [int(p) for p in f.fixed(ins[1]).reshape(-1)]
    axes = [int(a) % v.rank for a in f.fixed(ins[3]).reshape(-1)] if len(ins) > 3 and ins[3] else list(range(v.rank))
    if str(node.attr("mode", "constant")) != "constant" or min(pads) < 0:
        raise Unsure("it is padded with entries of its own")
    fill = float(f.fixed(ins[2]).reshape(-1)[0]) if len(ins) > 2 and ins[2] is not None else 0.0
    n = len(axes)
    for i, axis in enumerate(axes):
        front, behind = pads[i], pads[i + n]
        if not front and not behind:
            continue
        sizes = list(v.sizes)
        sizes[axis] = one.add(sizes[axis], constant(front + behind, f.unit))
        other = Spread(tuple(sizes), lo=fill, hi=fill, floating=v.floating, drift=Drift(v.drift.digits))
        if axis in v.times:
            v = framed(v, axis, tuple(sizes), front, behind, [other])
        else:
            v = _beside([replace(v, sizes=tuple(sizes)), other], tuple(sizes))
    return v


@VALUES("Split")
def split(f: Follower, node: Node, ins: list[Value]) -> list[Value]:
    if isinstance(ins[0], Few) and all(v is None or isinstance(v, Fixed) for v in ins[1:]):
        return carried(f, node, ins[0], ins[1:])
    v = f.spread(ins[0])
    axis = node.attr("axis", 0) % v.rank
    if axis in v.times:
        raise Unsure("it is split along time")
    if len(ins) > 1 and ins[1] is not None:
        f.fixed(ins[1])
    return [
        replace(v, sizes=(*v.sizes[:axis], constant(f.first(o).dims[axis], f.unit), *v.sizes[axis + 1 :]))
        for o in node.outputs
    ]


# ---- looked up, marked, spread over


@VALUES("Trilu", "EyeLike")
def triangle(f: Follower, node: Node, ins: list[Value]) -> Value:
    v = f.spread(ins[0])
    given = f.fixed(ins[1]).reshape(-1) if len(ins) > 1 and ins[1] is not None else [node.attr("k", 0)]
    offset = int(given[0])
    rows, cols = v.rank - 2, v.rank - 1
    slope = {rows: Fraction(1), cols: Fraction(-1)}
    mask = many.decided(Spread(v.sizes, slope, offset, offset, uses=frozenset({rows, cols})))
    if node.op == "EyeLike":
        return mask
    zero = Spread(v.sizes)
    return many.chosen(v.sizes, mask, v, zero)


@VALUES("ScatterND", "ScatterElements")
def scattered(f: Follower, node: Node, ins: list[Value]) -> Value:
    """Single entries at places that go with the length; of other writes only the size is certain, not what it holds."""
    v = f.spread(ins[0])
    try:
        if node.op == "ScatterND" and str(node.attr("reduction", "none")) == "none" and len(v.times) == 1:
            return _written(f, v, v.times[0], f.few(ins[1]), f.spread(ins[2]))
    except Unsure:
        pass
    near = {pair(ORIGIN, c): FAR for c in (T, *v.times)}
    return Spread(v.sizes, lo=-FAR, hi=FAR, near=near, uses=frozenset({T, *v.times}), floating=v.floating)


def _written(f: Follower, v: Spread, axis: int, index: Array, updates: Spread) -> Spread:
    """A value with entries written where the rows of an index say: others where the frame is the one they name."""
    if axis >= index.shape[-1] or updates.times:
        raise Unsure("it writes along time")
    new = many.exactly(updates)
    entry = replace(new, sizes=v.sizes, uses=new.uses & {T})
    for place in {id(p): p for p in index.reshape(-1, index.shape[-1])[:, axis]}.values():
        if not isinstance(place, Series):
            raise Unsure("where it writes is no linear function of the length")
        below = one.compare(place, constant(0, f.unit), np.less)
        at = one.choose(below, one.add(place, v.sizes[axis]), place)  # negative ones count from the end
        line = f.spread(Few(np.array(at, object)))
        slope = {axis: Fraction(1), **{c: -q for c, q in line.slope.items()}}
        off = replace(line, sizes=v.sizes, slope=slope, lo=-line.hi, hi=-line.lo, uses=line.uses | {axis})
        v = many.chosen(v.sizes, many.decided(off), entry, v)
    return v


@VALUES("OneHot")
def one_hot(f: Follower, node: Node, ins: list[Value]) -> Value:
    index, depth, values = f.spread(ins[0]), int(f.fixed(ins[1]).reshape(-1)[0]), f.fixed(ins[2])
    axis = node.attr("axis", -1) % (index.rank + 1)
    sizes = (*index.sizes[:axis], constant(depth, f.unit), *index.sizes[axis:])
    v = moved_axes(index, {a: a if a < axis else a + 1 for a in range(index.rank)}, sizes)
    if v.floating:
        raise Unsure("it marks places that are floats")
    near, floating = many.plane(v, depth + many.most(v)), values.dtype.kind == "f"
    drift = Drift(OF_SIZE.get(values.dtype.itemsize, 24)) if floating else Drift()
    return replace(
        many.with_near(v, near), slope={}, lo=float(values.min()), hi=float(values.max()), floating=floating,
        drift=drift, grain=step_of(values) if floating else None, final=None, hide=None, rises=False, least=-FAR,
    )  # fmt: skip
