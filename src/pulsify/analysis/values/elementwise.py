"""Entry by entry: what operators of one or several operands are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pulsify.analysis.values.follow import FEW, Few, Follower, Rule, Value
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.affine_products import TINY
from pulsify.lengths.beyond import LAST
from pulsify.lengths.curves import Curve, Number, curved
from pulsify.lengths.indexing import met, moved_axes
from pulsify.lengths.series import Series, Unsure
from pulsify.trace.traced import known

Array = np.ndarray[Any, Any]


def beside(f: Follower, values: list[Value]) -> tuple[list[Spread], tuple[Series, ...]]:
    """All of them spread, brought to one rank; and the sizes of what they make together."""
    spreads = [f.spread(v) for v in values]
    rank = max(s.rank for s in spreads)
    sizes = []
    for a in range(rank):
        sizes.append(met([s.sizes[a - rank + s.rank] for s in spreads if a - rank + s.rank >= 0]))
    full = tuple(sizes)
    return [moved_axes(s, {a: a + rank - s.rank for a in range(s.rank)}, full) for s in spreads], full


def numbers(f: Follower, values: list[Value]) -> list[Array] | None:
    """All of them as few numbers, broadcast to each other; None if one of them is spread."""
    if any(isinstance(v, Spread) for v in values):
        return None
    if math.prod(np.broadcast_shapes(*(v.dims for v in values if not isinstance(v, Spread)))) > FEW:
        return None
    return list(np.broadcast_arrays(*(f.few(v) for v in values)))


def each(cells: list[Array], how: Callable[..., Number]) -> Few:
    out = np.empty(cells[0].shape, object)
    for i in np.ndindex(out.shape):
        out[i] = how(*(c[i] for c in cells))
    return Few(out, any(isinstance(c, Series) and c.floating for c in out.flat))


def plain(number: Number) -> Series:
    if isinstance(number, Curve):
        raise Unsure("it is no linear function of the length")
    return number


def binary(f: Follower, values: list[Value], few: Callable[..., Number], spread: Callable[..., Spread]) -> Value:
    cells = numbers(f, values)
    if cells is not None:
        return each(cells, few)
    spreads, sizes = beside(f, values)
    return spread(sizes, *spreads)


def folded(f: Follower, values: list[Value], few: Callable[..., Number], spread: Callable[..., Spread]) -> Value:
    out = values[0]
    for v in values[1:]:
        out = binary(f, [out, v], few, spread)
    return out


def extreme(f: Follower, values: list[Value], least: bool) -> Value:
    """The least, or the largest, of several."""
    how = np.minimum if least else np.maximum
    return folded(
        f, values, lambda a, b: one.extreme(plain(a), plain(b), how), lambda s, a, b: many.extreme(s, a, b, least)
    )


def with_curves(
    how: Callable[[Series, Series], Series], as_curve: Callable[[Curve, float], Curve]
) -> Callable[..., Number]:
    """An operator on two numbers, one of which may be a curve if the other is a constant."""

    def apply(a: Number, b: Number) -> Number:
        if isinstance(a, Curve) and isinstance(b, Series) and b.constant:
            return as_curve(a, factor(b))
        if isinstance(b, Curve) and isinstance(a, Series) and a.constant:
            return as_curve(b, factor(a))
        return how(plain(a), plain(b))

    return apply


def factor(s: Series) -> float:
    """A constant beside a curve, which is worked out in double precision."""
    if not s.floating and abs(int(s.item)) >= many.EXACT:
        raise Unsure("it is too large a number")
    return float(s.item)


def one_number(v: Spread) -> bool:
    """Is it the same number everywhere, and none that divides nothing?"""
    return not v.slope and v.lo == v.hi and bool(v.lo) and math.isfinite(v.lo) and v.drift.none


def beside_number(sizes: tuple[Series, ...], v: Spread, number: Spread) -> Spread:
    """A value, as large as it is together with a number."""
    out = many.joint(sizes, v, number)
    return replace(out, slope=v.slope, lo=v.lo, hi=v.hi, grain=v.step if v.floating else None, drift=v.drift)


def compared_with_zero(d: Spread, how: Callable[[Array, Array], Array]) -> Spread:
    """A comparison of a difference with zero. Of whole numbers, which are never NaN, what they lie between may tell."""
    (lo, hi), cells = d.range, many.decided(d)
    first, last = bool(how(np.array(lo), np.array(0))), bool(how(np.array(hi), np.array(0)))
    sure = first == last and (how is not np.equal or lo == hi or lo > 0 or hi < 0)
    return replace(cells, lo=float(first), hi=float(first)) if sure and not d.floating else cells


def as_whole(s: Series) -> Series:
    """Booleans as numbers."""
    return replace(s, values=s.values.astype(np.int64))


# ---- functions


@dataclass(frozen=True)
class Function:
    """A function of one number. What it makes of a growing value never repeats, but is the same where its input is.

    lo, hi: what it lies between; rises: with its input; exact: no library rounds it in its own way; level: it is the
    same further out, on either side; rate: of exp(rate * x); on_numbers: it is followed on single numbers.
    """

    lo: float = -math.inf
    hi: float = math.inf
    rises: bool = False
    exact: bool = False
    level: bool = False
    rate: float = 0.0
    on_numbers: bool = True


def function(kind: Function) -> Rule:
    """What a function of one operand makes of it."""

    def law(f: Follower, node: Node, ins: list[Value]) -> Value:
        value = ins[0]
        if not isinstance(value, Spread) and math.prod(value.dims) <= FEW:
            return each([f.few(value)], _of_number(f, node, kind))
        return of_spreads(*beside(f, ins), kind)

    return law


def of_spreads(spreads: list[Spread], sizes: tuple[Series, ...], kind: Function) -> Spread:
    """Any function of values over time; the last of them is what an exponential goes with."""
    rate, x = kind.rate, spreads[-1]
    least = min(rate * e for e in x.range)
    apart = math.exp(least) if rate and least > math.log(TINY) else 0.0
    if apart or (
        rate and (x.rises or (x.slope and x.lo == x.hi))
    ):  # nowhere zero, or zero past some place on a line, and not before
        exact = [many.exactly(s) for s in spreads]
        joint = many.joint(sizes, *exact, lo=0.0, hi=float(kind.hi), floating=True, hide={}, apart=apart)
        return replace(joint, grain=None)
    far = LAST[x.drift.digits] / abs(rate) if rate else math.inf
    if kind.level:
        far = LAST[x.drift.digits]
    cut = [many.exactly(s, far) for s in spreads]
    return replace(many.joint(sizes, *cut, lo=float(kind.lo), hi=float(kind.hi), floating=True), grain=None)


def computed(f: Follower, node: Node, *others: Array) -> Callable[[Array], Array]:
    """Worked out by the runtime, as the batch model does it: libraries round, and clamp, in their own ways."""
    dtype = f.first(node.inputs[0]).dtype.numpy()

    def how(x: Array) -> Array:
        result = f.evaluator.run(node, [known(np.ascontiguousarray(x, dtype)), *map(known, others)])[0]
        return result.astype(np.float64) if result.dtype.kind == "f" else result

    return how


def _of_number(f: Follower, node: Node, kind: Function) -> Callable[[Number], Number]:
    how = computed(f, node)

    def apply(a: Number) -> Number:
        if not kind.on_numbers:
            raise Unsure(f"nothing is known of what {node.op} does with it")
        if isinstance(a, Series) and not a.growth:
            return one.through(a, how, kind.exact)
        curve = rising(node, a, kind.rises)
        if curve.digits is None:
            raise Unsure(f"nothing is known of what {node.op} does with a whole number that grows")
        return curve.then(how, True, kind.exact)

    return apply


def rising(node: Node, a: Number, rises: bool) -> Curve:
    """A number as a curve, for a function that rises with it."""
    if not rises:
        raise Unsure(f"{node.op} of it neither rises nor falls with the length")
    return a if isinstance(a, Curve) else curved(a)
