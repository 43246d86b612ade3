"""A choice by comparison that is the lesser or the larger of two: Where(i < 0, -1 - i, i) is Max(i, -1 - i).

Of whole numbers. All of them are sums of the same values: what is chosen between differs by a multiple of what is
compared, and a number. One of the two may be such a choice itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from pulsify.analysis.values.follow import Follower
from pulsify.core.facet import Facet
from pulsify.core.traits import Comparison, traits
from pulsify.frontend.model import Node
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.series import Series, Unsure

Array = np.ndarray[Any, Any]
Extreme = Literal["least", "largest"]


@dataclass(frozen=True)
class Compared:
    """How two numbers are compared; below: it holds where the first is small, otherwise where it is large."""

    test: Callable[[Array, Array], Array]
    turned: Callable[[Array, Array], Array]  # with the operands exchanged
    below: bool = False
    strictly: bool = False
    ordered: bool = True

    @property
    def changes_behind(self) -> int:
        """Of the difference of two whole numbers, the last one before the answer changes."""
        return -1 if self.below == self.strictly else 0


COMPARED: dict[Comparison, Compared] = {
    "<": Compared(np.less, np.greater, below=True, strictly=True),
    "<=": Compared(np.less_equal, np.greater_equal, below=True),
    ">": Compared(np.greater, np.less, strictly=True),
    ">=": Compared(np.greater_equal, np.less_equal),
    "==": Compared(np.equal, np.equal, ordered=False),
}


def compared(node: Node) -> Compared | None:
    """How a node compares its inputs; None if it does not."""
    return COMPARED.get(traits(node.op, node.domain).compares)


@dataclass(frozen=True, eq=False)
class Sum:
    """So many times values over time, and a number that goes with the length."""

    of: dict[str, Fraction]
    number: Series

    def plus(self, other: Sum, times: Fraction = Fraction(1)) -> Sum:
        if times.denominator != 1:
            raise Unsure("it is no whole number of times as much")
        of = {n: self.of.get(n, Fraction(0)) + times * other.of.get(n, Fraction(0)) for n in self.of | other.of}
        more = one.multiply(other.number, one.constant(int(times), other.number.unit))
        return Sum({n: q for n, q in of.items() if q}, one.add(self.number, more))

    def times(self, factor: Fraction) -> Sum:
        return Sum({}, one.constant(0, self.number.unit)).plus(self, factor)


Terms = Callable[[str], Sum]
TERMS = Facet[Callable[[Terms, Node], Sum | None]]("terms", "which multiples of other values it is a sum of")
EXTREME = Facet[Callable[[Follower, Node], Extreme | None]]("extreme", "is it the lesser or the larger of two")


def as_extreme(f: Follower, node: Node) -> Extreme | None:
    """Which of the two, if this choice by a condition is one."""
    if f.first(node.outputs[0]).dtype == ir.DataType.BOOL:
        return None
    condition = f.model.producers.get(node.inputs[0])
    kind = compared(condition) if condition is not None else None
    if condition is None or kind is None or not kind.ordered:
        return None
    return _between(f, condition, kind, node.inputs[1], node.inputs[2]) or _nested(f, condition, kind, node)


def _between(f: Follower, condition: Node, kind: Compared, yes: str, no: str) -> Extreme | None:
    try:
        apart = _sum(f, condition.inputs[0]).plus(_sum(f, condition.inputs[1]), Fraction(-1))
        differ = _sum(f, yes).plus(_sum(f, no), Fraction(-1))
        name, q = next(iter(apart.of.items()), ("", Fraction(0)))
        times = differ.of.get(name, Fraction(0)) / q if q else Fraction(0)
        rest = differ.plus(apart, -times)
    except Unsure:
        return None
    if not times or rest.of or not rest.number.constant:
        return None
    bound, r = kind.changes_behind, Fraction(rest.number.item)
    low, high = times * bound + r, times * (bound + 1) + r  # how much they differ at the last place of either side
    if low * high > 0:
        return None
    falls = low >= high
    return "largest" if falls == kind.below else "least"


def _nested(f: Follower, condition: Node, kind: Compared, node: Node) -> Extreme | None:
    """Where(c, a, Min(b, d)) is Max(a, Min(b, d)) if Where(c, a, b) is Max(a, b), and d is never less than a.

    Where c holds a is no less than b, where not neither b nor d is less than a. And the other way round.
    """
    for index, other in ((1, node.inputs[2]), (2, node.inputs[1])):
        inner = _inner(f, node.inputs[index])
        law = EXTREME.of(inner) if inner is not None else None
        own = law(f, inner) if law is not None and inner is not None else None
        if inner is None or own is None:
            continue
        for near, far in (inner.inputs[-2:], inner.inputs[:-3:-1]):
            how = _between(f, condition, kind, *((near, other) if index == 1 else (other, near)))
            if how is not None and how != own and _never_past(f, far, other, how):
                return how
    return None


def _inner(f: Follower, name: str) -> Node | None:
    """What makes a value, whatever type it is held in."""
    node = f.model.producers.get(name)
    while node is not None and traits(node.op, node.domain).same_numbers:
        node = f.model.producers.get(node.inputs[0])
    return node


def _never_past(f: Follower, far: str, other: str, how: Extreme) -> bool:
    """Is one of two never less than the other (the largest), or never more, at any length?"""
    try:
        off = _sum(f, far).plus(_sum(f, other), Fraction(-1))
        test = np.greater_equal if how == "largest" else np.less_equal
        sure = one.compare(off.number, one.constant(0, off.number.unit), test)
    except Unsure:
        return False
    return not off.of and sure.constant and bool(sure.item)


def _sum(f: Follower, name: str) -> Sum:
    value = f.value(name)
    if f.first(name).dtype.is_floating_point():
        raise Unsure("floats are rounded")
    node = f.model.producers.get(name)
    if not isinstance(value, Spread) and math.prod(value.dims) == 1:
        return Sum({}, f.number(value))
    whole = isinstance(value, Spread) and f.first(name).dtype != ir.DataType.BOOL
    law = TERMS.of(node) if whole and node is not None else None
    terms = law(lambda n: _sum(f, n), node) if law is not None and node is not None else None
    return Sum({name: Fraction(1)}, one.constant(0, f.unit)) if terms is None else terms
