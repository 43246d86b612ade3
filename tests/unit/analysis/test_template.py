"""Templates: a known array over rows and columns, cut out once and the same at every pulse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsify.analysis import template
from pulsify.analysis.facts import Window
from pulsify.analysis.template import _cut, find, in_step, pulses, whole
from tests.models import Array

I, J = np.arange(40)[:, None], np.arange(40)[None]
BAND: Array = (J <= I) & (I - J <= 5)
CHUNKS: Array = (I // 6 == J // 6) & (J <= I)
WINDOWS = Window(4, 0, 4), Window(4, -5, 4)


def test_a_band_has_one_phase_and_is_cut_out_as_it_is() -> None:
    found = find(BAND, (0, 1), WINDOWS)
    assert found is not None and len(found.phases) == 1
    np.testing.assert_array_equal(found.phases[0], BAND[8:12, 3:12])
    assert found.fits(BAND) and found.fits(BAND[:13, :13]), "at other lengths too, up to both ends"


def test_chunks_that_are_no_multiple_of_the_pulse_have_phases() -> None:
    found = find(CHUNKS, (0, 1), WINDOWS)
    assert found is not None and len(found.phases) == 3, "six frames and four meet again after twelve"
    for n in (3, 4, 5, 6):
        wanted = CHUNKS[4 * n : 4 * n + 4, 4 * n - 5 : 4 * n + 4]
        np.testing.assert_array_equal(found.phases[n % 3], wanted)


def test_what_never_repeats_has_no_template() -> None:
    assert find((I * J).astype(np.float32), (0, 1), WINDOWS) is None


def test_an_array_that_changes_late_is_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for every number of phases: counted, not timed."""
    at = np.arange(2000)
    late: Array = (at[:, None] - at[None] <= np.where(at < 1900, 5, 3)[:, None]) & (at[None] <= at[:, None])
    windows, cuts = (Window(1, 0, 1), Window(1, -5, 1)), [0]

    def counted(*args: Any) -> Array:
        cuts[0] += 1
        return _cut(*args)

    monkeypatch.setattr(template, "_cut", counted)
    assert find(late, (0, 1), windows) is None
    assert cuts[0] <= 2 * 2000


def test_a_template_departs_where_the_array_does() -> None:
    found = find(BAND, (0, 1), WINDOWS)
    changed = BAND.copy()
    changed[39, 39] = False
    assert found is not None and not found.fits(changed)


@pytest.mark.parametrize("late", [0, 1, 2, 5])
def test_windows_that_come_late_see_the_same_later(late: int) -> None:
    rows, cols = (Window(w.p, w.start - late * w.p, w.end - late * w.p) for w in WINDOWS)
    assert in_step((rows, cols)) == (WINDOWS, late)
    found, own = find(CHUNKS, (0, 1), (rows, cols)), find(CHUNKS, (0, 1), WINDOWS)
    assert found is not None and own is not None
    np.testing.assert_array_equal(np.roll(np.stack(own.phases), late, axis=0), np.stack(found.phases))


def test_windows_that_come_early_stay() -> None:
    early = (Window(4, 2, 6), Window(4, -3, 6))
    assert in_step(early) == (early, 0)


def test_nan_is_equal_to_itself() -> None:
    band = np.where(BAND, np.nan, 0).astype(np.float32)
    found = find(band, (0, 1), WINDOWS)
    assert found is not None and found.fits(band)


@pytest.mark.parametrize(("size", "inside"), [(40, list(range(2, 10))), (12, [2]), (8, [])])
def test_whole_pulses_lie_inside_the_array(size: int, inside: list[int]) -> None:
    assert whole(BAND[:size, :size], (0, 1), WINDOWS) == inside
    assert pulses(BAND[:size, :size], (0, 1), WINDOWS) >= size // 4
