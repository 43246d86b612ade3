"""Values that follow from the length through operators that give them another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pulsify.analysis.values.follow import FEW, VALUES, Few, Fixed, Follower, Value
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import FAR, ORIGIN, Spread, T, pair
from pulsify.lengths.float_limits import LONG, common
from pulsify.lengths.indexing import met, moved_axes
from pulsify.lengths.series import Series, Unsure, constant, multiply
from pulsify.trace.traced import known


def carried(f: Follower, node: Node, value: Few, others: Sequence[Value | None]) -> list[Value]:
    """An operator that only moves entries about, on few numbers: it is run on their places."""
    places = np.arange(value.cells.size).reshape(value.dims)
    given = [known(places), *(None if v is None else known(f.fixed(v)) for v in others)]
    flat = value.cells.reshape(-1)
    out: list[Value] = []
    for moved in f.evaluator.run(node, given):
        cells = np.empty(moved.shape, object)
        for i in np.ndindex(moved.shape):
            cells[i] = flat[int(moved[i])]
        out.append(Few(cells, value.floating))
    return out


def sizes_from(f: Follower, value: Value | None) -> list[Series]:
    """A shape given as a value: one number an axis."""
    cells = f.few(value).reshape(-1)
    if not all(isinstance(c, Series) for c in cells):
        raise Unsure("a size is no linear function of the length")
    return list(cells)


def alike(a: Series, b: Series) -> bool:
    return a.growth == b.growth and a.horizon == b.horizon and np.array_equal(a.values, b.values)


@VALUES("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if isinstance(ins[0], Few) and all(v is None or isinstance(v, Fixed) for v in ins[1:]):
        return carried(f, node, ins[0], ins[1:])
    v = f.spread(ins[0])
    sizes = reshaped_sizes(f, node, v.sizes, ins)
    if not v.times and not any(not s.constant for s in sizes):
        if v.uses - {T}:
            raise Unsure("an axis along which it changes is removed")
        return replace(v, sizes=sizes)
    before, after = v.times, [a for a, s in enumerate(sizes) if not s.constant]
    to: dict[int, int] = {}
    if len(before) == len(after) and all(_kept(v.sizes, a, sizes, b) for a, b in zip(before, after, strict=True)):
        to = dict(zip(before, after, strict=True))
        if all(alike(v.sizes[a], sizes[b]) for a, b in to.items()):
            return moved_axes(v, to, sizes)
    if len(before) == len(after) == 1:
        return _regrouped(v, before[0], after[0], sizes)
    raise Unsure("time axes are split or merged")


def reshaped_sizes(f: Follower, node: Node, own: tuple[Series, ...], ins: Sequence[Value | None]) -> tuple[Series, ...]:
    unit = f.unit
    if node.op == "Unsqueeze":
        axes = axes_of(f, node, ins, len(own), more=True)
        rest = iter(own)
        return tuple(constant(1, unit) if a in axes else next(rest) for a in range(len(own) + len(axes)))
    if node.op == "Squeeze":
        axes = axes_of(f, node, ins, len(own))
        if not axes:
            axes = {a for a, s in enumerate(own) if s.constant and s.item == 1}
        return tuple(s for a, s in enumerate(own) if a not in axes)
    if node.op == "Flatten":
        axis = node.attr("axis", 1) % (len(own) + 1)
        return _times(own[:axis], unit), _times(own[axis:], unit)
    target = sizes_from(f, ins[1])
    _check_plain(target, own, bool(node.attr("allowzero", 0)))
    if not node.attr("allowzero", 0):
        target = [own[i] if s.constant and s.item == 0 else s for i, s in enumerate(target)]
    missing = [i for i, s in enumerate(target) if s.constant and s.item == -1]
    if missing:
        target[missing[0]] = _left(own, [s for i, s in enumerate(target) if i != missing[0]], unit)
    return tuple(target)


def _check_plain(target: list[Series], sizes: Sequence[Series], zeros: bool) -> None:
    """Unsure if a size that a shape gives is -1, or 0, at some lengths only (worked out from the rest, or kept)."""
    for s in (s for s in target if not s.constant):
        for special in (-1,) if zeros else (-1, 0):
            hit = one.compare(s, constant(special, s.unit), np.equal)
            there = [one.compare(x, constant(0, s.unit), np.greater) for x in sizes]  # what is empty does not matter
            _, _, seen = one.aligned(hit, *there)
            if np.logical_and.reduce(seen).any():
                raise Unsure(f"a size is {special} at some lengths only")


def axes_of(f: Follower, node: Node, ins: Sequence[Value | None], rank: int, more: bool = False) -> set[int]:
    given = node.attr("axes")
    if given is None and len(ins) > 1 and ins[1] is not None:
        given = [int(a) for a in f.fixed(ins[1]).reshape(-1)]
    axes = given or []
    return {a % (rank + len(axes) if more else rank) for a in axes}


def _times(sizes: Sequence[Series], unit: int) -> Series:
    out = constant(1, unit)
    for s in sizes:
        out = one.multiply(out, s)
    return out


def _left(total: Sequence[Series], given: list[Series], unit: int) -> Series:
    """What is left of the product of all sizes once the others are taken out of it."""
    rest = list(total)
    for s in [s for s in given if not s.constant]:
        found = next((i for i, r in enumerate(rest) if alike(r, s)), None)
        if found is None:
            raise Unsure("time axes are split or merged")
        del rest[found]
    by = math.prod(int(s.item) for s in given if s.constant)
    return one.divide(_times(rest, unit), constant(by, unit))


def _kept(before: Sequence[Series], a: int, after: Sequence[Series], b: int) -> bool:
    """Is as much in front of a time axis as before?"""

    def ahead(sizes: Sequence[Series]) -> tuple[int, list[Series]]:
        return math.prod(int(s.item) for s in sizes if s.constant), [s for s in sizes if not s.constant]

    (x, xs), (y, ys) = ahead(before[:a]), ahead(after[:b])
    return x == y and len(xs) == len(ys) and all(alike(p, q) for p, q in zip(xs, ys, strict=True))


def _regrouped(v: Spread, a: int, b: int, sizes: tuple[Series, ...]) -> Spread:
    """Time merged with what lies behind it, or split: an entry lies a known number of frames from where it was."""
    if not _kept(v.sizes, a, sizes, b):
        raise Unsure("time is merged with the axis in front of it")
    inner = [math.prod(int(s.item) for s in side) for side in (v.sizes[a + 1 :], sizes[b + 1 :])]
    if 0 in inner:
        raise Unsure("it has no entries")
    ratio = Fraction(inner[1], inner[0])
    q = v.slope.get(a, Fraction(0))
    off = float(abs(q) * (1 + ratio))
    slope = {c: (x * ratio if c == a else x) for c, x in v.slope.items()}
    return moved_axes(replace(v, slope=slope, lo=v.lo - off, hi=v.hi + off, grain=v.step), {a: b}, sizes)


@VALUES("Transpose")
def transpose(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if isinstance(ins[0], Few):
        return carried(f, node, ins[0], [])
    v = f.spread(ins[0])
    perm = node.attr("perm") or tuple(reversed(range(v.rank)))
    return moved_axes(v, {a: perm.index(a) for a in range(v.rank)}, tuple(v.sizes[p] for p in perm))


@VALUES("Expand", "Tile")
def expand(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if isinstance(ins[0], Few) and isinstance(ins[1], Fixed) and f.fixed(ins[1]).prod() <= FEW:
        return carried(f, node, ins[0], ins[1:])
    v, target = f.spread(ins[0]), sizes_from(f, ins[1])
    rank = max(v.rank, len(target))
    to = {a: a + rank - v.rank for a in range(v.rank)}
    own = [*[constant(1, f.unit)] * (rank - v.rank), *v.sizes]
    wanted = [*[constant(1, f.unit)] * (rank - len(target)), *target]
    sizes, again, whole = [], set[int](), False
    for axis, (s, w) in enumerate(zip(own, wanted, strict=True)):
        if s.constant and s.item == 1:
            sizes.append(w)
        elif node.op == "Expand":
            sizes.append(met([s, w]))
        elif w.constant and w.item == 1:
            sizes.append(s)
        elif s.constant and w.constant:
            sizes.append(constant(s.item * w.item, f.unit))
        elif s.constant:  # as many entries a frame, the same at every frame
            sizes.append(multiply(s, w))
            again.add(axis)
        else:
            sizes.append(multiply(s, w))
            whole = True
    made = moved_axes(v, to, tuple(sizes))
    if whole:
        return _anything(made)
    period = math.lcm(made.period, *(wanted[a].pace.denominator for a in again))
    return replace(made, uses=made.uses | again, period=period) if again else made


def _anything(v: Spread) -> Spread:
    """Frames repeated from the first to the last: of these the sizes are known, and that they never repeat."""
    places = [ORIGIN, T, *v.times]
    near = {pair(a, b): FAR for n, a in enumerate(places) for b in places[n + 1 :]}
    return Spread(v.sizes, lo=-FAR, hi=FAR, near=near, uses=frozenset(places[1:]), floating=v.floating, until=v.until)


@VALUES("ConstantOfShape")
def filled(f: Follower, node: Node, ins: list[Value]) -> Value:
    value = node.attr("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value.numpy())
    sizes = tuple(sizes_from(f, ins[0]))
    number = float(array.reshape(-1)[0])
    if all(s.constant for s in sizes) and math.prod(int(s.item) for s in sizes) <= FEW:
        cells = np.empty([int(s.item) for s in sizes], object)
        cells.fill(constant(array.reshape(-1)[0], f.unit))
        return Few(cells, array.dtype.kind == "f")
    if array.dtype.kind != "f" and abs(number) >= many.EXACT:
        return Spread(sizes, lo=-FAR, hi=FAR)
    return Spread(sizes, lo=number, hi=number, floating=array.dtype.kind == "f")


@VALUES("Range")
def count(f: Follower, node: Node, ins: list[Value]) -> Value:
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
    made = replace(begin, sizes=(size,), slope=slope, uses=begin.uses | {0}, grain=grain, limit=span.limit)
    if not start.floating:
        return made
    counted = many.rounded(made)
    steps = replace(counted.drift, exact=counted.drift.fits, roundings=2, noise=math.inf)  # it is rounded at every step
    return counted if counted.drift.fits >= LONG else replace(counted, drift=steps)


def floored(a: Series, b: Series) -> Series:
    """Division of whole numbers, downwards."""
    return one.divide(one.subtract(a, one.remainder(a, b)), b)
