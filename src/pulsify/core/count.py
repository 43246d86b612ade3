"""How many frames there are at a length, written down so that whoever runs the file needs no arithmetic of ours.

    ["floor_divide", ["add", "S", 3], 4]        floor((S + 3) / 4), S being the length of the stream

Nested lists: the first of them names a function of numpy, "S" is the length, all else is a number or a list of numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsify.core.length import Length

Expression = Any  # "S", a number, numbers, or [function, expression, ...]


def expression(length: Length) -> Expression:
    """What `length.at` computes, and never less than nothing."""
    x: Expression = "S"
    if length.table is not None:
        period = length.table.period
        turns = ["multiply", ["floor_divide", "S", period], length.table.growth]
        x = ["add", turns, ["take", list(length.table.values), ["mod", "S", period]]]
    for i, (m, c, d) in enumerate(length.steps):
        x = x if m == 1 else ["multiply", x, m]
        x = ["add", x, c] if c else x
        x = x if d == 1 else ["floor_divide", x, d]
        x = ["maximum", x, 0] if i in length.floors else x
    x = x if length.cap is None else ["minimum", x, length.cap]
    if length.short:
        last = len(length.short) - 1
        own = ["take", list(length.short), ["minimum", "S", last]]
        x = ["where", ["less_equal", "S", last], own, x]
    return x if x == "S" else ["maximum", x, 0]
