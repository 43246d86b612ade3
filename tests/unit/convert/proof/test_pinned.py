"""Rows of a known value at a place that moves: when are they the same at every length?"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.convert.known.series import Series, Unsure, constant, length_itself, subtract
from pulsify.convert.proof.numbers import follower
from pulsify.convert.proof.pinned import Settles, pinned
from pulsify.convert.proof.values import known_at
from pulsify.convert.questions import Questions
from tests.models import Array, model, node, weights
from tests.unit.convert.contexts import opened

GIVEN: dict[str, Array] = {
    "time": np.array(2), "n0": np.array(0), "n1": np.array(1), "n2": np.array([2]), "w": weights(1, 3),
    "scale": np.array(0.25, np.float32), "last": np.array([1]), "table": weights(4000, 2), "half": np.array(1000),
    "unit": np.array([0]), "many": np.array([1 << 40]),
}  # fmt: skip
NODES = [
    node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0), node("Range", "n0 t n1", "p"),
    node("Sub", "t p", "back"), node("Cast", "back", "f", to=1), node("Mul", "f scale", "g"), node("Sin", "g", "s"),
    node("Unsqueeze", "s last", "col"), node("MatMul", "col w", "rows"), node("Transpose", "rows", "turned"),
    node("Cast", "p", "fp", to=1), node("Sin", "fp", "sp"), node("Neg", "x", "y"),
    node("Sub", "half t", "from"), node("Unsqueeze", "from unit", "from1"),
    node("Slice", "table from1 many unit", "cut"), node("CumSum", "f n0", "sums"),
]  # fmt: skip


def asked(*wanted: str) -> Questions:
    floats = {"f", "g", "s", "col", "rows", "turned", "fp", "sp", "cut", "sums"}
    types: dict[str, Any] = {n: np.float32 if n in floats else np.int64 for n in wanted}
    needed, todo = set[str](), ["y", *wanted]
    while todo:
        name = todo.pop()
        for n in NODES:
            if name in n.output and n.name not in needed:
                needed.add(n.name)
                todo.extend(n.input)
    nodes: list[onnx.NodeProto] = [n for n in NODES if n.name in needed]
    used = {k: v for k, v in GIVEN.items() if any(k in n.input for n in nodes)}
    return opened(model(nodes, {"x": [1, 1, "T"]}, ["y", *wanted], used, dtypes=types)).ask


def end(back: int) -> Series:
    """The place so many frames before the end."""
    return subtract(length_itself(), constant(back))


@pytest.mark.parametrize(("name", "axis"), [("back", 0), ("s", 0), ("col", 0), ("rows", 0), ("turned", 1)])
def test_what_counts_from_the_end_is_the_same_at_a_place_that_moves_with_it(name: str, axis: int) -> None:
    ask = asked(name)
    found = pinned(follower(ask), name, axis, end(3))
    assert found.period == 1
    rows = [known_at(ask, name, s).array.take(s - 3, axis) for s in range(max(found.until, 4), 60)]
    assert all(np.array_equal(r, rows[0]) for r in rows)


@pytest.mark.parametrize("name", ["p", "sp"])
def test_what_counts_from_the_start_is_not(name: str) -> None:
    with pytest.raises(Unsure):
        pinned(follower(asked(name)), name, 0, end(3))


def test_what_counts_from_the_start_is_the_same_at_a_place_that_stays() -> None:
    assert pinned(follower(asked("sp")), "sp", 0, constant(5)).period == 1


def test_a_table_cut_at_a_place_that_moves_shows_the_row_that_stays() -> None:
    """table[1000 - t:] at place t - 3 is row 997 as long as the cut lies inside the table."""
    ask = asked("cut")
    at = end(3)
    found = pinned(follower(ask), "cut", 0, Series(at.values, at.horizon, Fraction(1), at.unit, longest=999))
    assert found.until <= 999
    for s in (max(found.until, 4), 500, 900):
        np.testing.assert_array_equal(known_at(ask, "cut", s).array[s - 3], GIVEN["table"][997])


def test_sums_over_time_cannot_be_followed_row_by_row() -> None:
    with pytest.raises(Unsure, match="cannot be followed"):
        pinned(follower(asked("sums")), "sums", 0, end(3))


def test_two_that_settle_do_so_where_both_have() -> None:
    both = Settles(5, 4, 100) | Settles(9, 6, 50)
    assert both == Settles(9, 12, 50)
