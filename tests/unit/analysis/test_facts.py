"""Windows and layouts: what the small values say of themselves."""

from __future__ import annotations

import pytest

from pulsify.analysis.facts import ALL, Layout, Window
from pulsify.plan.context import broadcast_axis


def test_a_window_has_as_many_frames_as_lie_between() -> None:
    assert Window(4, -2, 3).frames == 5 and not Window(4, -2, 3).grows


def test_a_window_since_the_start_grows() -> None:
    assert Window(4, ALL, 4).grows and Window(4, ALL, 4).frames == -1


@pytest.mark.parametrize(
    ("layout", "batch", "shape"),
    [
        (Layout((1, 3, 0), 2), None, [1, 3, 5]),
        (Layout((-1, 0, 3), 1), 0, [-1, 5, 3]),
        (Layout((-4, 0), 1), 0, [-1, 5]),
        (Layout((0, 3), 0, (2, 2)), None, [10, 3]),  # two rows folded in front
        (Layout((0, 3), 0, (3, 2)), None, [-1, 3]),  # as many as there are streams
    ],
)
def test_a_layout_says_how_a_window_is_shaped(layout: Layout, batch: int | None, shape: list[int]) -> None:
    assert layout.batch == batch and layout.shape(5) == shape
    assert layout.folded == (layout.outer != (1, 1)) and layout.rank == len(shape)


def test_broadcasting_moves_time_by_the_axes_put_in_front() -> None:
    assert broadcast_axis(Layout((3, 0), 1), 4) == 3
