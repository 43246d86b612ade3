"""Which streams of a pool may be computed together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsify.backends.grouping import alike, apart, at_most
from pulsify.backends.seam import Which


def places(groups: list[Which], count: int) -> list[list[int]]:
    return [np.arange(count)[group].tolist() for group in groups]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=20))
def test_all_of_a_kind_once_and_the_first_comes_first(keys: list[tuple[int, int]]) -> None:
    wanted: dict[tuple[int, int], list[int]] = {}
    for i, key in enumerate(keys):
        wanted.setdefault(key, []).append(i)
    a, b = np.array([k for k, _ in keys], int), np.array([k for _, k in keys], int)
    assert places(alike(a, b), len(keys)) == list(wanted.values())


def test_one_kind_is_a_slice() -> None:
    """So that nothing is copied."""
    assert alike(np.zeros(5), np.ones(5)) == [slice(0, 5)]
    assert alike(np.zeros(0)) == []


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 10])
def test_in_pieces(largest: int) -> None:
    groups: list[Which] = [slice(0, 5), np.array([9, 5, 7, 6, 8])]
    found = places(at_most(groups, largest), 10)
    assert all(len(part) <= largest for part in found)
    assert [i for part in found for i in part] == [0, 1, 2, 3, 4, 9, 5, 7, 6, 8]
    assert places(apart(3), 3) == [[0], [1], [2]]
