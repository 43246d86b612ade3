"""Numbers that go with the length: what a Series says must be so at lengths it never looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.core.length import Length
from pulsify.lengths import series as one
from pulsify.lengths.as_length import as_length, as_series
from pulsify.lengths.curves import curved
from pulsify.lengths.series import Series, TooFar, Unsure, constant, length_itself

Array = np.ndarray[Any, Any]
Pair = tuple[Series, Callable[[Array], Array]]  # what is claimed, and how to compute it at any lengths
FAR = 3000


def _trunc(x: Array, by: int) -> Array:
    return np.sign(x) * np.sign(by) * (np.abs(x) // abs(by))


@st.composite
def numbers(draw: st.DrawFn) -> Pair:
    """A random program over the length."""
    unit = draw(st.sampled_from([1, 1, 1, 3, 8]))
    values: list[Pair] = [(length_itself(unit), lambda t: t)]
    small, large = st.integers(-12, 12), st.sampled_from([-50, 50, 100, 300, 1000])
    for _ in range(draw(st.integers(1, 7))):
        op = draw(st.sampled_from(["add", "sub", "mul", "div", "mod", "min", "max", "where"]))
        a, f = draw(st.sampled_from(values))
        k = draw(small | large)
        b, g = draw(st.sampled_from([*values, (constant(k, unit), lambda t, k=k: np.full_like(t, k))]))
        n = draw(st.sampled_from([-3, 2, 3, 4, 7, 10, 13]))
        by = constant(n, unit)
        try:
            if op == "add":
                made: Pair = one.add(a, b), lambda t, f=f, g=g: f(t) + g(t)
            elif op == "sub":
                made = one.subtract(a, b), lambda t, f=f, g=g: f(t) - g(t)
            elif op == "mul":
                made = one.multiply(a, by), lambda t, f=f, n=n: f(t) * n
            elif op == "div":
                made = one.divide(a, by), lambda t, f=f, n=n: _trunc(f(t), n)
            elif op == "mod":
                made = one.remainder(a, by), lambda t, f=f, n=n: np.mod(f(t), n)
            elif op in ("min", "max"):
                how = np.minimum if op == "min" else np.maximum
                made = one.extreme(a, b, how), lambda t, f=f, g=g, how=how: how(f(t), g(t))
            else:
                how = draw(st.sampled_from([np.less, np.equal, np.greater_equal]))
                c, h = draw(st.sampled_from(values))
                test = one.compare(c, constant(k, unit), how)
                made = (
                    one.choose(test, a, b),
                    lambda t, f=f, g=g, h=h, k=k, how=how: np.where(how(h(t), k), f(t), g(t)),
                )
        except Unsure:
            continue
        values.append(made)
    return values[-1]


@given(numbers())
@settings(max_examples=300, deadline=None)
def test_a_series_is_the_number_at_every_length(pair: Pair) -> None:
    series, compute = pair
    count = min(3 * len(series.values) + 60, FAR + len(series.values))
    lengths = (np.arange(count) + 1) * series.unit
    np.testing.assert_array_equal(series.look(count), compute(lengths))
    far = np.array([(count + n) * series.unit * 7 for n in (1, 2, 3)])
    assert [series.at(int(s)) for s in far] == compute(far).tolist()


@given(numbers())
@settings(max_examples=200, deadline=None)
def test_a_length_is_its_series(pair: Pair) -> None:
    series, _ = pair
    if series.values.min() < 0 or series.growth < 0:
        return
    try:
        length = as_length(series, [Length(), Length().then(1, 3, 2)])
    except Unsure:
        return
    count = 3 * len(series.values) + 60
    lengths = (np.arange(count) + 1) * series.unit
    np.testing.assert_array_equal(length.each(lengths), series.look(count))
    again = as_series(length, series.unit)
    np.testing.assert_array_equal(again.look(count), series.look(count))
    assert all(length.at(int(s)) == series.at(int(s)) for s in lengths[:: max(count // 50, 1)])


@pytest.mark.parametrize(
    ("make", "horizon", "period"),
    [
        (lambda t: one.compare(one.remainder(t, constant(7)), constant(3), np.equal), 0, 7),
        (lambda t: one.compare(t, constant(100), np.equal), 100, 1),
        (lambda t: one.compare(one.divide(t, constant(100)), constant(30), np.greater), 3099, 1),
        (lambda t: one.compare(one.cast(t, "f", 32), constant(2000.5), np.greater), 2000, 1),
        (lambda t: curved(one.cast(t, "f", 32)).then(np.log, exact=False).compare(7.6, np.greater), 1998, 1),
        (lambda t: one.extreme(t, constant(480000), np.minimum), 479999, 1),
        (lambda t: one.whole(one.divide(one.cast(t, "f", 32), constant(2.0)), np.floor), 0, 2),
        (lambda t: one.extreme(t, constant(2**63 - 1), np.minimum), 0, 1),
    ],
)
def test_horizon_and_period_are_found_exactly(make: Callable[[Series], Series], horizon: int, period: int) -> None:
    found = make(length_itself())
    assert (found.horizon, found.period) == (horizon, period)


def test_what_is_too_far_to_look_at_is_said() -> None:
    t = length_itself()
    with pytest.raises(TooFar):
        one.compare(t, constant(100_000_000), np.greater)
    with pytest.raises(TooFar):
        one.add(one.remainder(t, constant(4099)), one.remainder(t, constant(4091)))
    short = length_itself(longest=5000)
    assert one.compare(short, constant(100_000_000), np.greater).constant  # it never comes to that


def test_floats_are_exact_up_to_a_length() -> None:
    t = one.cast(length_itself(), "f", 32)
    tenth = one.whole(one.divide(t, constant(10.0)), np.floor)
    assert 1 << 20 < tenth.limit < 1 << 25
    at = np.arange(1, tenth.limit, 4999, dtype=np.int64)
    np.testing.assert_array_equal(np.floor(at.astype(np.float32) / np.float32(10)), [tenth.at(int(s)) for s in at])
    with pytest.raises(Unsure):  # 0.1 is no tenth
        one.whole(one.multiply(t, constant(float(np.float32(0.1)))), np.floor)
    assert one.cast(length_itself(), "f", 16).drift.fits == 2048


def test_a_multiple_of_the_length_divided_by_it_is_a_number() -> None:
    """Frames folded into the streams and back: (B * T) // T, and nothing is left over."""
    t, folded = length_itself(), one.multiply(length_itself(), constant(3))
    assert (one.divide(folded, t).item, one.remainder(folded, t).item) == (3, 0)
    for other in (one.add(folded, constant(1)), constant(7)):
        with pytest.raises(Unsure, match="changes with the length"):
            one.remainder(other, t)
