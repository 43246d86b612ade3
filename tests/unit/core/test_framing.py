"""Rules of counting frames, beside a stream that is counted out; and frames that wait, beside one array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from pulsify.core.framing import NEVER, Backlog, Framing, Out, back, computed, given, left, pad, ready, whole_pulses
from tests.models import Array


@drawn(st.integers(1, 6), st.integers(0, 15), st.integers(0, 30), st.integers(0, 9), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_real_frames_are_those_of_the_stream(frames: int, delay: int, end: int, pulses: int, step: int) -> None:
    """Frames of a call by number, counted from the stream's first; those from 0 to the end are real."""
    out, numbers = Out(frames, delay), np.arange(frames * step) + pulses * frames - delay
    real = numbers[slice(*out.real(pulses, step, end))]
    np.testing.assert_array_equal(real, numbers[(numbers >= 0) & (numbers < end)])
    assert given(pulses + step, frames, delay, end) - given(pulses, frames, delay, end) == len(real)
    assert given(out.until(end), frames, delay, end) == end
    assert out.until(end) == 0 or given(out.until(end) - 1, frames, delay, end) < max(end, 1)
    assert out.real(out.settled + pulses, step, NEVER) == (0, frames * step)


def test_an_output_with_a_cap_never_settles() -> None:
    assert Out(4, 8, cap=100).settled == NEVER and Out(4, 8).settled == 2
    assert [Out(4, 3, cap=6).given(n) for n in range(4)] == [0, 1, 5, 6]


def test_nothing_is_computed_before_the_first_call_is_whole() -> None:
    assert [computed(n, 3) for n in range(5)] == [0, 0, 0, 3, 4] and computed(1, 1) == 1
    framing = Framing((2, 6), (Out(2, 1), Out(0, 0)), first=2)
    assert framing.pulses((4, 11)) == 0 and framing.pulses((5, 12)) == 2
    assert framing.needed((3, 9)) == 2 and Framing((1,), (Out(0, 0),)).needed((9,)) == 0


def test_one_padded_pulse_comes_at_the_end_at_least() -> None:
    assert [left(4, needed) for needed in (0, 4, 5, 7)] == [1, 1, 1, 3]


@pytest.mark.parametrize("multiple", [1, 4, 7])
def test_a_counter_is_set_back_by_what_the_model_does_not_notice(multiple: int) -> None:
    for position in range(100, 140):
        assert back(position, multiple) % multiple == 0 and 0 <= position // 2 - back(position, multiple) < multiple


def waiting(axis: int = 1, pulse: int = 3) -> Backlog:
    shape = [2, 2]
    shape[axis] = 0
    return Backlog(np.empty(shape, np.float32), axis, pulse)


def cut(x: Array, axis: int, begin: int, end: int) -> Array:
    return x.take(range(begin, end), axis)


@drawn(st.lists(st.tuples(st.sampled_from(["put", "take", "load"]), st.integers(0, 7)), max_size=20), st.integers(0, 1))
@settings(max_examples=100, deadline=None)
def test_frames_leave_in_the_order_they_came(steps: list[tuple[str, int]], axis: int) -> None:
    line = waiting(axis)
    x = (
        np.arange(400, dtype=np.float32).reshape(200, 2)
        if axis == 0
        else np.arange(400, dtype=np.float32).reshape(2, 200)
    )
    come = gone = 0
    for what, count in steps:
        if what == "put":
            line.put(cut(x, axis, come, come + count), count)
            come += count
        elif what == "take":
            count = min(count, come - gone)
            np.testing.assert_array_equal(line.take(count), cut(x, axis, gone, gone + count))
            gone += count
        else:
            into = np.full([2, 5] if axis else [5, 2], -1, np.float32)
            moved = line.load(into, min(count, 5))
            assert moved == min(count, 5, come - gone)
            np.testing.assert_array_equal(cut(into, axis, 0, moved), cut(x, axis, gone, gone + moved))
            assert (cut(into, axis, moved, 5) == -1).all()
            gone += moved
        assert line.frames == come - gone and ready([line], 2) is (come - gone >= 6)
        assert whole_pulses([line]) == (come - gone) // 3
        np.testing.assert_array_equal(line.all(), cut(x, axis, gone, come))


def test_a_pulse_that_was_taken_waits_first() -> None:
    line = waiting()
    line.put(np.ones((2, 2), np.float32), 2)
    line.unput(np.zeros((2, 3), np.float32))
    assert line.all()[0].tolist() == [0, 0, 0, 1, 1] and line.frames == 5
    line.clear()
    assert line.all().shape == (2, 0) and line.take(0).shape == (2, 0)


def test_what_is_left_of_a_chunk_is_no_longer_the_callers() -> None:
    line, chunk = waiting(), np.zeros((2, 5), np.float32)
    line.put(chunk, 5)
    line.take(3)
    line.own()
    chunk[:] = 1
    assert (line.all() == 0).all()


def test_floats_are_padded_and_whole_numbers_go_on() -> None:
    for dtype, at, wanted in (("f4", 2, [1, 2, -9, -9]), ("i8", 2, [1, 2, 2, 2]), ("i8", 0, [1, 2, 3, 4])):
        x = np.array([[1, 2, 3, 4]], dtype)
        pad(x, 1, at, -9.0)
        assert x.tolist() == [wanted]
