"""Sums, extremes and the like over axes, and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from pulsify.analysis.values.follow import FEW, LOOKS, Few, Follower, Rule, Value
from pulsify.analysis.values.moves import axes_of, numbers_of
from pulsify.analysis.values.sizes import SizeLaw, stand_ins
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import FAR, ORIGIN, Spread, T
from pulsify.lengths.float_limits import Drift, binary
from pulsify.lengths.indexing import moved_axes
from pulsify.lengths.series import Series, Unsure, constant
from pulsify.lengths.sizes import Sizes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reduction:
    """What a reduction makes of many entries; place: it gives the place of the least or largest, not the entry."""

    kind: Literal["sum", "product", "least", "largest", "other"] = "other"
    place: bool = False

    @property
    def picks(self) -> bool:
        """Is the result one of the entries?"""
        return self.kind in ("least", "largest") and not self.place


def reduced_axes(f: Follower, node: Node, kind: Reduction, ins: Sequence[Value | None]) -> set[int]:
    """Along which axes it sums; none: it passes its input on."""
    rank = len(f.first(node.inputs[0]).dims)
    if kind.place:
        return {node.attr("axis", 0) % rank}
    whole = set() if node.attr("noop_with_empty_axes", 0) else set(range(rank))
    return axes_of(f, node, ins, rank) or whole


def reduced_sizes(kind: Reduction) -> SizeLaw:
    """Whatever the entries are: what a sum over time is has no bound; its size has."""

    def law(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
        return _left(f, node, reduced_axes(f, node, kind, stand_ins(f, node, sizes)), sizes[0])

    return law


def _left(f: Follower, node: Node, axes: set[int], sizes: Sizes) -> Sizes:
    keep = bool(node.attr("keepdims", 1))
    return tuple(constant(1, f.unit) if a in axes else s for a, s in enumerate(sizes) if keep or a not in axes)


def reduced(kind: Reduction) -> Rule:
    def law(f: Follower, node: Node, ins: list[Value]) -> Value:
        axes = reduced_axes(f, node, kind, ins)
        return _reduced(f, node, kind, ins[0], axes) if axes else ins[0]

    return law


def _reduced(f: Follower, node: Node, kind: Reduction, value: Value, axes: set[int]) -> Value:
    keep = bool(node.attr("keepdims", 1))
    if isinstance(value, Few):
        return _few_reduced(node, kind, value, axes, keep)
    v = f.spread(value)
    left = [a for a in range(v.rank) if a not in axes]
    sizes = _left(f, node, axes, v.sizes)
    to = {a: a if keep else i for i, a in enumerate(left)}
    over = [a for a in axes if a in v.times]
    if kind.place and over and (end := _end_of_line(kind, v, over[0], sizes)) is not None:
        return end
    return numbers_of(f, node, _over(f, node, kind, v, over, sizes, to))


FOLDS: dict[str, Callable[[Any, Any], Series]] = {
    "sum": one.add,
    "product": one.multiply,
    "least": lambda a, b: one.extreme(a, b, np.minimum),
    "largest": lambda a, b: one.extreme(a, b, np.maximum),
}


def _few_reduced(node: Node, kind: Reduction, value: Few, axes: set[int], keep: bool) -> Value:
    fold = FOLDS.get(kind.kind) if not kind.place else None
    if fold is None or not all(isinstance(c, Series) for c in value.cells.flat):
        raise Unsure(f"nothing is known of what {node.op} does with it")
    moved = np.moveaxis(value.cells, sorted(axes), range(len(axes)))
    flat = moved.reshape(-1, *moved.shape[len(axes) :])
    out = flat[0] if len(flat) else None
    if out is None:
        raise Unsure("it is summed over nothing")
    out = np.array(out, object)
    for row in flat[1:]:
        cells = np.empty(out.shape, object)
        for i in np.ndindex(out.shape):
            cells[i] = fold(*(x[i] for x in (out, np.asarray(row, object))))
        out = cells
    dims = [1 if a in axes else d for a, d in enumerate(value.dims) if keep or a not in axes]
    return Few(out.reshape(dims), value.floating)


def _end_of_line(kind: Reduction, v: Spread, axis: int, sizes: Sizes) -> Value | None:
    """Where a line over time is largest, or smallest, if that is where it ends: arange(n).argmax()."""
    q, dims = v.slope.get(axis, 0), [int(s.item) for s in sizes if s.constant]
    straight = v.lo == v.hi and v.drift.none and len(dims) == len(sizes) and math.prod(dims) <= FEW
    if not straight or not q or (q > 0) != (kind.kind == "largest"):
        return None
    last = one.subtract(v.sizes[axis], constant(1, v.sizes[axis].unit))
    return Few(np.full(dims, replace(last, limit=min(last.limit, v.certain)), object), False)


def _over(
    f: Follower, node: Node, kind: Reduction, v: Spread, over: list[int], sizes: Sizes, to: dict[int, int]
) -> Spread:
    """Gathered over time axes: what is near to them is near to what is left; a sum grows by the same each period."""
    picks = kind.picks
    v = replace(many.bounded(v, over), final=None, hide=None, rises=False)
    slope = dict(v.slope)
    if not over:
        out = moved_axes(v if picks and not v.slope else many.exactly(v), to, sizes)
        lo, hi = _range(kind, v, math.prod(int(s.item) for a, s in enumerate(v.sizes) if a not in to))
        return out if picks else replace(out, lo=lo, hi=hi, least=-FAR, apart=0.0)
    if not picks and (kind.kind != "sum" or v.slope):
        raise Unsure(f"{node.op} over time never repeats")
    if len(over) > 1 and not picks:
        raise Unsure("it is a sum over two time axes")
    period = math.lcm(v.period, *(v.sizes[a].repeats for a in over))
    lo, hi, nearer = v.lo, v.hi, v
    for a in over if picks else ():
        q = slope.pop(a, Fraction(0))
        grows = (q > 0) == (kind.kind == "largest") and q != 0
        if q:  # what wins lies near the end, or the start, by as much as the deviation can make good
            ahead = (v.hi - v.lo) / float(abs(q) * v.rate(a))
            side = {many.pair(a, T): ahead + many.ragged(v.sizes[a])} if grows else {many.pair(ORIGIN, a): ahead}
            nearer = many.with_near(nearer, side)
        if grows:
            slope[T] = slope.get(T, Fraction(0)) + q * v.rate(a)
            off = many.ragged(v.sizes[a]) * float(v.rate(a))
            lo, hi = lo - float(abs(q)) * (off + 1), hi + float(abs(q)) * (off + 1)
    gathered = replace(
        v,
        near={k: g + (period if T in k or ORIGIN in k else 0) for k, g in many.gathered_over(nearer, over).items()},
        slope={c: q for c, q in slope.items() if q},
        uses=(v.uses - set(over)) | {T},
        period=period,
        lo=lo,
        hi=hi,
    )
    out = moved_axes(gathered, to, sizes)
    if picks:
        return out
    counts = [s for a, s in enumerate(v.sizes) if a in over or a not in to]
    return _summed_up(_growing_sum(f, node, out, counts), v, counts)


def _range(kind: Reduction, v: Spread, count: int) -> tuple[float, float]:
    """In which a result over so many entries lies, none of them another one of time."""
    if kind.place:
        return 0.0, max(count - 1.0, 0.0)
    whole = kind.kind == "sum" and not v.floating and not v.slope and count
    return (count * v.lo, count * v.hi) if whole else (-FAR, FAR)


def _summed_up(total: Spread, v: Spread, counts: list[Series]) -> Spread:
    """A sum of floats: exact while all that is summed up, whatever its sign, fits."""
    if not v.floating:
        return total
    steep = many.most(v) * math.prod(float(s.pace) if not s.constant else float(s.item) for s in counts)
    over = sum(many.ragged(s) * float(s.pace) for s in counts if not s.constant)
    step = v.step
    if step is None or not v.drift.none:
        raise Unsure("it is a sum of rounded numbers")
    if not math.isfinite(steep):
        raise Unsure("it is a sum of what grows")
    bound = binary(step) * 2.0**v.drift.digits
    fits = int(min(bound / steep - over, one.LONGEST)) if steep and step else one.LONGEST
    if fits < 1:
        raise Unsure("it is a sum of rounded numbers")
    return replace(total, limit=min(total.limit, fits), drift=Drift(v.drift.digits), grain=step)


def _residues(v: Spread, first: int, period: int, unit: int) -> range:
    """Lengths of every kind from some length on, if it goes with the length."""
    if T not in v.uses:
        return range(first, first + 1)
    if period // unit > LOOKS:
        raise one.TooFar(first + period)
    return range(first, first + period, unit)


def _steps(arrays: list[Array]) -> Array:
    """Differences of arrays, as numbers to compare."""
    whole = all(a.dtype.kind in "biu" for a in arrays)
    x, y = (a.astype(np.int64 if whole else np.float64) for a in arrays)
    return np.asarray(y - x).reshape(-1)


def _growing_sum(f: Follower, node: Node, v: Spread, counts: list[Series]) -> Spread:
    """By how much a sum grows each period is seen at two lengths far enough out, of every kind of length."""
    if v.times:
        raise Unsure("a sum over one of two time axes")
    until = max((g for k, g in v.near.items() if T in k), default=0.0)
    if not math.isfinite(until):
        raise Unsure("it never repeats, however long the stream is")
    first = (math.ceil(until / f.unit) + 1) * f.unit
    period = math.lcm(v.period, f.unit)
    if first + period > 1 << 16:
        raise one.TooFar(first + period)
    name = node.outputs[0]
    lengths = _residues(v, first, period, f.unit)
    grown = np.concatenate([_steps([f.evaluated_or_unsure(name, n) for n in (s, s + period)]) for s in lengths])
    if not grown.size or not (grown == grown[0]).all() or grown[0] != int(grown[0]):
        raise Unsure("it is a sum that grows unevenly")
    slope = Fraction(int(grown[0]), period)
    last = first + 2 * period
    bound = many.most(v) * math.prod(float(s.at(last)) for s in counts) + float(abs(slope)) * last
    return replace(v, slope={T: slope} if slope else {}, lo=-bound, hi=bound, least=-FAR)


def running_sum(f: Follower, node: Node, v: Spread, axis: int) -> Spread:
    """A running sum along an axis, from the first entry on."""
    if axis not in v.times:
        if axis in v.uses:
            raise Unsure("it is summed over an axis along which it changes")
        return replace(many.exactly(v), lo=-FAR, hi=FAR, hide=None, rises=False)
    if v.slope or not math.isfinite(many.most(v)):
        raise Unsure("it is a running sum of what grows")
    period = math.lcm(v.period, v.sizes[axis].repeats)
    near = {k: g + period for k, g in v.near.items()}
    reach = sum(near.values()) + 2 * period
    frames = int(v.rate(axis) * period)
    if not math.isfinite(reach) or v.rate(axis) * period != frames:
        raise Unsure("it never repeats, however long the stream is")
    length = (math.ceil(2 * reach / f.unit) + 1) * f.unit
    if length > 1 << 16 or len(v.times) > 1:
        raise one.TooFar(length)
    grown = np.concatenate(
        [
            _steps([array[len(array) // 2 - frames], array[len(array) // 2]])
            for s in _residues(v, length, math.lcm(period, f.unit), f.unit)
            for array in [np.moveaxis(f.evaluated_or_unsure(node.outputs[0], s), axis, 0)]
        ]
    )
    if not grown.size or not (grown == grown[0]).all() or grown[0] != int(grown[0]):
        raise Unsure("it is a running sum that grows unevenly")
    slope = Fraction(int(grown[0]), frames)
    bound = (many.most(v) + float(abs(slope))) * float(v.rate(axis)) * (reach + period)
    total = replace(
        v, slope={axis: slope} if slope else {}, lo=-bound, hi=bound, near=near, period=period,
        uses=v.uses | ({axis} if slope else set()), final=None, hide=None, rises=False, least=-FAR,
    )  # fmt: skip
    return _summed_up(total, v, [v.sizes[axis]])
