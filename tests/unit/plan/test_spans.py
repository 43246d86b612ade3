"""Spans: which columns rows look at, some rows at a time."""

from __future__ import annotations

import numpy as np

from pulsify.plan.spans import joined, spans

LOOKED = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]], bool)


def test_rows_that_look_at_nothing_are_left_out() -> None:
    found = spans(LOOKED)
    assert (found.rows.tolist(), found.first.tolist(), found.last.tolist()) == ([1, 2], [0, 3], [2, 3])
    assert found.count.tolist() == [2, 1] and not found.all_before


def test_parts_are_the_whole() -> None:
    whole, parts = spans(LOOKED), joined([spans(LOOKED[:2]), spans(LOOKED[2:], 2)])
    assert whole.shape == parts.shape
    for what in ("rows", "first", "last", "count"):
        np.testing.assert_array_equal(getattr(parts, what), getattr(whole, what))


def test_all_columns_before_the_last() -> None:
    lower = np.tril(np.ones((3, 3), bool))
    assert spans(lower).all_before and (spans(lower).mask == lower).all()
    assert not spans(lower[:, ::-1]).all_before
