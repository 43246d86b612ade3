"""The largest and smallest entry of a value over time, against the value itself at many lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pulsify.analysis.proof.numbers import follower
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.questions import Questions
from pulsify.analysis.values.extremes import always_below, largest, smallest
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.series import Unsure
from tests.attention.build import Builder
from tests.unit.convert.contexts import opened

Make = Callable[[Builder, str], str]
LENGTHS = (1, 2, 3, 7, 20, 33)


def asked(make: Make) -> Questions:
    b = Builder(1)
    b.op("Identity", make(b, b.size("x", 1)), called="value")
    b.op("Neg", "x", called="y")
    return opened(b.model({"x": ([1, "T", 2], np.float32)}, {"y": (3, np.float32), "value": (1, np.int64)})).ask


VALUES: dict[str, Make] = {
    "counted": lambda b, t: b.range(t),
    "backwards": lambda b, t: b.op("Sub", t, b.range(t)),
    "twice": lambda b, t: b.op("Mul", b.range(t), b.scalar(-2)),
    "shifted": lambda b, t: b.op("Add", b.range(b.op("Add", t, b.scalar(3))), b.scalar(5)),
    "few": lambda b, t: b.op("Concat", b.vector(t), b.ints(4), axis=0),
}


@pytest.mark.parametrize("name", VALUES)
def test_entries_lie_between(name: str) -> None:
    ask = asked(VALUES[name])
    f = follower(ask)
    value = f.value("value")
    for n in LENGTHS:
        entries = known_at(ask, "value", n).array
        assert smallest(f, value).at(n) <= entries.min()
        assert largest(f, value).at(n) >= entries.max()
        if not isinstance(value, Spread) or len(value.slope) == 1:  # of two slopes each is taken at its own end
            assert (smallest(f, value).at(n), largest(f, value).at(n)) == (entries.min(), entries.max())


def test_what_counts_in_fractions_has_no_bound() -> None:
    ask = asked(lambda b, t: b.op("Div", b.range(t), b.scalar(2)))
    f = follower(ask)
    with pytest.raises(Unsure):
        largest(f, f.value("value"))


def test_axes_end_where_their_sizes_say() -> None:
    ask = asked(lambda b, t: b.range(t))
    f = follower(ask)
    (size,) = f.sizes_of("value")
    assert always_below(f, f.value("value"), size)
    assert not always_below(f, size, f.value("value"))


@pytest.mark.parametrize(("by", "always"), [(0, True), (1, True), (-1, False)])
def test_a_mask_of_all_places_is_all_ones(by: int, always: bool) -> None:
    """range(T) < T + by."""
    ask = asked(lambda b, t: b.cast(b.op("Less", b.range(t), b.op("Add", t, b.scalar(by))), np.int64))
    value = follower(ask).value("value")
    assert isinstance(value, Spread)
    assert (value.lo == value.hi == 1) == always
    for n in LENGTHS:
        assert bool(known_at(ask, "value", n).array.all()) == always
