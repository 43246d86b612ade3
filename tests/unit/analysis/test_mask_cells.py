"""Cells: constants that win over data, and what a row looks at behind a softmax."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.analysis.mask_cells import Cells, combine, constants, data, joined, mixed, softmax
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
        ("Add", -1e9, True, -1e9),  # what was added
        ("Add", -np.inf, False, -np.inf),
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
    assert (made.live == ~HIDDEN).all() and made.value[0, 1] == -np.inf


@pytest.mark.parametrize(
    ("hidden", "masked", "soft"),
    [(-1e4, -1e4, True), (-1e4, -1e9, False), (-1e4, -np.inf, False), (-np.inf, -1e9, True), (-np.inf, -np.inf, False)],
)
def test_a_choice_by_data_may_hide_a_whole_row(hidden: float, masked: float, soft: bool) -> None:
    """Batch then looks at what a mask hides as well, if that is not lower still."""
    scores = combine("Where", [data(), data(), filled(hidden)], lambda v: v[0])
    cells = combine("Where", [constants(HIDDEN, (0, 1)), filled(masked), scores], lambda v: v[0])
    assert softmax(cells.spread((2, 2)), 1).soft == soft


def test_weights_that_the_same_data_set_to_zero_hide_nothing_else() -> None:
    mask = combine("Or", [constants(HIDDEN, (0, 1)), data()], lambda v: v[0])
    scores = combine("Where", [mask, filled(-1e4), data()], lambda v: v[0], [("m", True), None, None])
    weights = softmax(scores, 1)
    assert weights.soft
    for name, truth, soft in (("m", True, False), ("m", False, True), ("other", True, True)):
        assert combine("Where", [mask, filled(0), weights], lambda v: v[0], [(name, truth), None, None]).soft == soft
    assert combine("Mul", [weights, filled(0.5)], lambda v: v[0] * v[1]).soft


def test_both_branches_alike() -> None:
    assert not combine("Where", [data(), filled(3), filled(3)], lambda v: v[0]).live.any()


@pytest.mark.parametrize(("low", "counts"), [(-510.0, True), (-2400.0, True), (-3000.0, False)])
def test_a_mask_is_low_beside_what_was_added_to_the_scores(low: float, counts: bool) -> None:
    scores = combine("Add", [data(), filled(-2000.0)], lambda v: v[0] + v[1])
    made = combine("Where", [constants(HIDDEN, (0, 1)), filled(low), scores], lambda v: v[0])
    assert softmax(made.spread((2, 2)), 1).needed.all() == counts


def test_far_down_some_operators_are_level() -> None:
    low = combine("Add", [data(), filled(-1e9)], lambda v: v[0] + v[1])
    assert not combine("Relu", [low], lambda v: np.maximum(v[0], 0)).live.any()
    assert combine("Abs", [low], lambda v: np.abs(v[0])).live.all()
    assert combine("Equal", [low, filled(-1e9)], lambda v: v[0] == v[1]).live.all()


def test_what_is_normalised_along_the_rows_is_told_apart() -> None:
    made = softmax(shown(-np.inf), 0)
    assert made.across is not None and made.weighed is None
    assert made.turned.across is None and made.turned.weighed is not None


def test_the_logarithm_of_a_weight_counts_however_low_it_is() -> None:
    assert softmax(shown(-1e9), 1, log=True).needed.all()
    assert (softmax(shown(-np.inf), 1, log=True).live == ~HIDDEN).all()


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
    heads = np.array([[[1, 2], [-1e4, 0]], [[1, 3], [-1e4 - 9, 0]]], np.float32)
    made = constants(heads, (1, 2))
    assert made.live.tolist() == [[False, True], [False, False]]


def test_an_axis_that_is_not_there_is_one_wide() -> None:
    assert constants(np.array([1, 0, 1]), (None, 0)).value.shape == (1, 3)
    assert constants(np.array([1, 0, 1]), (0, None)).value.shape == (3, 1)


@pytest.mark.parametrize(("op", "value"), [("Sub", -np.inf), ("Div", 0.0)])
def test_of_what_is_taken_off_or_divided_the_first_decides(op: str, value: float) -> None:
    first, second = (combine(op, c, lambda v: v[0]) for c in ([filled(value), data()], [data(), filled(value)]))
    assert not first.live.any() and first.value.item() == value
    assert second.live.all()


def by_data(low: float, own: bool) -> Cells:
    """Scores of two frames, hidden by data (not a frame's own, if `own`), and by a mask where HIDDEN."""
    kept = combine("Or", [data(), constants(np.eye(2) * own, (0, 1))], lambda v: v[0] + v[1])
    scores = combine("Where", [kept, data(), filled(low)], lambda v: v[0], [("kept", True), None, None])
    return combine("Where", [constants(HIDDEN, (0, 1)), filled(low), scores], lambda v: v[0])


def test_rows_that_see_themselves_are_never_hidden_by_data() -> None:
    assert softmax(by_data(-1e4, own=False), 1).soft
    found = softmax(by_data(-1e4, own=True), 1)
    assert not found.soft and (found.live == ~HIDDEN).all()


@pytest.mark.parametrize("factor", [1e9, -1e9])
def test_a_mask_of_data_times_a_large_number_is_nowhere(factor: float) -> None:
    """Whatever is added to it: it may be none of it, or all."""
    mask = combine("Mul", [data(), filled(factor)], lambda v: v[0] * v[1])
    moved = combine("Add", [mask, filled(-factor)], lambda v: v[0] + v[1])
    assert moved.live.all() and np.isnan(moved.value).all() and moved.hidden is not None and moved.hidden.all()


def test_heads_side_by_side_are_constant_where_all_are_so_alike() -> None:
    one = constants(np.array([[0, -np.inf, 3, -np.inf]]), (0, 1))
    other = constants(np.array([[0, -np.inf, 4, 0]]), (0, 1))
    assert joined([one, other]).live.tolist() == [[False, False, True, True]]


def test_heads_added_up() -> None:
    found = mixed(shown(2.0), lambda v: 3 * v, keeps=False)
    assert found.value[0, 1] == 6 and (found.live == ~HIDDEN).all()


def test_some_weight_of_a_row_is_more_than_nothing() -> None:
    assert softmax(shown(-np.inf), 1).above == 0
    assert combine("Add", [softmax(shown(-np.inf), 1), data()], lambda v: v[0]).above == -np.inf


def test_what_is_no_number_spoils_a_sum_with_data_and_is_all_that_a_row_without_data_has() -> None:
    value = np.array([[np.nan, 0], [np.nan, np.nan]], np.float32)
    found = Cells(np.array([[False, True], [False, False]]), value)
    assert found.needed.tolist() == [[True, True], [False, False]]
