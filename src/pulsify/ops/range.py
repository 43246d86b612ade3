"""Range: positions, counted by the clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import sizes
from pulsify.analysis.rows.place import Place, Row, line
from pulsify.analysis.rows.reaches import ROW_READS
from pulsify.analysis.rows.wanted import Wanted
from pulsify.analysis.values.follow import FEW, LOOKS, VALUES, Few, Follower, Value, cells_of
from pulsify.analysis.values.moves import numbers_in
from pulsify.core.arrays import Array
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import affine_products as products
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import EXACT, FAR, ORIGIN, Spread, T, pair
from pulsify.lengths.float_limits import LONG, OF_SIZE, Drift, common, step_of
from pulsify.lengths.indexing import moved_axes
from pulsify.lengths.series import Series, TooFar, Unsure, constant
from pulsify.lengths.sizes import floored, product
from pulsify.ops.pointwise import static
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.known_facts import counter
from pulsify.plan.plan import Plan
from pulsify.trace.evaluate import DIGITS, MEASURE, SHAPED_BY, exact
from pulsify.trace.usage import ROLE, SIZED, Count, Derived, Extent, Role, Sized, Walk


@rule("Range", says="from a fixed start: the stream's own clock")
def range_(ctx: Context, node: Node) -> Plan | None:
    name = node.outputs[0]
    if not ctx.ask.time_axes(name):
        return static(ctx, node)
    start = fixed_value(ctx.ask, node, node.inputs[0], "start").reshape(-1)[0]
    step = fixed_value(ctx.ask, node, node.inputs[2], "step").reshape(-1)[0]
    if not all(float(v) * 1024 == int(float(v) * 1024) for v in (start, step)):
        ctx.ask.refuse(
            node,
            f"ONNX Runtime adds its step of {step} up, and rounds every time: no frame is start + k * step",
            "count in whole numbers, and multiply",
        )
    exact_up_to(ctx, name, start.item(), step.item())
    ctx.ask.facts[name] = counter(ctx, name, 0, start.item(), step.item())
    return None


def exact_up_to(ctx: Context, name: str, start: float, step: float) -> None:
    """Floats that are added up are exact as long as they are short enough: multiples of a power of two."""
    dtype = ctx.ask.dtype(name)
    if not dtype.is_floating_point() or not step:
        return
    digits = np.finfo(dtype.numpy()).nmant + 1
    unit = Fraction(1, max(Fraction(v).denominator for v in (start, step)))
    whole = [int(Fraction(v) / unit) for v in (start, step) if v]
    unit *= math.gcd(*whole) & -math.gcd(*whole)
    frames = (unit * 2**digits - abs(Fraction(start))) / abs(Fraction(step))
    rate = sizes(ctx.ask, ctx.ask.model.producers.get(name), name)[ctx.ask.time_axes(name)[0]].rate
    ctx.ask.ledger.up_to(max(int(frames / max(rate, Fraction(1))), 1), name)


@rule("ConstantOfShape", "Shape", "Size", "NonZero", "EyeLike", says="evaluated; never part of the stream's data")
def evaluated(ctx: Context, node: Node) -> Plan | None:
    if not ctx.ask.time_axes(node.outputs[0]) and not any(ctx.ask.wire(i) for i in node.inputs):
        return static(ctx, node)
    ctx.ask.refuse(
        node,
        "its value depends on the total length or on the data",
        "use a value that is known while streaming",
        kind=Kind.LENGTH,
    )


# ---- roles of inputs
SIZED.add(
    {
        "ConstantOfShape": Sized((0,), "new"),
        "Range": Sized((0, 1, 2), "new"),
        "Trilu": Sized((1,), "part"),
        "OneHot": Sized((1,), "other"),
    }
)


ROLE.add(dict.fromkeys(("Shape", "Size"), lambda walk, node, own: Count()))


@ROLE("NonZero")
def _listed(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    return own[0] if isinstance(own.get(0), Extent) else Derived()


# ---- at one length
SHAPED_BY.add(dict.fromkeys(("Range", "ConstantOfShape", "OneHot", "Compress"), "values"))


SHAPED_BY.add({"NonZero": "data", "Unique": "data"})


DIGITS.add(dict.fromkeys(("Shape", "Size", "NonZero"), exact))


@MEASURE("Shape")
def _sizes(node: Node, dims: tuple[int, ...]) -> Array:
    return np.array(dims[slice(node.attr("start", 0), node.attr("end", len(dims)))], np.int64)


@MEASURE("Size")
def _entries(_: Node, dims: tuple[int, ...]) -> Array:
    return np.array(math.prod(dims), np.int64)


TRIES = 64  # lengths at which a mask is looked at until the model takes one


# ---- values by length
@VALUES("Shape")
def shape_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    own = f.sizes_of(node.inputs[0])
    return _few(cells_of(own[slice(node.attr("start", 0), node.attr("end", len(own)))]))


@VALUES("Size")
def size_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    return _few(np.array(product(f.sizes_of(node.inputs[0]), f.unit), object))


def _few(cells: Array) -> Few:
    return Few(cells, any(isinstance(c, Series) and c.floating for c in cells.flat))


@VALUES("ConstantOfShape")
def filled_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    value = node.attr("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value.numpy())
    shape = tuple(numbers_in(f, ins[0]))
    number = float(array.reshape(-1)[0])
    if all(s.constant for s in shape) and math.prod(int(s.item) for s in shape) <= FEW:
        cells = np.empty([int(s.item) for s in shape], object)
        cells.fill(constant(array.reshape(-1)[0], f.unit))
        return Few(cells, array.dtype.kind == "f")
    if array.dtype.kind != "f" and abs(number) >= many.EXACT:
        return Spread(shape, lo=-FAR, hi=FAR)
    return Spread(shape, lo=number, hi=number, floating=array.dtype.kind == "f")


@VALUES("Range")
def range_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    start, limit, delta = (f.number(v) for v in ins)
    if not delta.constant or not delta.item:
        raise Unsure("its step changes with the length")
    span = one.subtract(limit, start)
    if span.floating or delta.floating:
        size = one.cast(one.whole(one.divide(span, delta), np.ceil), "i", 64)
    else:
        size = one.negated(floored(one.negated(span), delta))
    size = one.extreme(size, constant(0, f.unit), np.maximum)
    begin = f.spread(Few(np.array(start, object)))
    step = Fraction(delta.item)
    if size.constant and size.item <= FEW:
        cells = np.empty(int(size.item), object)
        for i in range(len(cells)):
            cells[i] = one.add(start, constant(i * delta.item, f.unit))
        return Few(cells, start.floating)
    slope = {0: step, **begin.slope}
    grain = common(begin.step, abs(step)) if start.floating else None
    line = replace(begin, sizes=(size,), slope=slope, uses=begin.uses | {0}, grain=grain, limit=span.limit)
    if not start.floating:
        return line
    counted = many.rounded(line)
    steps = replace(counted.drift, exact=counted.drift.fits, roundings=2, noise=math.inf)  # it is rounded at every step
    return counted if counted.drift.fits >= LONG else replace(counted, drift=steps)


@VALUES("Trilu", "EyeLike")
def triangle_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    v = f.spread(ins[0])
    diagonal = f.fixed(ins[1]).reshape(-1) if len(ins) > 1 and ins[1] is not None else [node.attr("k", 0)]
    offset = int(diagonal[0])
    rows, cols = v.rank - 2, v.rank - 1
    slope = {rows: Fraction(1), cols: Fraction(-1)}
    mask = many.decided(Spread(v.sizes, slope, offset, offset, uses=frozenset({rows, cols})))
    return mask if node.op == "EyeLike" else products.chosen(v.sizes, mask, v, Spread(v.sizes))


@VALUES("OneHot")
def one_hot_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    index, depth, values = f.spread(ins[0]), int(f.fixed(ins[1]).reshape(-1)[0]), f.fixed(ins[2])
    axis = node.attr("axis", -1) % (index.rank + 1)
    shape = (*index.sizes[:axis], constant(depth, f.unit), *index.sizes[axis:])
    v = moved_axes(index, {a: a if a < axis else a + 1 for a in range(index.rank)}, shape)
    if v.floating:
        raise Unsure("it marks places that are floats")
    near, floating = many.plane(v, depth + many.most(v)), values.dtype.kind == "f"
    drift = Drift(OF_SIZE.get(values.dtype.itemsize, 24)) if floating else Drift()
    return replace(
        many.with_near(v, near), slope={}, lo=float(values.min()), hi=float(values.max()), floating=floating,
        drift=drift, grain=step_of(values) if floating else None, final=None, hide=None, rises=False, least=-FAR,
    )  # fmt: skip


# ---- places that a mask keeps: all of them, or those of a pattern that repeats with the stream
#
# mask     1 0 1 0 0 | 1 0 1 0 0 | 1 ...        5 frames, 2 of them kept
# places   0   2       5   7       10           5/2 of its place, and a deviation that repeats
@VALUES("NonZero")
def kept_places(f: Follower, node: Node, ins: list[Value]) -> Value:
    v = f.spread(ins[0])
    if v.rank == 1 and not v.slope and v.lo == v.hi and v.lo and v.drift.none:
        shape = (constant(1, f.unit), v.sizes[0])
        return Spread(shape, {1: Fraction(1)}, uses=frozenset({1}), limit=v.limit, until=v.until)
    by_place = not v.slope and T not in v.uses and set(v.near) <= {pair(ORIGIN, T)}  # that is where its size settles
    plain = v.rank == 1 and not v.floating and by_place
    if not plain or v.sizes[0].growth <= 0:
        problem = Unsure("which entries are not zero changes with the length")
        problem.remedy = "take frames by a slice (x[:, ::3], x[:, 5:])"
        raise problem
    return _repeated(f, node, v)


def _repeated(f: Follower, node: Node, v: Spread) -> Spread:
    """Entry by entry a mask follows from its place in the period alone."""
    size = v.sizes[0]
    period = v.period * (v.period * size.rate).denominator
    pattern = _pattern(f, node, size, int(period * size.rate))
    kept = np.flatnonzero(pattern)
    if not kept.size:
        raise Unsure("it keeps no frame")
    slope = Fraction(len(pattern), len(kept))
    off = [int(place) - slope * n for n, place in enumerate(kept)]
    return replace(
        v, sizes=(constant(1, f.unit), _count(size, pattern)), slope={1: slope}, lo=float(min(off)),
        hi=float(max(off)), period=period, uses=frozenset({1}), final=None, hide=None, least=0.0, apart=0.0,
    )  # fmt: skip


def _pattern(f: Follower, node: Node, size: Series, entries: int) -> Array:
    """Which entries of a period are kept, read off a length that shows two."""
    first = math.ceil(2 * entries / size.rate / f.unit) + size.horizon
    if first + TRIES > LOOKS:
        raise TooFar(first)
    for n in range(first, first + TRIES):
        array = f.evaluated(node.inputs[0], n * f.unit)
        if array is not None and array.size >= 2 * entries:
            kept = array.reshape(-1)[: 2 * entries] != 0
            if not np.array_equal(kept[:entries], kept[entries:]):
                raise Unsure("which entries are not zero does not repeat")
            return kept[:entries]
    raise Unsure("it cannot be computed at lengths that show what repeats")


def _count(size: Series, pattern: Array) -> Series:
    """How many entries are kept of so many."""
    entries, times = len(pattern), len(pattern) // math.gcd(len(pattern), int(size.growth))
    seen = size.look(size.horizon + size.period * times)
    whole, rest = np.divmod(seen.astype(np.int64), entries)
    before = np.concatenate([[0], np.cumsum(pattern)])
    growth = Fraction(int(size.growth) * times // entries * int(before[-1]))
    return replace(size, values=whole * before[-1] + before[rest], growth=growth).reduced()


# ---- rows of known tables
@ROW_READS("Range")
def _counted(w: Wanted) -> Row:
    (start,), _, (step,) = (w.rows.numbers(i) for i in w.node.inputs)
    if any((n.values != np.round(n.values)).any() or n.growth.denominator != 1 for n in (start, step)):
        if start.constant and step.constant and (w.place is None or w.place.base.constant):
            return Row(w.rows.constant(0))
        raise Unsure("it counts in fractions, at rows that change with the length of the stream")
    by = w.rows.item(step, "its step changes with the length of the stream")
    begin = replace(start, values=start.values.astype(np.int64), drift=Drift())
    place = w.place
    if place is None:  # entries at the same places, whichever those are
        last = one.add(w.rows.sizes(w.name)[0], w.rows.constant(-1))
        place = Place(w.rows.constant(0), w.rows.constant(0), last)
    return line(begin, by, place)


@ROW_READS("ConstantOfShape")
def _filled(w: Wanted) -> Row:
    value = w.node.attr("value")
    number = 0.0 if value is None else float(np.asarray(value.numpy()).reshape(-1)[0])
    if not math.isfinite(number) or number != round(number) or abs(number) >= EXACT:
        return Row(w.rows.constant(0))
    same = w.rows.constant(int(number))
    return Row(w.rows.constant(0), same, same, True)


@ROW_READS("Shape", "Size")
def _size(w: Wanted) -> Row:
    raise Unsure("sizes that are no few numbers")
