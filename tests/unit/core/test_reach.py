"""Which frames an output frame reads, against enumeration."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.core.reach import POINTWISE, Reach, fit, shift

few = settings(max_examples=80, derandomize=True, deadline=None)


@st.composite
def reaches(draw: st.DrawFn) -> Reach:
    lo = draw(st.integers(-9, 9))
    return Reach(draw(st.integers(1, 5)), draw(st.integers(1, 5)), lo, lo + draw(st.integers(0, 9)))


@few
@given(reaches(), st.integers(-12, 12), st.integers(1, 9))
def test_span_covers_just_what_the_frames_read(reach: Reach, a: int, count: int) -> None:
    read = [f for k in range(a, a + count) for f in range(reach.first(k), reach.last(k) + 1)]
    assert reach.span(a, a + count) == (min(read), max(read) + 1)


@few
@given(reaches(), st.integers(-12, 12))
def test_latest_end_is_the_last_that_has_all_it_reads(reach: Reach, b: int) -> None:
    end = reach.latest_end(b)
    assert reach.last(end - 1) < b, "the last frame of it reads what is there"
    assert reach.last(end) >= b, "one more does not"


@few
@given(reaches(), st.integers(1, 8))
def test_fit_covers_and_is_tight(reach: Reach, count: int) -> None:
    firsts, lasts = [reach.first(k) for k in range(count)], [reach.last(k) for k in range(count)]
    found = fit(firsts, lasts, Fraction(reach.num, reach.den))
    assert all(found.first(k) <= firsts[k] and found.last(k) >= lasts[k] for k in range(count))
    later = Reach(found.num, found.den, found.lo + 1, found.hi)
    earlier = Reach(found.num, found.den, found.lo, found.hi - 1)
    assert any(later.first(k) > firsts[k] for k in range(count))
    assert any(earlier.last(k) < lasts[k] for k in range(count))


def test_fit_of_every_third_frame_of_an_upsampled_wire() -> None:
    assert fit([0, 0, 1, 2, 2, 3], [0, 1, 2, 2, 3, 4], Fraction(2, 3)) == Reach(2, 3, 0, 2)


@pytest.mark.parametrize(("frames", "window"), [(-3, (-3, 1)), (0, (0, 4)), (5, (5, 9))])
def test_a_shift_moves_the_window(frames: int, window: tuple[int, int]) -> None:
    assert shift(frames).span(0, 4) == window
    assert shift(frames).latest_end(4) == 4 - frames
    assert shift(frames).pointwise is (frames == 0)


def test_ratio_is_output_frames_by_input_frame() -> None:
    assert Reach(num=4).ratio == Fraction(1, 4), "a stride of four"
    assert Reach(den=4).ratio == 4, "upsampled by four"
    assert POINTWISE.pointwise and not Reach(2, 2).pointwise
