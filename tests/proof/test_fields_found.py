"""Graphs whose attention streamed otherwise than batch, without a word: exact now, or refused for what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pulsify
from tests.proof.judge import judge
from tests.proof.net import Net, Wire
from tests.selection import rotated

Make = Callable[[Net], Wire]
SHORT = (5, 20, 60)


def scores(n: Net) -> tuple[Wire, Wire]:
    """Small scores [1, T, T], and the values [1, T, channels]."""
    q = n.x.by(0, 2, 1)
    return (q @ n.x) * 0.02, q


def shown(n: Net) -> Wire:
    """Data that are always true, as the judge has them: [1, 1, T]."""
    return n.x.take([0], 1) < 5.0


def weigh(n: Net, s: Wire, axis: int = -1, op: str = "Softmax") -> Wire:
    return n.op(op, s, axis=axis)


def hidden_far_out(n: Net) -> Wire:
    i, _ = n.grid()
    return n.attend(n.near() & ~(shown(n) & (i >= 500)))


def hidden_by_inf(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, n.where(n.near(), n.where(~shown(n), s, -np.inf), -1e9)) @ q


def hidden_less(n: Net) -> Wire:
    """Where data hide all of a row, what the mask hides is lower still."""
    s, q = scores(n)
    return weigh(n, n.where(n.near(), n.where(~shown(n), s, -1e4), -1e9)) @ q


def scaled_behind(n: Net) -> Wire:
    s, q = scores(n)
    return (weigh(n, n.where(n.near() & ~shown(n), s, -1e9)) * 0.5) @ q


def zeroed_by_others(n: Net) -> Wire:
    s, q = scores(n)
    w = weigh(n, n.where(n.near() & ~shown(n), s, -1e9))
    return n.where(n.x.take([1], 1) > 9.0, 0.0, w) @ q


def never_repeats(n: Net) -> Wire:
    i, j = n.grid()
    return n.where(n.near(), n.op("Cos", (i - j).float()), 0.0) @ n.x.by(0, 2, 1)


def log_weights(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, n.where(n.near(), s, -1e3), op="LogSoftmax") @ q


def log_weights_masked(n: Net) -> Wire:
    s, q = scores(n)
    return (weigh(n, n.where(n.near(), s, -1e9), op="LogSoftmax") * n.where(n.near(), 1.0, 0.0)) @ q


def low_and_back(n: Net) -> Wire:
    s, q = scores(n)
    return (s + n.where(n.near(), 0.0, -6000.0) + n.where(n.near(), 0.0, 6000.0)) @ q


def low_summed(n: Net) -> Wire:
    s, q = scores(n)
    return n.op("Max", s + n.where(n.near(), 0.0, -6000.0), n.const([[-5999.0]])) @ q


def low_relu(n: Net) -> Wire:
    s, q = scores(n)
    return n.op("Relu", s + n.where(n.near(), 0.0, -1e9)) @ q


def low_equal(n: Net) -> Wire:
    """x - 1e9 is -1e9, as a float."""
    s, q = scores(n)
    low = s + n.where(n.near(), 0.0, -1e9)
    return n.where(low == -1e9, 1.0, 0.0) @ q


def scores_are_lower(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, n.where(n.near(), s - 2000.0, -510.0)) @ q


def scores_are_much_lower(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, n.where(n.near(), s - 20000.0, -1e4)) @ q


def low_scaled(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, (s + n.where(n.near(), 0.0, -6000.0)) * 0.001) @ q


def along_rows(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, n.where(n.near(), s, -1e9), axis=1) @ q


def along_rows_masked(n: Net) -> Wire:
    s, q = scores(n)
    return (weigh(n, s, axis=1) * n.where(n.near(), 1.0, 0.0)) @ q


def turned(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, n.where(n.near(), s, -1e9)).by(0, 2, 1) @ q


def turned_twice(n: Net) -> Wire:
    s, q = scores(n)
    return weigh(n, n.where(n.near(), s, -1e9).by(0, 2, 1), axis=1).by(0, 2, 1) @ q


def over_heads(n: Net) -> Wire:
    """Of zeros in all heads a softmax makes halves."""
    q = n.x.shaped(1, 2, 2, n.T).by(0, 1, 3, 2)
    s = n.where(n.near(), (q @ q.by(0, 1, 3, 2)) * 0.02, 0.0)
    return weigh(n, s, axis=1) @ q


CELLS: dict[str, tuple[Make, str, tuple[int, ...]]] = {
    "hidden_far_out": (hidden_far_out, "data hide every key", (490, 520)),
    "hidden_by_inf": (hidden_by_inf, "data hide every key", SHORT),
    "hidden_less": (hidden_less, "", SHORT),
    "scaled_behind": (scaled_behind, "data hide every key", SHORT),
    "zeroed_by_others": (zeroed_by_others, "data hide every key", SHORT),
    "never_repeats": (never_repeats, "", (10, 100)),
    "log_weights": (log_weights, "ahead without bound", SHORT),
    "log_weights_masked": (log_weights_masked, "", SHORT),
    "low_and_back": (low_and_back, "ahead without bound", SHORT),
    "low_summed": (low_summed, "ahead without bound", SHORT),
    "low_relu": (low_relu, "", SHORT),
    "low_equal": (low_equal, "depends on the data", SHORT),
    "scores_are_lower": (scores_are_lower, "ahead without bound", SHORT),
    "scores_are_much_lower": (scores_are_much_lower, "ahead without bound", SHORT),
    "low_scaled": (low_scaled, "ahead without bound", SHORT),
    "along_rows": (along_rows, "along the other time axis", SHORT),
    "along_rows_masked": (along_rows_masked, "along the other time axis", SHORT),
    "turned": (turned, "along the other time axis", SHORT),
    "turned_twice": (turned_twice, "", SHORT),
    "over_heads": (over_heads, "ahead without bound", SHORT),
}


def fails_now_and_then(n: Net) -> Wire:
    return n.x * n.const([2.0, 3.0]).take(n.where(n.T % 97 == 50, 100, 0), 0)


def fails_from_then_on(n: Net) -> Wire:
    return n.x * n.const([2.0, 3.0]).take(n.where(n.T >= 300, 100, 0), 0)


def fails_in_a_mask(n: Net) -> Wire:
    shown = n.const([1, 1]).take(n.where(n.T % 7 == 5, 100, 0), 0) == 1
    return n.attend(n.near() & shown)


def ends_but_once(n: Net) -> Wire:
    """The model takes 202 frames, and 201 not."""
    bad = n.const([0.0, 0.0]).take(n.where(n.T == 201, 500, 0), 0)
    v = n.const(np.ones(200, np.float32)).cut(0, n.T, 0) * n.where(n.T >= 202, 2.0, 1.0)
    return n.x.cut(0, 200) * v + bad


def ends_far_behind(n: Net) -> Wire:
    """The model takes no stream of 201 to 8999 frames; nor does the stream take longer ones."""
    bad = n.const([0.0, 0.0]).take(n.where((n.T >= 201) & (n.T < 9000), 500, 0), 0)
    v = n.const(np.ones(200, np.float32)).cut(0, n.T, 0) * n.where(n.T >= 9000, 2.0, 1.0)
    return n.x.cut(0, 200) * v + bad


def fits_not_always(n: Net) -> Wire:
    """Positions that are one too few at some lengths."""
    short = n.pos.cut(0, n.T - (n.T % 97 == 50).int()) + n.pos
    return n.attend(n.near() & (short.new(0) >= 0))


def ends_nowhere(n: Net) -> Wire:
    """There is a hole in the lengths that it takes, which is no end of a table."""
    bad = ((n.T >= 300) & (n.T < 3000)).int()
    m = (n.pos >= 500).shaped(n.T + bad).new(1)
    return n.attend(n.near(8) | (m & n.near(12)))


def too_large(n: Net) -> Wire:
    i, j = n.grid()
    vis = n.near(8) | (i >= 152) & n.near(12) & (j < n.T)
    m = n.op("Expand", n.op("Cast", vis, to=3, kind="i").new(0), [6000, 1, 1])
    return n.attend(n.op("Cast", n.op("ReduceMax", m, [0], keepdims=0), to=9, kind="b"))


def alone_later(n: Net) -> Wire:
    """A single column of a mask at lengths of which the first are not taken."""
    alone = (n.T >= 600) & (n.T <= 610)
    bad = n.const([0.0, 0.0]).take(n.where((n.T >= 600) & (n.T < 605), 500, 0), 0)
    m = n.range(0, n.where(alone, 1, n.T), 1).new(0) % 3 != 1
    s, q = scores(n)
    return weigh(n, n.where(n.near(), n.where(m, s, -1e9), -1e9)) @ q + bad


def blind(fill: float) -> Make:
    """Keys end nine frames early, at some lengths."""

    def make(n: Net) -> Wire:
        size = n.T - 9 * (n.T % 151 == 150).int()
        k = n.x.cut(0, size)
        i, j = n.pos.new(1), n.range(0, size, 1).new(0)
        s = n.where((j <= i) & (i - j <= 4), (n.x.by(0, 2, 1) @ k) * 0.02, fill)
        return weigh(n, s) @ k.by(0, 2, 1)

    return make


def positions(n: Net) -> Wire:
    """A table [2T - 1, 2] by offset."""
    rel = (n.range(0, 2 * n.T - 1, 1) - (n.T - 1)).float() * 0.3
    return n.op("Concat", n.op("Cos", rel).new(1), n.op("Sin", rel).new(1), axis=1)


def heads_shift_otherwise(n: Net) -> Wire:
    q = n.x.shaped(1, 2, 2, n.T).by(0, 1, 3, 2)
    p = n.op("Pad", q @ positions(n).by(1, 0), [0, 0, 0, 1, 0, 0, 0, 0])
    s = p.shaped(1, 1, 4 * n.T, n.T).cut(1, 4 * n.T - 1, 2).shaped(1, 2, n.T, 2 * n.T - 1).cut(0, n.T)
    s = n.where(n.near(), (q @ q.by(0, 1, 3, 2)) * 0.02 + s, -1e9)
    return weigh(n, s) @ q


def small_positions(fill: float, by: float = 1e7) -> Make:
    """Tables of tiny numbers, made large behind: they depend on the length all the same."""

    def make(n: Net) -> Wire:
        tab = positions(n) * n.where(n.T < 300, 1 / by, 2 / by)
        p = n.op("Pad", n.x.by(0, 2, 1) @ tab.by(1, 0), [0, 0, 1, 0, 0, 0])
        p = p.shaped(1, 2 * n.T, n.T).cut(1, (1 << 40), 1).shaped(1, n.T, 2 * n.T - 1).cut(0, n.T)
        s, q = scores(n)
        return weigh(n, n.where(n.near(), s + p * by, fill)) @ q

    return make


def small_bias(fill: float, by: float = 1e7) -> Make:
    def make(n: Net) -> Wire:
        i, j = n.grid()
        bias = n.where(i - j <= 3, 3 / by, 0.0) + n.where(i - j == 6, 4 / by, 0.0)
        s, q = scores(n)
        return weigh(n, n.where(j <= i, (s * (0.01 / by) + bias) * by, fill)) @ q

    return make


def large_scores(fill: float, by: float = 1e7) -> Make:
    def make(n: Net) -> Wire:
        s, q = scores(n)
        return weigh(n, n.where(n.near(), (s * (0.01 / by)) * by, fill)) @ q

    return make


SCALED = "it multiplies scores by 1e+07"


LENGTHS: dict[str, tuple[Make, str, tuple[int, ...]]] = {
    "fails_now_and_then": (fails_now_and_then, "", (49, 50, 51, 147)),
    "fails_from_then_on": (fails_from_then_on, "", (49, 299, 300, 1000)),
    "fails_in_a_mask": (fails_in_a_mask, "", (11, 12, 13, 19, 40)),
    "ends_but_once": (ends_but_once, "stops growing at 200 frames", (199, 202)),
    "ends_far_behind": (ends_far_behind, "", (199, 200, 201)),
    "fits_not_always": (fits_not_always, "", (49, 50, 51, 147)),
    "ends_nowhere": (ends_nowhere, "how far attention looks does not hold", (100, 299, 3100)),
    "too_large": (too_large, "too large to look at", (140, 170)),
    "alone_later": (alone_later, "has a single frame at length 600", (599, 607)),
    "blind": (blind(-1e9), "see no key", (149, 150, 301)),
    "blind_inf": (blind(-np.inf), "", (149, 150, 301)),
    "heads_shift_otherwise": (heads_shift_otherwise, "no relative-position shift", (100,)),
    "small_positions": (small_positions(-1e9), SCALED, (299, 320)),
    "small_positions_inf": (small_positions(-np.inf), "relative positions depend on the length", (299, 320)),
    "small_positions_less": (small_positions(-1e9, 1e3), "relative positions depend on the length", (299, 320)),
    "large_scores": (large_scores(-1e9), SCALED, (10, 100)),
    "large_scores_inf": (large_scores(-np.inf), "", (1, 10, 100)),  # what the hint says
    "large_scores_less": (large_scores(-1e9, 1e3), "", (1, 10, 100)),
}


def check(make: Make, refused: str, lengths: Any, channels: int = 2, **options: Any) -> None:
    """Refused for this reason; exact, if there is none."""
    n = Net(channels=channels)
    outcome = judge(n.model(make(n)), 4, lengths, **options)
    assert outcome.kind == ("refused" if refused else "exact"), str(outcome)
    assert refused in outcome.detail, str(outcome)


@pytest.mark.parametrize("name", rotated(CELLS, 2))
def test_cells(name: str) -> None:
    make, refused, lengths = CELLS[name]
    check(make, refused, lengths, channels=4 if name == "over_heads" else 2)


@pytest.mark.parametrize(("low", "said"), [(-np.inf, ()), (-1e9, ("1e+09",)), (-1000.0, ("1000",))])
def test_what_is_taken_of_the_scores_is_said(low: float, said: tuple[str, ...]) -> None:
    n = Net()
    s, q = scores(n)
    stream = pulsify.stream(n.model(weigh(n, n.where(n.near(), s, low)) @ q), pulse=4)
    assert len(stream.proof.assumed) == len(said)
    assert all(a in b for a, b in zip(said, stream.proof.assumed))
    assert stream.proof.complete


@pytest.mark.parametrize("name", rotated(LENGTHS, 2))
def test_lengths(name: str) -> None:
    make, refused, lengths = LENGTHS[name]
    check(make, refused, lengths, channels=4 if name == "heads_shift_otherwise" else 2)


@pytest.mark.parametrize(("fill", "by"), [(-np.inf, 1e7), (-1e9, 1e3)])
def test_a_bias_is_a_line_by_its_own_scale(fill: float, by: float) -> None:
    check(small_bias(fill, by), "neither constant nor linear over the distance", (10, 100), unbounded="grow")
    check(small_bias(-1e9), SCALED, (10, 100), unbounded="grow")


def test_behind_a_hole_nothing_is_given_out() -> None:
    n = Net()
    outcome = judge(n.model(ends_far_behind(n)), 4, [9001])
    assert "goes no further than 200" in outcome.detail
