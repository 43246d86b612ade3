"""Comparisons, logic and choices, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping

from pulsify.frontend.model import Node
from pulsify.trace.evaluate import DIGITS, exact
from pulsify.trace.sides import NUMBERS, Number, of_known
from pulsify.trace.usage import ROLE, Count, Derived, Role, Use, Walk

# ---- roles of inputs


@NUMBERS("Where")
def _choice(condition: Number, x: Number, y: Number) -> Number:
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
