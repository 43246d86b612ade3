"""Numbers and sizes at every length, branches that are decided, and values at any length."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.analysis.proof.decided import check_decisions
from pulsify.analysis.proof.numbers import (
    as_expected,
    check_target,
    data_sizes,
    length_of,
    numbers,
    runs_from,
    same_series,
    size_length,
    sizes,
)
from pulsify.analysis.proof.values import known_at, shaped_at
from pulsify.analysis.questions import Questions
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.frontend.model import Decision
from pulsify.lengths.series import Series, constant
from pulsify.trace.traced import CannotRun
from tests.models import Array, model, node, weights
from tests.unit.convert.contexts import opened

GIVEN: dict[str, Array] = {
    "time": np.array(2), "n0": np.array(0), "n1": np.array(1), "n3": np.array(3), "n70": np.array(70),
    "far": np.array(5000), "w": weights(3, 2, 3), "huge": np.array(1 << 40),
}  # fmt: skip
NODES = [
    node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0),
    node("Div", "t n3", "third"), node("Mod", "t n3", "rest"), node("Mul", "t t", "square"),
    node("Sub", "t n70", "less"), node("Max", "less n0", "some"), node("Greater", "t far", "late"),
    node("Greater", "t n3", "long"), node("Range", "n0 third n1", "p"),
    node("Conv", "x w", "h", strides=[2]), node("Neg", "h", "y"), node("Range", "n0 less n1", "q"),
]  # fmt: skip


def asked(*wanted: str) -> Questions:
    """The model, with these values given out so that nothing of them is left out."""
    outputs = ["y", *wanted]
    return opened(
        model(NODES, {"x": [1, 2, "T"]}, outputs, {n: v for n, v in GIVEN.items() if n != "huge"},
              dtypes={"late": bool, "long": bool, **dict.fromkeys(set(wanted) - {"late", "long"}, np.int64)})
    ).ask  # fmt: skip


def number(ask: Questions, name: str) -> Series:
    found = numbers(ask, ask.model.producers.get(name), name).reshape(-1)[0]
    assert isinstance(found, Series)
    return found


@pytest.mark.parametrize(
    ("name", "at"),
    [("t", lambda s: s), ("third", lambda s: s // 3), ("rest", lambda s: s % 3), ("some", lambda s: max(s - 70, 0))],
)
def test_a_number_is_known_at_every_length(name: str, at: object) -> None:
    found = number(asked(name), name)
    assert callable(at)
    for s in (1, 2, 69, 70, 71, 3000, 123_456):
        assert found.at(s) == at(s)


def test_a_number_that_cannot_be_followed_is_refused_or_sampled() -> None:
    ask = asked("square")
    with pytest.raises(NotStreamable, match="not certain at every length") as caught:
        number(ask, "square")
    assert caught.value.node == "square" and 'proof="sampled"' in caught.value.hint


def test_sizes_of_data_follow_the_operators() -> None:
    ask = asked()
    assert [s.at(11) for s in data_sizes(ask, "x")] == [1, 2, 11]
    assert [s.at(11) for s in sizes(ask, None, "h")] == [1, 3, 5], "a convolution no rule has seen"
    assert [s.at(10) for s in sizes(ask, None, "y")] == [1, 3, 4]


def test_a_number_of_frames_becomes_a_length() -> None:
    ctx_ask = asked("third")
    found = length_of(ctx_ask, ctx_ask.model.producers["third"], number(ctx_ask, "third"))
    assert [found.at(s) for s in (2, 3, 11)] == [0, 1, 3] and found in ctx_ask.lengths_found


def test_a_known_value_has_the_length_of_its_time_axis() -> None:
    ask = asked("p")
    length = size_length(ask, ask.model.producers["p"], "p", 0)
    assert [length.at(s) for s in (3, 5, 6)] == [1, 1, 2]


def test_streams_too_short_to_be_computed_are_ruled_out() -> None:
    ask = asked()

    def evaluate(s: int) -> None:
        if s < 7:
            raise CannotRun(ask.model.nodes[0], "too short")

    runs_from(ask, ask.model.producers["y"], evaluate)
    (condition,) = ask.ledger.conditions
    assert condition.node == "y" and condition.at_least == 7


def test_a_size_may_depart_for_the_shortest_streams_only() -> None:
    ask = asked("t", "some")
    node_y, t = ask.model.producers["y"], number(ask, "t")
    as_expected(ask, node_y, "y", 1, t, t)
    assert not ask.ledger.conditions
    with pytest.raises(NotStreamable, match="changes with the length of the stream") as caught:
        as_expected(ask, node_y, "y", 1, number(ask, "some"), constant(0))
    assert caught.value.node == "y"


def test_a_target_of_minus_one_or_zero_is_worked_out_from_the_rest() -> None:
    proto = model([node("Reshape", "x to", "y")], {"x": [1, 2, "T"]}, ["y"], {"to": np.array([0, 2, -1])})
    ask = opened(proto).ask
    check_target(ask, ask.model.producers["y"], "to", {0: constant(9), 1: constant(2), 2: constant(9)})
    with pytest.raises(NotStreamable):
        check_target(ask, ask.model.producers["y"], "to", {1: constant(9)})


def test_series_are_the_same_if_they_never_differ() -> None:
    ask = asked("t", "third")
    assert same_series(number(ask, "t"), number(ask, "t"))
    assert not same_series(number(ask, "t"), number(ask, "third"))


def test_values_are_evaluated_at_lengths_that_were_never_traced() -> None:
    ask = asked("p")
    assert known_at(ask, "p", 10).array.tolist() == [0, 1, 2]
    assert shaped_at(ask, "y", 11).dims == (1, 3, 5)
    assert known_at(ask, "t", 12345).array.item() == 12345


@pytest.mark.parametrize(
    ("name", "taken", "refused", "shortest"),
    [("long", 1, False, 4), ("late", 0, True, None), ("rest", 0, True, None), ("third", 20, True, None)],
)
def test_what_was_decided_at_one_length_is_so_at_every_length_or_refused(
    name: str, taken: int, refused: bool, shortest: int | None
) -> None:
    ask = asked(name)
    object.__setattr__(ask.model, "decisions", (Decision("branch", "If", name, None, taken),))
    if refused:
        with pytest.raises(NotStreamable, match="decided otherwise") as caught:
            check_decisions(ask)
        assert (caught.value.node, caught.value.op) == ("branch", "If")
        return
    check_decisions(ask)
    (condition,) = ask.ledger.conditions
    assert condition.at_least == shortest and condition.length == Length()
