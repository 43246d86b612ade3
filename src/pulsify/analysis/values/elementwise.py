"""Entry by entry: arithmetic, comparisons and functions of known values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.analysis.values.choices import as_extreme
from pulsify.analysis.values.extremes import always_below
from pulsify.analysis.values.follow import FEW, VALUES, Few, Fixed, Follower, Value
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import rounding as whole
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.curves import Curve, Number, curved
from pulsify.lengths.float_limits import Drift, digits_of
from pulsify.lengths.indexing import met, moved_axes
from pulsify.lengths.series import Series, Unsure
from pulsify.trace.traced import known

Array = np.ndarray[Any, Any]
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
}
ROUNDINGS: dict[str, Callable[[Array], Array]] = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round}
RISING = ("Sqrt", "Log", "Exp", "Tanh", "Atan", "Sigmoid", "Relu")
NUMBERS = (*RISING, "Sin", "Cos", "Reciprocal", "IsNaN", "IsInf")  # functions that are followed on single numbers
RANGES: dict[str, tuple[float, float]] = {
    "Sin": (-1, 1), "Cos": (-1, 1), "Tanh": (-1, 1), "Sigmoid": (0, 1), "Sign": (-1, 1), "Exp": (0, math.inf),
    "Sqrt": (0, math.inf), "Relu": (0, math.inf), "IsNaN": (0, 1), "IsInf": (0, 1), "Erf": (-1, 1),
}  # fmt: skip
LAST = {8: 110.0, 11: 20.0, 24: 110.0, 53: 760.0}  # by digits: exp(x) is zero, or infinite, further out


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


def _binary(f: Follower, values: list[Value], few: Callable[..., Number], spread: Callable[..., Spread]) -> Value:
    cells = numbers(f, values)
    if cells is not None:
        return each(cells, few)
    spreads, sizes = beside(f, values)
    return spread(sizes, *spreads)


def _folded(f: Follower, values: list[Value], few: Callable[..., Number], spread: Callable[..., Spread]) -> Value:
    out = values[0]
    for v in values[1:]:
        out = _binary(f, [out, v], few, spread)
    return out


def _curved(
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


def _product(a: Number, b: Number) -> Number:
    """Two that both rise from zero on make a curve."""
    if isinstance(a, Series) and isinstance(b, Series):
        if not (a.growth and b.growth):
            return one.multiply(a, b)
        if a.growth > 0 and b.growth > 0 and a.values.min() >= 0 and b.values.min() >= 0:
            return curved(a).times(curved(b))
    scale = _curved(one.multiply, lambda c, k: c.then(lambda x: x * k, k >= 0))
    return scale(a, b)


@VALUES("Add", "Sum")
def add(f: Follower, node: Node, ins: list[Value]) -> Value:
    shift = _curved(one.add, lambda c, k: c.then(lambda x: x + k))
    return _folded(f, ins, shift, many.summed)


@VALUES("Sub")
def subtract(f: Follower, node: Node, ins: list[Value]) -> Value:
    def few(a: Number, b: Number) -> Number:
        if isinstance(a, Curve) and isinstance(b, Series) and b.constant:
            k = factor(b)
            return a.then(lambda x: x - k)
        return one.subtract(plain(a), plain(b))

    return _binary(f, ins, few, lambda sizes, a, b: many.summed(sizes, a, b, -1))


@VALUES("Mul")
def multiply(f: Follower, node: Node, ins: list[Value]) -> Value:
    return _binary(f, ins, _product, many.product)


@VALUES("Div")
def divide(f: Follower, node: Node, ins: list[Value]) -> Value:
    def few(a: Number, b: Number) -> Number:
        if isinstance(a, Curve) and isinstance(b, Series) and b.constant and b.floating and b.item:
            k = float(b.item)
            return a.then(lambda x: x / k, k > 0)
        return one.divide(plain(a), plain(b))

    def spread(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
        if not _one_number(b):
            return many.joint(sizes, many.exactly(a), many.exactly(b), lo=-math.inf, hi=math.inf, grain=None)
        return whole.divided(_beside_number(sizes, a, b), Fraction(b.lo))

    return _binary(f, ins, few, spread)


def _one_number(v: Spread) -> bool:
    """Is it the same number everywhere, and none that divides nothing?"""
    return not v.slope and v.lo == v.hi and bool(v.lo) and math.isfinite(v.lo) and v.drift.none


def _beside_number(sizes: tuple[Series, ...], v: Spread, number: Spread) -> Spread:
    """A value, as large as it is together with a number."""
    out = many.joint(sizes, v, number)
    return replace(out, slope=v.slope, lo=v.lo, hi=v.hi, grain=v.step if v.floating else None, drift=v.drift)


@VALUES("Mod")
def mod(f: Follower, node: Node, ins: list[Value]) -> Value:
    back = bool(node.attr("fmod", 0))

    def spread(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
        if not _one_number(b):
            return many.joint(sizes, many.exactly(a), many.exactly(b), lo=-math.inf, hi=math.inf, grain=None)
        return whole.remaining(_beside_number(sizes, a, b), Fraction(b.lo), back)

    return _binary(f, ins, lambda a, b: one.remainder(plain(a), plain(b), back), spread)


@VALUES("Min", "Max")
def extreme(f: Follower, node: Node, ins: list[Value]) -> Value:
    least = node.op == "Min"
    how = np.minimum if least else np.maximum
    return _folded(
        f, ins, lambda a, b: one.extreme(plain(a), plain(b), how), lambda s, a, b: many.extreme(s, a, b, least)
    )


@VALUES("Clip")
def clip(f: Follower, node: Node, ins: list[Value]) -> Value:
    bounds = [ins[1] if len(ins) > 1 else node.attr("min"), ins[2] if len(ins) > 2 else node.attr("max")]
    out = ins[0]
    for bound, how, least in zip(bounds, (np.maximum, np.minimum), (False, True), strict=True):
        if bound is None:
            continue
        given = bound if isinstance(bound, (Fixed, Few, Spread)) else _constant(f, bound)
        out = _binary(
            f,
            [out, given],
            lambda a, b, how=how: one.extreme(plain(a), plain(b), how),
            lambda s, a, b, least=least: many.extreme(s, a, b, least),
        )
    return out


def _constant(f: Follower, value: float) -> Fixed:
    array = np.array(value)
    return Fixed("", (), lambda: array)


@VALUES(*COMPARISONS)
def compare(f: Follower, node: Node, ins: list[Value]) -> Value:
    how = COMPARISONS[node.op]

    def few(a: Number, b: Number) -> Number:
        for curve, other, test in ((a, b, how), (b, a, _turned(how))):
            if isinstance(curve, Curve) and isinstance(other, Series) and other.constant:
                return curve.compare(factor(other), test)
        return one.compare(plain(a), plain(b), how)

    made = _binary(f, ins, few, lambda sizes, a, b: _compared(many.difference(sizes, a, b), how))
    if not isinstance(made, Spread) or made.lo == made.hi or (sure := _decided_by_ends(f, ins, node.op)) is None:
        return made
    same = float(sure)
    return replace(made, lo=same, hi=same, uses=frozenset(), near={}, period=1, final=None, hide=None, rises=False)


def _decided_by_ends(f: Follower, ins: list[Value], op: str) -> bool | None:
    """What a comparison says everywhere because axes end: no place of an axis is behind its size."""
    if op == "Equal" or any(isinstance(v, (Few, Spread)) and v.floating for v in ins):
        return None
    a, b = ins if op.startswith("Less") else ins[::-1]
    strictly = op in ("Less", "Greater")
    if always_below(f, a, b, strictly):
        return True
    return False if always_below(f, b, a, not strictly) else None


def _compared(d: Spread, how: Callable[[Array, Array], Array]) -> Spread:
    """A comparison of a difference with zero. Of whole numbers, which are never NaN, what they lie between may tell."""
    (lo, hi), made = d.range, many.decided(d)
    first, last = bool(how(np.array(lo), np.array(0))), bool(how(np.array(hi), np.array(0)))
    sure = first == last and (how is not np.equal or lo == hi or lo > 0 or hi < 0)
    return replace(made, lo=float(first), hi=float(first)) if sure and not d.floating else made


def _turned(how: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    turned = {
        np.less: np.greater,
        np.less_equal: np.greater_equal,
        np.greater: np.less,
        np.greater_equal: np.less_equal,
    }
    return turned.get(how, how)  # type: ignore[call-overload]


@VALUES("And", "Or", "Xor")
def logic(f: Follower, node: Node, ins: list[Value]) -> Value:
    how = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}[node.op]

    def few(a: Number, b: Number) -> Number:
        x, y = plain(a), plain(b)
        table = {(p, q): bool(how(p, q)) for p in (False, True) for q in (False, True)}
        first = {p: one.constant(table[p, False], x.unit) for p in (False, True)}
        second = {p: one.constant(table[p, True], x.unit) for p in (False, True)}
        return one.choose(y, one.choose(x, second[True], second[False]), one.choose(x, first[True], first[False]))

    def spread(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
        joins = {"And": min, "Or": max}.get(node.op)
        lo, hi = (joins(a.lo, b.lo), joins(a.hi, b.hi)) if joins else (0.0, 1.0)
        return many.joint(sizes, a, b, lo=lo, hi=hi)

    return _binary(f, ins, few, spread)


@VALUES("Not")
def negation(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):  # what was zero is not any more
        lo, hi = 1.0 - ins[0].hi, 1.0 - ins[0].lo
        return replace(ins[0], lo=lo, hi=hi, final=None, hide=None, rises=False, least=0.0)
    return each([f.few(ins[0])], lambda a: one.through(plain(a), np.logical_not))


@VALUES("Where")
def where(f: Follower, node: Node, ins: list[Value]) -> Value:
    how = as_extreme(f, node)
    if how is not None:
        return _binary(
            f,
            ins[1:],
            lambda a, b: one.extreme(plain(a), plain(b), np.minimum if how == "Min" else np.maximum),
            lambda s, a, b: many.extreme(s, a, b, how == "Min"),
        )
    return _binary(f, ins, lambda c, a, b: one.choose(plain(c), plain(a), plain(b)), many.chosen)


@VALUES("Neg")
def negative(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        return many.negative(ins[0])
    return each([f.few(ins[0])], lambda a: one.negated(plain(a)))


@VALUES("Abs")
def absolute(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        return many.absolute(ins[0])
    return each([f.few(ins[0])], lambda a: one.absolute(plain(a)))


@VALUES("Sign")
def sign(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        v, slope = ins[0], ins[0].slope
        far = None if len(slope) != 1 else 1.0 if next(iter(slope.values())) > 0 else -1.0
        return replace(many.decided(v), lo=-1.0, floating=v.floating, final=far, grain=Fraction(1))

    def few(a: Number) -> Number:
        zero = one.constant(0, a.unit)
        up, down = (one.compare(plain(a), zero, how) for how in (np.greater, np.less))
        return one.subtract(*(one.cast(s, "i", 64) for s in (_count(up), _count(down))))

    return each([f.few(ins[0])], few)


def _count(s: Series) -> Series:
    return replace(s, values=s.values.astype(np.int64))


@VALUES(*ROUNDINGS)
def rounded(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        return whole.cut(ins[0])

    def few(a: Number) -> Number:
        if isinstance(a, Curve):
            return a.then(ROUNDINGS[node.op])
        return one.whole(a, ROUNDINGS[node.op])

    return each([f.few(ins[0])], few)


@VALUES("Cast", "CastLike")
def cast(f: Follower, node: Node, ins: list[Value]) -> Value:
    to = ir.DataType(node.attr("to")) if node.op == "Cast" else f.first(node.outputs[0]).dtype
    kind = "f" if to.is_floating_point() else to.numpy().kind
    v = ins[0]
    if isinstance(v, Spread):
        if kind == "b":
            made = _compared(v, np.equal)
            return replace(made, lo=1.0 - made.hi, hi=1.0 - made.lo)
        if kind == "f":
            return _as_float(v, digits_of(to))
        return replace(whole.cut(v, towards_zero=True), floating=False, drift=Drift(), grain=None)
    digits = digits_of(to) if kind == "f" else None

    def few(a: Number) -> Number:
        if isinstance(a, Curve):
            if kind == "b":
                raise Unsure("whether two numbers are equal depends on the length in no linear way")
            return a.cast(digits)
        if digits == 8:
            raise Unsure("it is counted in bfloat16")
        plainly = _count(a) if a.values.dtype.kind == "b" and kind != "b" else a
        return one.cast(plainly, kind, to.numpy().itemsize * 8)

    return each([f.few(v)], few)


def _as_float(v: Spread, digits: int) -> Spread:
    """As a float of so many digits: it may have had more."""
    if v.floating and digits >= v.drift.digits:
        return replace(v, drift=replace(v.drift, digits=digits))
    drift = replace(v.drift, digits=digits) if v.floating else Drift(digits)
    return many.rounded(replace(v, floating=True, drift=drift, grain=v.step))


@VALUES("Identity")
def same(f: Follower, node: Node, ins: list[Value]) -> Value:
    return ins[0]


@VALUES("Dropout")
def kept(f: Follower, node: Node, ins: list[Value]) -> list[Value]:
    """All of it is kept; the mask says so everywhere."""
    if len(ins) > 2 and ins[2] is not None and f.fixed(ins[2]).any():
        raise Unsure("it is dropped at random")
    everywhere = Spread(f.spread(ins[0]).sizes, lo=1.0, hi=1.0)
    return [ins[0], everywhere][: len(node.outputs)]


@VALUES(*NUMBERS, "Erf", "Softplus", "Tan", "Sinh", "Cosh", "Pow")
def function(f: Follower, node: Node, ins: list[Value]) -> Value:
    """Any function: what it makes of a growing value never repeats, but is the same where its input is."""
    alone = not isinstance(ins[0], Spread) and (len(ins) == 1 or isinstance(ins[1], Fixed))
    if alone and math.prod(ins[0].dims) <= FEW:  # type: ignore[union-attr]
        return each([f.few(ins[0])], _function(f, node, f.fixed(ins[1]).reshape(-1) if len(ins) > 1 else None))
    spreads, sizes = beside(f, ins)
    lo, hi = RANGES.get(node.op, (-math.inf, math.inf))
    rate, x = _exponential(node, spreads), spreads[-1]
    least = min(rate * e for e in x.range)
    apart = math.exp(least) if rate and least > math.log(many.TINY) else 0.0
    if apart or (
        rate and (x.rises or (x.slope and x.lo == x.hi))
    ):  # nowhere zero, or zero past some place on a line, and not before
        exact = [many.exactly(s) for s in spreads]
        return replace(many.joint(sizes, *exact, lo=0.0, hi=float(hi), floating=True, hide={}, apart=apart), grain=None)
    far = LAST[x.drift.digits] / abs(rate) if rate else math.inf
    if node.op in ("Sigmoid", "Tanh", "Erf"):
        far = LAST[x.drift.digits]
    made = many.joint(sizes, *(many.exactly(s, far) for s in spreads), lo=float(lo), hi=float(hi), floating=True)
    return replace(made, grain=None)


def _exponential(node: Node, spreads: list[Spread]) -> float:
    """exp(rate * x): the rate; 0 for other functions. Further out it is zero, or infinite."""
    if node.op == "Exp":
        return 1.0
    base = spreads[0]
    if node.op != "Pow" or not _one_number(base) or base.lo <= 0 or base.lo == 1:
        return 0.0
    return math.log(base.lo)


def _function(f: Follower, node: Node, exponent: Array | None) -> Callable[[Number], Number]:
    """Worked out by the runtime, as the batch model does it: libraries round, and clamp, in their own ways."""
    power = exponent[0].item() if exponent is not None and exponent.size == 1 else None
    alone = node.op in NUMBERS or (node.op == "Pow" and power is not None)
    exact = node.op in ("Sqrt", "Relu", "Reciprocal", "IsNaN", "IsInf")
    dtype = f.first(node.inputs[0]).dtype.numpy()

    def how(x: Array) -> Array:
        given = known(np.ascontiguousarray(x, dtype))
        made = f.evaluator.run(node, [given] if exponent is None else [given, known(exponent.reshape(1))])[0]
        return made.astype(np.float64) if made.dtype.kind == "f" else made

    def apply(a: Number) -> Number:
        if not alone:
            raise Unsure(f"nothing is known of what {node.op} does with it")
        if isinstance(a, Series) and not a.growth:
            return _whole_power(a, power, how) if node.op == "Pow" and not a.floating else one.through(a, how, exact)
        if node.op not in RISING and not (power is not None and power > 0):
            raise Unsure(f"{node.op} of it neither rises nor falls with the length")
        curve = a if isinstance(a, Curve) else curved(a)
        if node.op == "Pow" and not curve.positive:
            raise Unsure(f"{node.op} of it neither rises nor falls with the length")
        if curve.digits is None:
            if not isinstance(power, int):
                raise Unsure("it is a whole number to the power of a fraction")
            return curve.then(lambda x: np.power(x, power), True, exact)
        return curve.then(how, True, exact)

    return apply


def _whole_power(a: Series, power: Any, how: Callable[[Array], Array]) -> Series:
    """Of a whole number that does not grow, by a whole number; the runtime works it out in double precision."""
    if power != int(power) or power < 0 or max(map(abs, a.values.tolist())) ** int(power) > many.EXACT:
        raise Unsure("it is a power that is no whole number, or too large a one")
    return one.through(a, how)
