"""A choice by comparison that is the lesser or the larger of two: Where(i < 0, -1 - i, i) is Max(i, -1 - i).

Of whole numbers. All of them are sums of the same values: what is chosen between differs by a multiple of what is
compared, and a number. One of the two may be such a choice itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pulsify.analysis.values.follow import Follower
from pulsify.frontend.model import Node
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.series import Series, Unsure

HOLDS_UP_TO = {"Less": -1, "LessOrEqual": 0, "Greater": 0, "GreaterOrEqual": -1}  # of the difference, or not up to it
HANDS_ON = ("Cast", "Identity")


@dataclass(frozen=True, eq=False)
class Sum:
    """So many times values over time, and a number that goes with the length."""

    of: dict[str, Fraction]
    number: Series

    def plus(self, other: Sum, times: Fraction) -> Sum:
        if times.denominator != 1:
            raise Unsure("it is no whole number of times as much")
        of = {n: self.of.get(n, Fraction(0)) + times * other.of.get(n, Fraction(0)) for n in self.of | other.of}
        more = one.multiply(other.number, one.constant(int(times), other.number.unit))
        return Sum({n: q for n, q in of.items() if q}, one.add(self.number, more))


def as_extreme(f: Follower, node: Node) -> str | None:
    """Min or Max, if this Where is one."""
    condition = f.model.producers.get(node.inputs[0])
    if condition is None or condition.op not in HOLDS_UP_TO:
        return None
    return _between(f, condition, node.inputs[1], node.inputs[2]) or _nested(f, condition, node)


def _between(f: Follower, condition: Node, yes: str, no: str) -> str | None:
    try:
        compared = _sum(f, condition.inputs[0]).plus(_sum(f, condition.inputs[1]), Fraction(-1))
        differ = _sum(f, yes).plus(_sum(f, no), Fraction(-1))
        name, q = next(iter(compared.of.items()), ("", Fraction(0)))
        times = differ.of.get(name, Fraction(0)) / q if q else Fraction(0)
        rest = differ.plus(compared, -times)
    except Unsure:
        return None
    if not times or rest.of or not rest.number.constant:
        return None
    bound, r = HOLDS_UP_TO[condition.op], Fraction(rest.number.item)
    low, high = times * bound + r, times * (bound + 1) + r  # how much they differ at the last place of either side
    if low * high > 0:
        return None
    first = condition.op.startswith("Less")  # is the first of the two taken up to the bound?
    falls = low >= high
    return "Max" if falls == first else "Min"


def _nested(f: Follower, condition: Node, node: Node) -> str | None:
    """Where(c, a, Min(b, d)) is Max(a, Min(b, d)) if Where(c, a, b) is Max(a, b), and d is never less than a.

    Where c holds a is no less than b, where not neither b nor d is less than a. And the other way round.
    """
    for at, other in ((1, node.inputs[2]), (2, node.inputs[1])):
        inner = _inner(f, node.inputs[at])
        kind = None if inner is None else inner.op if inner.op in ("Min", "Max") else as_extreme(f, inner)
        if inner is None or kind is None:
            continue
        for near, far in (inner.inputs[-2:], inner.inputs[:-3:-1]):
            how = _between(f, condition, *((near, other) if at == 1 else (other, near)))
            if how is not None and how != kind and _never_past(f, far, other, how):
                return how
    return None


def _inner(f: Follower, name: str) -> Node | None:
    """The choice, or the lesser or the larger of two, that a value is."""
    node = f.model.producers.get(name)
    while node is not None and node.op in HANDS_ON and not node.domain:
        node = f.model.producers.get(node.inputs[0])
    two = node is not None and (node.op == "Where" or (node.op in ("Min", "Max") and len(node.inputs) == 2))
    return node if two and node is not None and not node.domain else None


def _never_past(f: Follower, far: str, other: str, how: str) -> bool:
    """Is one of two never less than the other (Max), or never more, at any length?"""
    try:
        off = _sum(f, far).plus(_sum(f, other), Fraction(-1))
        test = np.greater_equal if how == "Max" else np.less_equal
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
    if not isinstance(value, Spread) or node is None or node.domain:
        return Sum({name: Fraction(1)}, one.constant(0, f.unit))
    if node.op in HANDS_ON:
        return _sum(f, node.inputs[0])
    if node.op in ("Add", "Sub"):
        return _sum(f, node.inputs[0]).plus(_sum(f, node.inputs[1]), Fraction(1 if node.op == "Add" else -1))
    if node.op == "Neg":
        return Sum({}, one.constant(0, f.unit)).plus(_sum(f, node.inputs[0]), Fraction(-1))
    if node.op == "Mul":
        for a, b in (node.inputs, node.inputs[::-1]):
            factor = _sum(f, b)
            if not factor.of and factor.number.constant:
                return Sum({}, one.constant(0, f.unit)).plus(_sum(f, a), Fraction(int(factor.number.item)))
    return Sum({name: Fraction(1)}, one.constant(0, f.unit))
