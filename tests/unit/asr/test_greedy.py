"""Greedy decoding: the same tokens however the frames are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsify.asr.greedy import Ctc, Heard, Transducer
from tests.models import Array


def scores(best: list[int], size: int = 4) -> Array:
    return np.eye(size, dtype=np.float32)[best].reshape(len(best), size)


@pytest.mark.parametrize(
    ("best", "tokens"),
    [([], []), ([3, 3], []), ([0, 0, 0], [0]), ([0, 3, 0], [0, 0]), ([0, 1, 1, 3, 1], [0, 1, 1])],
)
def test_repeats_count_once_and_blanks_not_at_all(best: list[int], tokens: list[int]) -> None:
    ctc = Ctc(4, None)
    assert [t.unit for t in ctc.decode(scores(best), ctc.start())] == tokens


@given(best=st.lists(st.integers(0, 3), max_size=12), cut=st.integers(0, 12), blank=st.sampled_from([None, 0, 2]))
def test_frames_in_two_pieces_are_frames_in_one(best: list[int], cut: int, blank: int | None) -> None:
    ctc = Ctc(4, blank)
    heard = ctc.start()
    first, second = (ctc.decode(scores(piece), heard) for piece in (best[:cut], best[cut:]))
    assert first + second == ctc.decode(scores(best), ctc.start())


class Counting:
    """A joint that says the frame's number as often as the frame says, then the blank."""

    def start(self, blank: int) -> Heard:
        return Heard(blank, (np.zeros(1),))

    def scores(self, frame: Array, heard: Heard) -> tuple[Array, tuple[Array, ...]]:
        (said,) = heard.states
        out = np.zeros(4, np.float32)
        out[0 if said[0] < frame[0] else 3] = 1
        return out, (said + 1,)

    def advance(self, heard: Heard, token: int, after: tuple[Any, ...]) -> None:
        heard.last, heard.states = token, after


def test_a_transducer_takes_tokens_until_the_blank_is_best_and_so_many_at_most() -> None:
    frames = np.array([[2.0], [2.0], [9.0]], np.float32)
    one = Transducer(Counting(), 1, None, 10)  # type: ignore[arg-type]
    assert one.size == 4 and [t.unit for t in one.decode(frames, one.start())] == [0] * 9
    few = Transducer(Counting(), 1, None, 3)  # type: ignore[arg-type]
    assert few.decode(frames, few.start()) == [(0, 0), (0, 0), (0, 2), (0, 2), (0, 2)], "two, none and three"


def test_streams_do_not_share_what_they_heard() -> None:
    shared = Transducer(Counting(), 1, 3, 10)  # type: ignore[arg-type]
    one, other = shared.start(), shared.start()
    shared.decode(np.array([[5.0]], np.float32), one)
    assert one.states[0][0] == 5 and other.states[0][0] == 0
