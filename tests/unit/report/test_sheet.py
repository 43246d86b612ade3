"""Tables that fit: numbers never shrink, labels lose their middle, text goes on below."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsify.report.sheet import ELLIPSIS, Column, Sheet, shortened


def lines(sheet: Sheet, room: int) -> list[str]:
    return [line.plain for line in sheet.lines(room)]


def sheet() -> Sheet:
    made = Sheet([Column("state", "label"), Column("bytes", "number"), Column("what it is for", "text")])
    made.add("state_009_block_3_attention_residual", "1,234,567", "keys of the third block")
    made.add("short", "8", "")
    return made


@pytest.mark.parametrize("room", [200, 80, 60, 50, 40, 30, 10])
def test_a_number_is_whole_however_little_room_there_is(room: int) -> None:
    shown = lines(sheet(), room)
    assert any("1,234,567" in line for line in shown)
    assert all(line == line.rstrip() for line in shown)


@pytest.mark.parametrize("room", [200, 80, 60, 50, 40])
def test_lines_are_no_longer_than_the_room(room: int) -> None:
    assert max(map(len, lines(sheet(), room))) <= room


def test_with_room_nothing_is_lost_and_numbers_stand_to_the_right() -> None:
    shown = lines(sheet(), 200)
    assert shown[2].split("   ")[0] == "state_009_block_3_attention_residual"
    at = shown[2].index("1,234,567") + len("1,234,567")
    assert shown[3][:at].endswith("        8"), "ends meet"


def test_labels_give_way_before_text() -> None:
    shown = lines(sheet(), 60)
    assert ELLIPSIS in shown[2] and "keys of the third block" in shown[2]


def test_text_goes_on_in_the_next_line_between_words() -> None:
    shown = lines(sheet(), 40)
    words = " ".join(line[-12:] for line in shown)
    assert all(word in words for word in ("keys", "third", "block")) and len(shown) > 4


def test_a_row_that_spans_a_blank_one_and_a_margin() -> None:
    made = Sheet([Column("a"), Column("b")], headed=False, margin=2)
    made.add("one", "two")
    made.add()
    made.add(spans="... 3 more")
    assert lines(made, 80) == ["  one   two", "", "  ... 3 more"]


@given(st.text("abcdef", max_size=40), st.integers(1, 50))
def test_a_shortened_label_has_its_ends_and_the_width(label: str, width: int) -> None:
    short = shortened(label, width)
    assert len(short) == min(len(label), width)
    if len(label) > width:
        left, _, right = short.partition(ELLIPSIS)
        assert label.startswith(left) and label.endswith(right) and ELLIPSIS in short
    else:
        assert short == label
