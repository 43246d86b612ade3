"""Graphs whose attention streamed otherwise than batch, without a word: exact now, or refused for what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pulsify
from tests.proof.judge import judge
from tests.proof.net import Net, Wire

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


def check(make: Make, refused: str, lengths: Any, channels: int = 2, **options: Any) -> None:
    """Refused for this reason; exact, if there is none."""
    n = Net(channels=channels)
    outcome = judge(n.model(make(n)), 4, lengths, **options)
    assert outcome.kind == ("refused" if refused else "exact"), str(outcome)
    assert refused in outcome.detail, str(outcome)


@pytest.mark.parametrize("name", CELLS)
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
