"""A picture of a stream: every frame is given out once, none before it has come."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.core.length import Length
from pulsify.report.timeline import MOST_ROWS, timeline
from tests.unit.specs import a_stream, an_output


@given(pulse=st.integers(1, 9), delay=st.integers(0, 12), length=st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_all_that_comes_in_comes_out(pulse: int, delay: int, length: int) -> None:
    spec = a_stream(pulse, outputs=(an_output(dims=(1, 2, pulse), delay=delay),))
    rows = timeline(spec, length)
    pulses = max(-(-length // pulse), -(-(length + delay) // pulse))
    if pulses > MOST_ROWS:
        assert rows == []
        return
    numbers = [note.replace("in,", "").replace("out", "").split() for _, _, note in rows]
    assert sum(int(i) for i, _ in numbers) == sum(int(o) for _, o in numbers) == length
    assert len(rows) == pulses and all(label.startswith(("pulse", "flush")) for label, _, _ in rows)


def test_frames_held_back_are_dots_and_the_end_brings_them() -> None:
    spec = a_stream(4, outputs=(an_output(dims=(1, 2, 4), delay=2),))
    assert timeline(spec, 8, width=24) == [
        ("pulse 0", "####....", "    4 in,    2 out"),
        ("pulse 1", "    ########....", "    4 in,    4 out"),
        ("flush", "            ####", "    0 in,    2 out"),
    ]


def test_an_opening_is_one_row_of_several_pulses() -> None:
    spec = a_stream(2, opening=3, outputs=(an_output(dims=(1, 2, 2), delay=1),))
    assert timeline(spec, 9, width=24) == [
        ("opening", "##########..", "    6 in,    5 out"),
        ("pulse 1", "          ####..", "    2 in,    2 out"),
        ("flush", "              ####", "    1 in,    2 out"),
    ]
    assert timeline(spec, 4)[0][0] == "flush"


def test_half_as_many_frames_stand_for_as_much_time() -> None:
    spec = a_stream(4, outputs=(an_output(dims=(1, 2, 2), rate=Fraction(1, 2), length=Length().then(1, 0, 2)),))
    (first, second) = timeline(spec, 8, width=16)
    assert first[1] == "########" and second[1] == " " * 8 + "########" and "2 out" in first[2]


def test_without_frames_there_is_nothing_to_draw() -> None:
    last = replace(an_output(), axis=None, frames=0)
    assert timeline(a_stream(outputs=(last,)), 8) == []
    assert timeline(a_stream(1, dims=(1, 2, 1)), MOST_ROWS + 1) == []
