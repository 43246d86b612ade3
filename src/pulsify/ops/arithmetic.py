"""Sums, products, extremes and other arithmetic, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS
from pulsify.analysis.values.choices import EXTREME, TERMS, Extreme, Sum, Terms
from pulsify.analysis.values.elementwise import (
    Array,
    Function,
    as_whole,
    beside,
    beside_number,
    binary,
    computed,
    each,
    extreme,
    factor,
    folded,
    of_spreads,
    one_number,
    plain,
    rising,
    with_curves,
)
from pulsify.analysis.values.follow import FEW, VALUES, Fixed, Follower, Value
from pulsify.analysis.values.sides import SIDES, of_sides
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import affine_products as products
from pulsify.lengths import beyond
from pulsify.lengths import rounding as whole
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.beyond import LAST, Side
from pulsify.lengths.curves import Curve, Number, curved
from pulsify.lengths.series import Series, Unsure
from pulsify.ops import late
from pulsify.ops.late import LATE
from pulsify.trace import sides
from pulsify.trace.evaluate import DIGITS, exact, rounds
from pulsify.trace.sides import DROWNED, NUMBERS, of_known
from pulsify.trace.usage import ROLE, SIGNS, Count, Role, Use, Walk


# ---- roles of inputs
@NUMBERS("Sub")
def _difference(x: sides.Number, y: sides.Number) -> sides.Number:
    if x is None or y is None:
        return -math.inf if y is not None and y >= -DROWNED else None
    return x - y


@NUMBERS("Sum")
def _total(*values: sides.Number) -> sides.Number:
    if any(v is not None and v <= DROWNED for v in values):
        return -math.inf
    return None if None in values else float(sum(v for v in values if v is not None))


@NUMBERS("BitwiseAnd")
def _bits_of_both(x: sides.Number, y: sides.Number) -> sides.Number:
    if 0.0 in (x, y):
        return 0.0
    return None if x is None or y is None else float(int(x) & int(y))


NUMBERS.add(
    {
        "Abs": of_known(abs),
        "Add": of_known(lambda x, y: x + y),
        "BitwiseOr": of_known(lambda x, y: int(x) | int(y)),
        "Div": of_known(lambda x, y: x / y if y else math.inf),
        "Max": of_known(max),
        "Min": of_known(min),
        "Mod": of_known(lambda x, y: x % y if y else 0.0),
        "Mul": of_known(lambda x, y: x * y if x and y else 0.0),
        "Neg": of_known(lambda x: -x),
        "Pow": of_known(np.float_power),
        "Reciprocal": of_known(lambda x: 1 / x if x else math.inf),
        "Sign": of_known(np.sign),
    }
)


SIGNS.add({"Add": (1, 1), "Sub": (1, -1), "Neg": (-1,), "Div": (1, 0)})


@ROLE("Div")
def _divided(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    data = [n for i, n in enumerate(node.inputs) if i not in own and not walk.known(n)]
    if data and isinstance(own.get(1), Count):
        walk.say(node, Use.LENGTH, f"divides '{data[0]}' by it")
        return None
    return walk.entries(node, own)


# ---- at one length
DIGITS.add({"Pow": rounds, "Sign": exact})


# ---- values by length
@VALUES("Add", "Sum")
def add_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    shift = with_curves(one.add, lambda c, k: c.then(lambda x: x + k))
    return folded(f, ins, shift, many.summed)


@VALUES("Sub")
def subtract_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    def few(a: Number, b: Number) -> Number:
        if isinstance(a, Curve) and isinstance(b, Series) and b.constant:
            k = factor(b)
            return a.then(lambda x: x - k)
        return one.subtract(plain(a), plain(b))

    return binary(f, ins, few, lambda sizes, a, b: many.summed(sizes, a, b, -1))


@VALUES("Mul")
def multiply_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    return binary(f, ins, _product, products.product)


def _product(a: Number, b: Number) -> Number:
    """Two that both rise from zero on make a curve."""
    if isinstance(a, Series) and isinstance(b, Series):
        if not (a.growth and b.growth):
            return one.multiply(a, b)
        if a.growth > 0 and b.growth > 0 and a.values.min() >= 0 and b.values.min() >= 0:
            return curved(a).times(curved(b))
    scale = with_curves(one.multiply, lambda c, k: c.then(lambda x: x * k, k >= 0))
    return scale(a, b)


@VALUES("Div")
def divide_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    def few(a: Number, b: Number) -> Number:
        if isinstance(a, Curve) and isinstance(b, Series) and b.constant and b.floating and b.item:
            k = float(b.item)
            return a.then(lambda x: x / k, k > 0)
        return one.divide(plain(a), plain(b))

    def spread(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
        if not one_number(b):
            return many.joint(sizes, many.exactly(a), many.exactly(b), lo=-math.inf, hi=math.inf, grain=None)
        return whole.divided(beside_number(sizes, a, b), Fraction(b.lo))

    return binary(f, ins, few, spread)


@VALUES("Mod")
def remainder_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    back = bool(node.attr("fmod", 0))

    def spread(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
        if not one_number(b):
            return many.joint(sizes, many.exactly(a), many.exactly(b), lo=-math.inf, hi=math.inf, grain=None)
        return whole.remaining(beside_number(sizes, a, b), Fraction(b.lo), back)

    return binary(f, ins, lambda a, b: one.remainder(plain(a), plain(b), back), spread)


@VALUES("Min", "Max")
def extreme_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    return extreme(f, ins, least=node.op == "Min")


@VALUES("Neg")
def negative_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        return products.negative(ins[0])
    return each([f.few(ins[0])], lambda a: one.negated(plain(a)))


@VALUES("Abs")
def absolute_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        return products.absolute(ins[0])
    return each([f.few(ins[0])], lambda a: one.absolute(plain(a)))


@VALUES("Sign")
def sign_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        v, slope = ins[0], ins[0].slope
        far = None if len(slope) != 1 else 1.0 if next(iter(slope.values())) > 0 else -1.0
        return replace(many.decided(v), lo=-1.0, floating=v.floating, final=far, grain=Fraction(1))

    def few(a: Number) -> Number:
        zero = one.constant(0, a.unit)
        up, down = (one.compare(plain(a), zero, how) for how in (np.greater, np.less))
        return one.subtract(*(one.cast(s, "i", 64) for s in (as_whole(up), as_whole(down))))

    return each([f.few(ins[0])], few)


@VALUES("Pow")
def power_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    """A power over time with one base everywhere is an exponential."""
    base, exponent = ins
    if not isinstance(base, Spread) and isinstance(exponent, Fixed) and math.prod(base.dims) <= FEW:
        return each([f.few(base)], lambda a: _power(f, node, a, f.fixed(exponent).reshape(-1)))
    spreads, sizes = beside(f, ins)
    number = spreads[0]
    grows = one_number(number) and number.lo > 0 and number.lo != 1
    return of_spreads(spreads, sizes, Function(rate=math.log(number.lo) if grows else 0.0))


def _power(f: Follower, node: Node, a: Number, exponent: Array) -> Number:
    if exponent.size != 1:
        raise Unsure(f"nothing is known of what {node.op} does with it")
    power = exponent[0].item()
    how = computed(f, node, exponent)
    if isinstance(a, Series) and not a.growth:
        return one.through(a, how, False) if a.floating else _whole_power(a, power, how)
    curve = rising(node, a, power > 0)
    if not curve.positive:
        raise Unsure(f"{node.op} of it neither rises nor falls with the length")
    if curve.digits is not None:
        return curve.then(how, True, False)
    if not isinstance(power, int):
        raise Unsure("it is a whole number to the power of a fraction")
    return curve.then(lambda x: np.power(x, power), True, False)


def _whole_power(a: Series, power: Any, how: Any) -> Series:
    """Of a whole number that does not grow, by a whole number; the runtime works it out in double precision."""
    if power != int(power) or power < 0 or max(map(abs, a.values.tolist())) ** int(power) > many.EXACT:
        raise Unsure("it is a power that is no whole number, or too large a one")
    return one.through(a, how)


# ---- sums of other values, and choices between them
@TERMS("Add")
def add_terms(terms: Terms, node: Node) -> Sum:
    return terms(node.inputs[0]).plus(terms(node.inputs[1]))


@TERMS("Sub")
def subtract_terms(terms: Terms, node: Node) -> Sum:
    return terms(node.inputs[0]).plus(terms(node.inputs[1]), Fraction(-1))


@TERMS("Neg")
def negative_terms(terms: Terms, node: Node) -> Sum:
    return terms(node.inputs[0]).times(Fraction(-1))


@TERMS("Mul")
def multiply_terms(terms: Terms, node: Node) -> Sum | None:
    for a, b in (node.inputs, node.inputs[::-1]):
        number = terms(b)
        if not number.of and number.number.constant:
            return terms(a).times(Fraction(int(number.number.item)))
    return None


@EXTREME("Min")
def least_of_two(f: Follower, node: Node) -> Extreme | None:
    return "least" if len(node.inputs) == 2 else None


@EXTREME("Max")
def largest_of_two(f: Follower, node: Node) -> Extreme | None:
    return "largest" if len(node.inputs) == 2 else None


# ---- any number of streams


# ---- rows of known tables
ROW_LAWS.add(
    {
        **dict.fromkeys(("Add", "Sum"), laws.added),
        "Sub": laws.difference,
        "Neg": laws.negated,
        "Mul": laws.product,
        "Min": laws.extreme(np.minimum),
        "Max": laws.extreme(np.maximum),
    }
)


# ---- cells of a mask
CELLS.add(
    {
        **dict.fromkeys(("Sub", "Min"), CellLaw("entries", keeps_offset=True)),
        **dict.fromkeys(("Add", "Sum"), CellLaw("entries", keeps_offset=True, sums=True)),
        "Neg": CellLaw("entries", keeps_offset=True, negates=True),
        "Mul": CellLaw("entries", keeps_offset=True, scales=True),
        "Div": CellLaw("entries", keeps_offset=True, divides=True),
        "Max": CellLaw("entries", keeps_offset=True, levels=True),
    }
)


# ---- frames joined with a value of the whole stream
LATE.add({"Mul": late.multiplied, "Div": late.divided, "Pow": late.raised})


@SIDES("Pow")
def power_sides(node: Node, sides: list[Side], digits: int) -> Side:
    base = sides[0].number
    if base is None or base <= 0 or base == 1:
        return beyond.any_function(sides)
    return beyond.exponential(sides, math.log(base), LAST[digits])


SIDES.add(
    {
        "Add": of_sides(lambda sides: beyond.added(sides, (1, 1))),
        "Sub": of_sides(lambda sides: beyond.added(sides, (1, -1))),
        "Mul": of_sides(beyond.multiplied),
        "Neg": of_sides(beyond.negative),
        "Abs": of_sides(beyond.absolute),
        "Min": of_sides(lambda sides: beyond.folded(sides, least=True)),
        "Max": of_sides(lambda sides: beyond.folded(sides, least=False)),
    }
)
