"""A value that is one thing up to a length and another after it, computed on both sides at once.

position < length       (1, 0)
1 - that                (0, 1)
... * -10000            (0, -10000)
scores + that           (None, -inf)       None: differs from frame to frame
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulsify.core.facet import Facet
from pulsify.core.traits import Traits, traits

DROWNED = -100.0  # added to a number, nothing is left of it: additive masks are -1e4, -1e9, -inf
Number = float | None  # None: not the same everywhere


@dataclass(frozen=True)
class Sides:
    """What a value is up to the length, and after it. stream: the positions compared are the stream's."""

    within: Number
    beyond: Number
    stream: bool = True


Numbers = Callable[..., Number]


def of_known(function: Callable[..., Any]) -> Numbers:
    """A function of numbers all of which must be known."""

    def result(*values: Number) -> Number:
        return None if None in values else float(function(*values))

    return result


COMPARED: Mapping[str, Numbers] = {
    sign: of_known(f)
    for sign, f in {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}.items()
}
NUMBERS = Facet[Numbers](
    "numbers", "what it makes of numbers, some of them unknown", lambda t: COMPARED.get(t.compares)
)


def result(op: str, values: Sequence[Number], boolean: bool = False) -> Number:
    """What an operator makes of numbers some of which are unknown; boolean: it gives True and False, or 1 and 0."""
    rule = NUMBERS.named(op)
    if rule is None:
        return None
    number = _decided(traits(op), values) if None in values else None
    if number is None:
        with np.errstate(all="ignore"):
            number = rule(*values)
    return float(bool(number)) if boolean and number is not None else number


def _decided(kind: Traits, values: Sequence[Number]) -> Number:
    """The result that one operand decides, whatever the others are."""
    operands = values if kind.either else values[:1]
    if kind.law == "zero" and 0.0 in operands:
        return 0.0
    if kind.law == "one" and any(operands):
        return 1.0
    if kind.law == "low" and any(v is not None and v <= DROWNED for v in operands):
        return -math.inf
    return None


def combined(op: str, operands: Sequence[Sides | Number], boolean: bool = False) -> Sides:
    """The same of values that have sides. A cell that is after it by either must be so by both."""
    split = [i for i, o in enumerate(operands) if isinstance(o, Sides)]
    results: list[Number] = []
    for choice in itertools.product((True, False), repeat=len(split)):
        inside = dict(zip(split, choice, strict=True))
        values = [(o.within if inside[i] else o.beyond) if isinstance(o, Sides) else o for i, o in enumerate(operands)]
        results.append(result(op, values, boolean))
    within, *behind = results
    stream = all(o.stream for o in operands if isinstance(o, Sides))
    return Sides(within, behind[0] if all(b == behind[0] for b in behind) else None, stream)
