"""Sums, products, extremes and other arithmetic, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pulsify.frontend.model import Node
from pulsify.trace.evaluate import DIGITS, exact, rounds
from pulsify.trace.sides import DROWNED, NUMBERS, Number, of_known
from pulsify.trace.usage import ROLE, SIGNS, Count, Role, Use, Walk

# ---- roles of inputs


@NUMBERS("Sub")
def _difference(x: Number, y: Number) -> Number:
    if x is None or y is None:
        return -math.inf if y is not None and y >= -DROWNED else None
    return x - y


@NUMBERS("Sum")
def _total(*values: Number) -> Number:
    if any(v is not None and v <= DROWNED for v in values):
        return -math.inf
    return None if None in values else float(sum(v for v in values if v is not None))


@NUMBERS("BitwiseAnd")
def _bits_of_both(x: Number, y: Number) -> Number:
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
