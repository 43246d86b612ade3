"""The count that a file carries says what `Length.at` says, to whoever has numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings

from pulsify.core.count import expression
from pulsify.core.length import Length
from tests.unit.core.test_length import lengths


def evaluate(expression: Any, s: int) -> Any:
    """As docs/format.md tells a reader to."""
    if isinstance(expression, list) and expression and isinstance(expression[0], str):
        return getattr(np, expression[0])(*(evaluate(e, s) for e in expression[1:]))
    return s if expression == "S" else expression


@settings(max_examples=80, derandomize=True, deadline=None)
@given(lengths())
def test_the_expression_is_the_number_of_frames(length: Length) -> None:
    written = expression(length)
    for s in range(40):
        assert evaluate(written, s) == max(length.at(s), 0)


def test_the_length_itself_is_just_its_name() -> None:
    assert expression(Length()) == "S"
    assert expression(Length().then(1, 3, 4)) == ["maximum", ["floor_divide", ["add", "S", 3], 4], 0]
