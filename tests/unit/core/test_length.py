"""How many frames a wire has: `at` is the definition, all else must agree with it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.core.length import Length, Table, constant

few = settings(max_examples=60, derandomize=True, deadline=None)
STEP = st.tuples(st.integers(1, 4), st.integers(-6, 6), st.sampled_from([1, 1, 2, 3, 4]))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any that never falls by a whole turn."""
    period = draw(st.integers(1, 5))
    return Table(period, draw(st.integers(0, 7)), tuple(draw(st.integers(0, 9)) for _ in range(period)))


@st.composite
def lengths(draw: st.DrawFn, ends: bool = True) -> Length:
    """Chains of steps behind S or a table. ends: with floors, values of short streams, and a cap."""
    length = Length(table=draw(st.none() | tables()))
    if ends and draw(st.booleans()):
        length = Length(length.steps, length.table, short=tuple(draw(st.lists(st.integers(0, 5), max_size=4))))
    if ends and draw(st.booleans()):
        length = Length(length.steps, length.table, short=length.short, cap=draw(st.integers(0, 30)))
    for m, c, d in draw(st.lists(STEP, max_size=3)):
        length = length.then(m, c, d, floor=ends and draw(st.booleans()))
    return length


@few
@given(lengths(), st.lists(st.integers(0, 60), max_size=12))
def test_each_is_at_for_many(length: Length, asked: list[int]) -> None:
    assert length.each(asked).tolist() == [length.at(s) for s in asked]


@few
@given(lengths(), STEP, st.booleans())
def test_then_is_the_step_done_on_the_number(length: Length, step: tuple[int, int, int], floor: bool) -> None:
    m, c, d = step
    after = length.then(m, c, d, floor)
    for s in range(40):
        want = (m * length.at(s) + c) // d
        assert after.at(s) == (max(want, 0) if floor else want)


def test_what_is_capped_and_then_cut_to_nothing_has_no_frames() -> None:
    """x[:3] behind which five frames are cut off: none are left, and not minus two."""
    cut = Length(cap=3).then(add=-5, floor=True)
    assert [cut.at(s) for s in (1, 5, 100)] == [0, 0, 0]
    assert cut.each([1, 5, 100]).tolist() == [0, 0, 0]


def test_steps_are_merged_only_where_nothing_is_rounded_between() -> None:
    assert Length().then(2).then(1, 3).steps == ((2, 3, 1),)
    assert Length().then(divide=2).then(2).steps == ((1, 0, 2), (2, 0, 1))
    assert Length().then(add=4).then(add=-4) == Length()
    assert Length().then(33, 40, 33).steps == ((1, 1, 1),)
    floored = Length().then(add=-4, floor=True)
    assert floored.then(add=4).at(1) == 4, "no frames, and then four"


@few
@given(lengths(ends=False), st.integers(0, 20))
def test_a_period_adds_the_rate_exactly(length: Length, s: int) -> None:
    grown = length.at(s + length.period) - length.at(s)
    assert grown == length.rate * length.period


@few
@given(lengths(ends=False), st.integers(1, 5))
def test_latest_end_is_the_largest_that_no_stream_contradicts(length: Length, pulse: int) -> None:
    p = length.rate * pulse
    seen = 3 * math.lcm(length.period, pulse) + pulse
    room = min(length.at(s) - n * p for n in range(seen // pulse) for s in range((n + 1) * pulse, seen + 1))
    assert length.latest_end(pulse) == math.floor(room)


@few
@given(lengths(), st.integers(1, 5))
def test_short_streams_are_never_promised_a_frame_they_lack(length: Length, pulse: int) -> None:
    if length.cap is not None:
        length = Length(length.steps, length.table, length.floors, length.short)
    p, end = length.rate * pulse, length.latest_end(pulse)
    for n in range(8):
        assert all(length.at(s) >= n * p + end for s in range((n + 1) * pulse, 8 * pulse + 8))


def test_latest_end_of_a_slice_at_the_end_holds_back_what_it_cuts() -> None:
    assert Length().latest_end(4) == 4
    assert Length().then(add=-2).latest_end(4) == 2, "x[:-2]: two frames must follow first"
    assert Length().then(add=3).latest_end(4) == 7, "padded in front: known earlier"
    assert Length().then(1, 3, 4).latest_end(4) == 1
    assert Length().then(divide=4).latest_end(1) == -1, "the first frame is there after four pulses"
    assert Length(short=(0, 0, 1)).latest_end(2) == 1, "a stream that ends after two frames has one"


@few
@given(lengths())
def test_behind_settled_nothing_special_happens(length: Length) -> None:
    if length.rate == 0:
        return
    low, past = length.settled, 40 * length.period
    if length.cap is None:
        assert all(length.at(s) == length.at(s, steady=True) for s in range(low, low + past))
    else:
        assert all(length.at(s) == length.cap for s in range(low, low + past))


def test_a_number_of_frames_that_falls_at_times_settles_where_it_has_risen_for_good() -> None:
    """Of 8, 1, 10, 3, 12, 5, ... frames five are cut off: there are three frames at length 0, none at 3."""
    falling = Length(table=Table(2, 2, (8, 1))).then(add=-5, floor=True)
    assert [falling.at(s) for s in range(6)] == [3, 0, 5, 0, 7, 0]
    assert falling.settled == 4
    capped = Length(table=Table(2, 2, (8, 1)), cap=10)
    assert [capped.at(s) for s in range(8, 12)] == [10, 9, 10, 10]
    assert capped.settled == 10


def test_settled_names_the_first_such_length() -> None:
    assert Length().settled == 1
    assert Length(short=(0, 3, 3)).settled == 3
    assert Length().then(add=-7, floor=True).settled == 7
    capped = Length(cap=9).then(2)
    assert capped.settled == 9
    assert [capped.at(s) for s in (8, 9, 10)] == [16, 18, 18]


@few
@given(lengths())
def test_json_and_back(length: Length) -> None:
    assert Length.from_json(length.to_json()) == length
    shared: list[Table] = []
    written = [length.to_json(shared), length.then(add=1).to_json(shared)]
    assert len(shared) <= 1, "a table is written once"
    assert [Length.from_json(w, shared) for w in written] == [length, length.then(add=1)]


def test_a_table_with_a_value_missing_is_turned_down() -> None:
    with pytest.raises(ValueError, match="period 3 has 2 values"):
        Table.from_json([3, 1, [0, 1]])


def test_a_table_goes_on_by_its_growth_at_the_period() -> None:
    table = Table(3, 2, (0, 1, 1))
    assert [table.at(s) for s in range(7)] == [0, 1, 1, 2, 3, 3, 4]
    assert Length(table=table).rate == Fraction(2, 3)
    assert Length(table=table).period == 3


def test_a_constant_has_no_rate() -> None:
    five = constant(5)
    assert (five.at(0), five.at(10**6), five.rate) == (5, 5, 0)


def test_repr_is_the_formula_and_stays_short() -> None:
    assert repr(Length()) == "Length(S)"
    assert repr(Length().then(1, 3, 4)) == "Length((S + 3) // 4)"
    assert repr(Length(cap=9).then(add=-2, floor=True)) == "Length(min(max(S - 2, 0), 7))"
    assert len(repr(Length(table=Table(256, 1, tuple(range(256))), short=tuple(range(99))))) < 160


@few
@given(lengths())
def test_repr_computes_what_at_computes(length: Length) -> None:
    """The formula as it is shown, read by Python."""
    if length.table is not None or length.short:
        return
    shown = repr(length).removeprefix("Length")
    for s in (0, 1, 5, 17):
        assert eval(shown, {"S": s, "max": max, "min": min}) == length.at(s)


def test_each_takes_none_and_keeps_whole_numbers() -> None:
    assert Length().each([]).shape == (0,)
    assert Length().then(3).each(np.array([7])).dtype == np.int64
