"""A value that is one thing up to a length and another after it, computed on both sides at once.

position < length       (1, 0)
1 - that                (0, 1)
... * -10000            (0, -10000)
scores + that           (None, -inf)       None: differs from frame to frame
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DROWNED = -100.0  # added to a number, nothing is left of it: additive masks are -1e4, -1e9, -inf
Number = float | None  # None: not the same everywhere


@dataclass(frozen=True)
class Sides:
    """What a value is up to the length, and after it. stream: the positions compared are the stream's."""

    within: Number
    beyond: Number
    stream: bool = True


OPS: Mapping[str, Callable[..., object]] = {
    "Identity": lambda x: x, "Cast": lambda x: x, "CastLike": lambda x, _: x,
    "Not": lambda x: not x, "Neg": lambda x: -x, "Abs": abs, "Relu": lambda x: max(x, 0.0), "Sign": np.sign,
    "Log": lambda x: math.log(x) if x > 0 else -math.inf, "Exp": np.exp, "Sqrt": np.sqrt,
    "Floor": np.floor, "Ceil": np.ceil, "Round": np.round, "Reciprocal": lambda x: 1 / x if x else math.inf,
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y if x and y else 0.0,
    "Div": lambda x, y: x / y if y else math.inf, "Mod": lambda x, y: x % y if y else 0.0, "Pow": lambda x, y: x**y,
    "Equal": lambda x, y: x == y, "Less": lambda x, y: x < y, "LessOrEqual": lambda x, y: x <= y,
    "Greater": lambda x, y: x > y, "GreaterOrEqual": lambda x, y: x >= y,
    "And": lambda x, y: x and y, "Or": lambda x, y: x or y, "Xor": lambda x, y: bool(x) != bool(y),
    "BitwiseAnd": lambda x, y: int(x) & int(y), "BitwiseOr": lambda x, y: int(x) | int(y),
    "Max": max, "Min": min, "Sum": lambda *x: sum(x), "Where": lambda c, x, y: x if c else y,
    "Clip": lambda x, low=-math.inf, high=math.inf: min(max(x, low), high),
}  # fmt: skip


def result(op: str, values: Sequence[Number], boolean: bool = False) -> Number:
    """What an operator makes of numbers some of which are not known; boolean: it gives True and False, or 1 and 0."""
    settled = _settled(op, values)
    if settled is None:
        if op not in OPS or None in values:
            return None
        settled = float(OPS[op](*values))  # type: ignore[arg-type]
    return float(bool(settled)) if boolean else settled


def _settled(op: str, values: Sequence[Number]) -> Number:
    """The result that one operand decides, whatever the others are."""
    if op in ("And", "Mul", "BitwiseAnd") and 0.0 in values:
        return 0.0
    if op == "Or" and any(values):
        return 1.0
    if op == "Where" and len(values) == 3:
        condition, yes, no = values
        if condition is None:
            return yes if yes == no else None
        return yes if condition else no
    if None not in values:
        return None
    if op in ("Add", "Min", "Sum") and any(v is not None and v <= DROWNED for v in values):
        return -math.inf
    if op == "Sub" and len(values) == 2 and values[1] is not None and values[1] >= -DROWNED:
        return -math.inf
    if op == "Div" and values[0] == 0.0:
        return 0.0
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
