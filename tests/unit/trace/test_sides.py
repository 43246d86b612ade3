"""Values that are one thing within a length and another after it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pulsify.trace.sides import Number, Sides, combined, result

MASK, PADDING = Sides(1.0, 0.0), Sides(0.0, 1.0)
DATA = None


@pytest.mark.parametrize(
    ("op", "values", "want"),
    [
        ("And", [None, 0.0], 0.0), ("And", [None, 1.0], None), ("Or", [1.0, None], 1.0), ("Mul", [None, 0.0], 0.0),
        ("Mul", [None, 2.0], None), ("Add", [None, -1e4], -math.inf), ("Add", [None, -1.0], None),
        ("Sub", [None, 1e9], -math.inf), ("Sub", [1.0, 1.0], 0.0), ("Log", [0.0], -math.inf), ("Log", [1.0], 0.0),
        ("Where", [1.0, None, 5.0], None), ("Where", [0.0, None, 5.0], 5.0), ("Where", [None, 5.0, 5.0], 5.0),
        ("Where", [None, 5.0, 4.0], None), ("Div", [0.0, None], 0.0), ("NoSuchOperator", [1.0], None),
        ("Mul", [0.0, -math.inf], 0.0), ("Min", [None, -1e9], -math.inf), ("Sub", [-1e9, None], -math.inf),
        ("Sub", [1e9, None], None), ("Sum", [None, 1.0, -1e9], -math.inf), ("BitwiseAnd", [None, 0.0], 0.0),
        ("LessOrEqual", [1.0, 1.0], 1.0), ("CastLike", [2.0, None], 2.0), ("Pow", [-8.0, 2.0], 64.0),
    ],
)  # fmt: skip
def test_what_one_operand_decides(op: str, values: list[Number], want: Number) -> None:
    assert result(op, values) == want


@pytest.mark.parametrize(
    ("op", "operands", "want"),
    [
        ("Not", [MASK], PADDING),
        ("Sub", [1.0, MASK], PADDING),
        ("Mul", [PADDING, -1e4], Sides(0.0, -1e4)),
        ("Add", [DATA, Sides(0.0, -1e4)], Sides(None, -math.inf)),
        ("Where", [MASK, DATA, 0.0], Sides(None, 0.0)),
        ("Where", [MASK, DATA, DATA], Sides(None, None)),
        ("Where", [PADDING, -math.inf, DATA], Sides(None, -math.inf)),
        ("Where", [MASK, 0.0, DATA], Sides(0.0, None)),
        ("And", [MASK, MASK], MASK),  # rows and columns: a cell with one of them after the length is masked
        ("Or", [PADDING, PADDING], PADDING),
        ("And", [MASK, DATA], Sides(None, 0.0)),  # a mask of its own as well
    ],
)  # fmt: skip
def test_both_sides_are_followed(op: str, operands: list[Any], want: Sides) -> None:
    assert combined(op, operands, boolean=op in ("Not", "And", "Or")) == want


def test_a_cell_that_is_padding_by_one_axis_only_must_agree() -> None:
    assert combined("And", [PADDING, PADDING], True) == Sides(0.0, None)
