"""Which frames are read, as conversion noted it."""

from __future__ import annotations

import pytest

from pulsify.core.reach import Reach, shift
from pulsify.plan.trail import Look, look


@pytest.mark.parametrize("reach", [Reach(), shift(-3), Reach(2, 1, -1, 2), Reach(1, 4, -1, 3), Reach(3, 2, -2, 5)])
def test_a_look_reads_what_its_reach_reads(reach: Reach) -> None:
    found = look("x", reach)
    for first in range(-7, 8):
        for last in range(first, first + 6):
            frames = range(first, last + 1)
            wanted = min(reach.first(k) for k in frames), max(reach.last(k) for k in frames)
            assert found.span(first, last) == wanted


def test_rows_of_a_chunk_read_alike_and_the_next_chunk_further_on() -> None:
    chunks = Look("x", ((-4, 3), (-4, 3), (-4, 3), (-4, 3)), 4)
    assert chunks.span(5, 5) == (0, 7) and chunks.span(3, 4) == (-4, 7)
    uneven = Look("x", ((0, 9), (-8, 1)), 2)
    assert uneven.span(2, 3) == (-6, 11), "the first row reads least far back, the second least far ahead"
