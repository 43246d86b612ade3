"""Units to text, piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsify.asr.greedy import Token
from pulsify.asr.text import SPACE, Vocabulary, Word, Words, read_vocabulary
from pulsify.core.errors import InvalidModel

PIECES = Vocabulary((f"{SPACE}he", "llo", f"{SPACE}world", ""), 3)
WORDS = Vocabulary(("yes", "no", ""), 2, words=True)


@pytest.mark.parametrize("vocabulary", [PIECES, WORDS])
@given(tokens=st.lists(st.integers(0, 1), max_size=8), cut=st.integers(0, 8))
def test_text_that_is_added_to_is_text_at_once(vocabulary: Vocabulary, tokens: list[int], cut: int) -> None:
    first = vocabulary.added("", tokens[:cut])
    assert first + vocabulary.added(first, tokens[cut:]) == vocabulary.added("", tokens)


def test_words_have_spaces_between_them_and_none_in_front() -> None:
    assert PIECES.added("", [0, 1, 2]) == "hello world" and PIECES.added("hello", [2]) == " world"
    assert WORDS.added("", [0, 1]) == "yes no" and WORDS.added("yes", [1]) == " no"


def test_a_word_lasts_from_its_first_token_to_its_last() -> None:
    timed = Words(PIECES, 0.08, since=10.0)
    tokens = [Token(0, 2), Token(1, 4), Token(2, 9)]
    assert [timed.push(token) for token in tokens] == [[], [], [Word("hello", 10.16, 10.4)]]
    assert timed.flush() == [Word("world", 10.72, 10.8)] and timed.flush() == []


@pytest.mark.parametrize("vocabulary", [PIECES, WORDS, Vocabulary((SPACE, "a", "b c", ""), 3)])
@given(units=st.lists(st.integers(0, 1), max_size=8))
def test_words_are_those_of_the_text(vocabulary: Vocabulary, units: list[int]) -> None:
    timed = Words(vocabulary, 1.0)
    words = [w for i, unit in enumerate(units) for w in timed.push(Token(unit, i))] + timed.flush()
    assert [w.word for w in words] == vocabulary.added("", units).split()
    assert all(0 <= w.start < w.end <= len(units) for w in words)


def written(path: Path, text: str) -> Path:
    (path / "units.txt").write_bytes(text.encode())
    return path / "units.txt"


def test_a_line_a_score_the_blank_may_be_left_out_if_it_is_last(tmp_path: Path) -> None:
    assert read_vocabulary(written(tmp_path, "a\nb\n"), 3, None, False) == Vocabulary(("a", "b", ""), 2)
    assert read_vocabulary(written(tmp_path, "a\r\nb\r\n<b>"), 3, 2, True).units == ("a", "b", "<b>")
    assert read_vocabulary(written(tmp_path, "<b>\na\n"), 2, 0, False).blank == 0


@pytest.mark.parametrize(
    ("text", "size", "blank", "says"),
    [
        ("a\nb\n", 4, None, "has 2 units, the model 4 scores a frame"),
        ("a\nb\n", 3, 0, "has 2 units, the model 3 scores"),
        ("a\nb\n", 2, 2, "blank = 2: the model has 2 scores a frame, counted from 0"),
    ],
)
def test_a_list_that_does_not_fit_the_model_is_told(
    text: str, size: int, blank: int | None, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidModel, match=says):
        read_vocabulary(written(tmp_path, text), size, blank, False)


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "units.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidModel, match=r"units\.txt: not a text file in UTF-8"):
        read_vocabulary(tmp_path / "units.txt", 3, None, False)
