"""Cells: constants that win over data, and what a row looks at behind a softmax."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.convert.mask_cells import Cells, combine, constants, data, softmax
from tests.models import Array

HIDDEN = np.array([[False, True], [False, False]])


def filled(value: float) -> Cells:
    return constants(np.array([[value]], np.float32), (0, 1))


def shown(low: float) -> Cells:
    """Scores of data, hidden in one cell by a low number."""
    mask = constants(HIDDEN, (0, 1))
    return combine("Where", [mask, filled(low), data()], lambda v: v[0])


@pytest.mark.parametrize(
    ("op", "value", "live", "result"),
    [
        ("Mul", 0.0, False, 0.0),
        ("Mul", 2.0, True, None),
        ("And", 0.0, False, 0.0),
        ("And", 1.0, True, None),
        ("Or", 1.0, False, 1.0),
        ("Or", 0.0, True, None),
        ("Add", -1e9, False, -1e9),
        ("Add", -1000.0, True, None),  # a bias may be as low as that
        ("Min", -np.inf, False, -np.inf),
        ("Max", -np.inf, True, None),
    ],
)
def test_some_constants_decide_whatever_the_data_are(op: str, value: float, live: bool, result: float | None) -> None:
    def run(values: list[Array]) -> Array:
        return values[0] + values[1]

    for cells in ([filled(value), data()], [data(), filled(value)]):
        made = combine(op, cells, run)
        assert made.live.all() == live
        assert result is None or made.value.item() == result


def test_constants_are_computed_with() -> None:
    made = combine("Add", [filled(2), filled(3)], lambda v: v[0] + v[1])
    assert not made.live.any() and made.value.item() == 5


def test_a_choice_by_a_known_mask_is_known_where_what_it_chooses_is() -> None:
    made = shown(-np.inf)
    assert (made.live == ~HIDDEN).all() and made.value[0, 1] == -np.inf and not made.soft


def test_a_choice_by_data_may_hide_a_whole_row() -> None:
    assert combine("Where", [data(), data(), filled(-1e4)], lambda v: v[0]).soft
    assert not combine("Where", [data(), data(), filled(-np.inf)], lambda v: v[0]).soft
    assert not combine("Where", [data(), filled(3), filled(3)], lambda v: v[0]).live.any(), "both branches are alike"


@pytest.mark.parametrize("low", [-np.inf, -1e9, -600.0])
def test_low_scores_have_no_weight_beside_data(low: float) -> None:
    made = softmax(shown(low), 1)
    assert (made.needed == ~HIDDEN).all()


def test_a_score_that_is_not_that_low_counts() -> None:
    assert softmax(shown(-100.0), 1).needed.all()


def test_a_row_without_data_weighs_its_constants() -> None:
    made = softmax(constants(np.array([[0.0, 0.0], [0.0, -1e9]], np.float32), (0, 1)), 1)
    assert made.value.tolist() == [[0.5, 0.5], [1.0, 0.0]] and not made.live.any()


def test_what_a_softmax_has_weighed_is_needed_even_if_it_is_hidden_later() -> None:
    weights = softmax(Cells(np.ones((2, 2), bool), np.zeros((2, 2), np.float32)), 1)
    later = combine("Where", [constants(HIDDEN, (0, 1)), filled(0), weights], lambda v: v[0])
    assert not later.live[0, 1] and later.needed.all()


def test_rows_and_columns_can_be_exchanged() -> None:
    assert (shown(-np.inf).turned.live == ~HIDDEN.T).all()


def test_a_cell_is_constant_only_if_all_heads_agree_or_are_low() -> None:
    heads = np.array([[[1, 2], [-1e9, 0]], [[1, 3], [-1e8, 0]]], np.float32)
    made = constants(heads, (1, 2))
    assert made.live.tolist() == [[False, True], [False, False]]


def test_an_axis_that_is_not_there_is_one_wide() -> None:
    assert constants(np.array([1, 0, 1]), (None, 0)).value.shape == (1, 3)
    assert constants(np.array([1, 0, 1]), (0, None)).value.shape == (3, 1)
