"""Sizes that follow from the length: slices as Python has them, shapes as a reshape gives them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from pulsify.lengths.series import Series, Unsure, constant, length_itself
from pulsify.lengths.sizes import as_much_ahead, as_target, bounds, floored, product, whole_item

LENGTHS = range(1, 30)
NUMBERS = (
    constant(0),
    constant(3),
    constant(-2),
    constant(40),
    length_itself(),
    Series(np.array([-4]), growth=Fraction(1)),
)


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_slices_are_those_of_python(step: int) -> None:
    for start, stop in itertools.product(NUMBERS, repeat=2):
        first, count = bounds(start, stop, step, length_itself())
        for n in LENGTHS:
            a, b = int(start.at(n)), int(stop.at(n))
            if step < 0 and (a < -n or b < -n):
                continue  # behind the first entry, as ONNX has it and Python has not
            entries = range(n)[a:b:step]
            assert count.at(n) == len(entries), (start, stop, n)
            assert not entries or first.at(n) == entries[0], (start, stop, n)


def test_division_goes_downwards() -> None:
    for by in (2, 3, 7):
        number = floored(Series(np.array([-9]), growth=Fraction(1)), constant(by))
        assert [number.at(n) for n in LENGTHS] == [(n - 10) // by for n in LENGTHS]


def test_what_a_reshape_leaves_open_is_what_is_left() -> None:
    time = length_itself()
    shape = as_target([constant(0), constant(-1), constant(2)], (constant(3), time, constant(8)), 1)
    assert [[s.at(n) for s in shape] for n in (1, 5)] == [[3, 4, 2], [3, 20, 2]]
    with pytest.raises(Unsure, match="split or merged"):
        as_target([constant(-1), length_itself(per=2)], (constant(2), time), 1)
    with pytest.raises(Unsure, match="-1 at some lengths only"):
        as_target([Series(np.array([-1, 2]), 1), time], (time, constant(2)), 1)


def test_as_much_lies_ahead_whatever_axes_it_is_on() -> None:
    time, before = length_itself(), (constant(6), length_itself(), constant(2))
    assert as_much_ahead(before, 1, (constant(2), constant(3), time), 2)
    assert not as_much_ahead(before, 1, (constant(2), time, constant(3)), 1)
    assert [product(before, 1).at(n) for n in (1, 4)] == [12, 48]


def test_an_axis_is_the_same_at_every_length() -> None:
    assert whole_item(constant(-1)) == -1
    with pytest.raises(Unsure):
        whole_item(length_itself())
