"""Comparisons, logic and choices, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS
from pulsify.analysis.values.choices import COMPARED, EXTREME, Compared, as_extreme
from pulsify.analysis.values.elementwise import (
    Function,
    binary,
    compared_with_zero,
    each,
    extreme,
    factor,
    function,
    plain,
)
from pulsify.analysis.values.extremes import always_below
from pulsify.analysis.values.follow import VALUES, Few, Follower, Rule, Value
from pulsify.analysis.values.sides import SIDES, of_sides
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import affine_products as products
from pulsify.lengths import beyond
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.affine_products import negative
from pulsify.lengths.curves import Curve, Number
from pulsify.lengths.series import Series, Unsure
from pulsify.lengths.sizes import Sizes
from pulsify.trace import sides
from pulsify.trace.evaluate import DIGITS, exact
from pulsify.trace.sides import NUMBERS, of_known
from pulsify.trace.usage import ROLE, Count, Derived, Role, Use, Walk


# ---- roles of inputs
@NUMBERS("Where")
def _choice(condition: sides.Number, x: sides.Number, y: sides.Number) -> sides.Number:
    if condition is None:
        return x if x == y else None
    return x if condition else y


NUMBERS.add(
    {
        "And": of_known(lambda x, y: x and y),
        "Not": of_known(lambda x: not x),
        "Or": of_known(lambda x, y: x or y),
        "Xor": of_known(lambda x, y: bool(x) != bool(y)),
    }
)


@ROLE("Where")
def _chosen(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    data = [n for i, n in enumerate(node.inputs) if i not in own and not walk.known(n)]
    if len(data) == 2 and isinstance(own.get(0), Count | Derived):
        walk.say(node, Use.OTHER, f"chooses by it between '{data[0]}' and '{data[1]}'")
        return None
    return walk.entries(node, own)


# ---- at one length
DIGITS.add(dict.fromkeys(("And", "Or", "Not", "Xor"), exact))


# ---- values by length
@VALUES("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
def compare_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    kind = COMPARED[traits(node.op).compares]
    if (distance := _both_sides(f, node, kind, ins)) is not None:
        return distance

    def few(a: Number, b: Number) -> Number:
        for curve, other, test in ((a, b, kind.test), (b, a, kind.turned)):
            if isinstance(curve, Curve) and isinstance(other, Series) and other.constant:
                return curve.compare(factor(other), test)
        return one.compare(plain(a), plain(b), kind.test)

    result = binary(f, ins, few, lambda sizes, a, b: compared_with_zero(many.difference(sizes, a, b), kind.test))
    if not isinstance(result, Spread) or result.lo == result.hi or (sure := _decided_by_ends(f, ins, kind)) is None:
        return result
    same = float(sure)
    return replace(result, lo=same, hi=same, uses=frozenset(), near={}, period=1, final=None, hide=None, rises=False)


def _decided_by_ends(f: Follower, ins: list[Value], kind: Compared) -> bool | None:
    """What a comparison says everywhere because axes end: no place of an axis is behind its size."""
    if not kind.ordered or any(isinstance(v, (Few, Spread)) and v.floating for v in ins):
        return None
    a, b = ins if kind.below else ins[::-1]
    if always_below(f, a, b, kind.strictly):
        return True
    return False if always_below(f, b, a, not kind.strictly) else None


@dataclass(frozen=True)
class Logic:
    """An operator on two booleans; joins: of what two values over time lie between."""

    test: Callable[[Any, Any], Any]
    joins: Callable[[float, float], float] | None = None


def logic(kind: Logic) -> Rule:
    """What a logical operator makes of two values."""

    def few(a: Number, b: Number) -> Number:
        x, y = plain(a), plain(b)
        table = {(p, q): bool(kind.test(p, q)) for p in (False, True) for q in (False, True)}
        first = {p: one.constant(table[p, False], x.unit) for p in (False, True)}
        second = {p: one.constant(table[p, True], x.unit) for p in (False, True)}
        return one.choose(y, one.choose(x, second[True], second[False]), one.choose(x, first[True], first[False]))

    def spread(sizes: tuple[Series, ...], a: Spread, b: Spread) -> Spread:
        lo, hi = (kind.joins(a.lo, b.lo), kind.joins(a.hi, b.hi)) if kind.joins else (0.0, 1.0)
        return many.joint(sizes, a, b, lo=lo, hi=hi)

    return lambda f, node, ins: binary(f, ins, few, spread)


VALUES.add(
    {
        "And": logic(Logic(np.logical_and, min)),
        "Or": logic(Logic(np.logical_or, max)),
        "Xor": logic(Logic(np.logical_xor)),
        **dict.fromkeys(("IsNaN", "IsInf"), function(Function(0, 1, exact=True))),
    }
)


@VALUES("Not")
def negation_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):  # what was zero is not any more
        lo, hi = 1.0 - ins[0].hi, 1.0 - ins[0].lo
        return replace(ins[0], lo=lo, hi=hi, final=None, hide=None, rises=False, least=0.0)
    return each([f.few(ins[0])], lambda a: one.through(plain(a), np.logical_not))


@VALUES("Where")
def choice_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    how = as_extreme(f, node)
    if how is not None:
        return extreme(f, ins[1:], how == "least")
    return binary(f, ins, lambda c, a, b: one.choose(plain(c), plain(a), plain(b)), products.chosen)


EXTREME("Where")(as_extreme)


# ---- any number of streams


# ---- rows of known tables
ROW_LAWS.add(
    {
        "Where": laws.chosen,
        **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), laws.compared),
    }
)


# ---- cells of a mask
CELLS.add(
    {
        "Where": CellLaw("chooses"),
        "Not": CellLaw("entries", inverts=True),
        **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), CellLaw("entries", levels=True)),
    }
)


SIDES.add(
    {
        "And": of_sides(beyond.both),
        "Or": of_sides(beyond.either),
        "Not": of_sides(beyond.inverted),
        "Where": of_sides(beyond.chosen),
        **dict.fromkeys(
            ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
            lambda node, sides, _: beyond.compared(sides, COMPARED[traits(node.op).compares].test),
        ),
    }
)


def _both_sides(f: Follower, node: Node, kind: Compared, ins: list[Value]) -> Value | None:
    """|x| < y as x < y and -x < y, and |x| > y as x > y or -x > y: of a distance between two positions."""
    for place, (name, other) in enumerate(zip(node.inputs, ins[::-1], strict=True)):
        maker = f.model.producers.get(name)
        if maker is None or maker.op != "Abs" or not kind.ordered:
            continue
        x = f.value(maker.inputs[0])
        if not isinstance(x, Spread) or len(x.slope) < 2:
            continue
        test = kind.turned if place else kind.test
        below = kind.below != bool(place)  # where |x| is small
        tested = partial(_tested, test)
        parts = [binary(f, [v, other], _no_numbers, tested) for v in (f.spread(x), negative(f.spread(x)))]
        return logic(Logic(np.logical_and, min) if below else Logic(np.logical_or, max))(f, node, parts)
    return None


def _tested(test: Callable[..., Any], sizes: Sizes, a: Spread, b: Spread) -> Spread:
    return compared_with_zero(many.difference(sizes, a, b), test)


def _no_numbers(a: Number, b: Number) -> Number:
    raise Unsure("it is spread over time")
