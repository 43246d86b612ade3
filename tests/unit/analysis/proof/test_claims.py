"""Claims: looked at wherever they could fail, which is further out than any trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.analysis.options import Options
from pulsify.analysis.proof.claims import (
    Claim,
    always_zero,
    critical_lengths,
    fixed,
    fixed_value,
    holds_everywhere,
    kinds,
    numbers_behind,
    prove,
    tabulated,
)
from pulsify.analysis.questions import Questions, Unclear
from pulsify.core.errors import NotStreamable
from pulsify.lengths.series import constant, length_itself
from tests.models import Array, model, node
from tests.unit.convert.contexts import opened

GIVEN: dict[str, Array] = {
    "time": np.array(2), "n0": np.array(0), "n1": np.array(1), "n7": np.array(7), "far": np.array(2500),
}  # fmt: skip
NODES = [
    node("Shape", "x", "dims"), node("Gather", "dims time", "t", axis=0), node("Range", "n0 t n1", "p"),
    node("Less", "p far", "early"), node("Mod", "p n7", "week"), node("Sub", "p p", "none"),
    node("Sub", "t n7", "limit"), node("Less", "p limit", "before"), node("Mul", "p p", "squares"),
    node("Min", "t n7", "few"), node("Neg", "x", "y"),
]  # fmt: skip


def asked(*wanted: str, **about: Any) -> Questions:
    types = {"early": bool, "before": bool}
    outputs = ["y", *wanted]
    dtypes = {n: types.get(n, np.int64) for n in wanted}
    proto = model(NODES, {"x": [1, 1, "T"]}, outputs, GIVEN, dtypes=dtypes)
    return opened(onnx.ModelProto.FromString(proto.SerializeToString()), **about).ask


def test_a_claim_that_fails_far_out_does_not_hold() -> None:
    ask = asked("early")
    longest = ask.traces.lengths[-1]
    assert longest < 2500, "no trace shows it"
    claim = Claim(ask.model.producers["early"], "all early", lambda run: bool(run["early"].array.all()))
    assert not holds_everywhere(ask, claim)
    assert critical_lengths(ask, claim)[0][-1] >= 2501


def test_a_claim_that_holds_is_looked_at_and_counted() -> None:
    ask = asked("week")
    claim = Claim(None, "no week is longer", lambda run: bool((run["week"].array < 7).all()))
    before = ask.ledger.claims
    assert holds_everywhere(ask, claim) and ask.ledger.claims == before + 1


def test_a_claim_about_what_never_repeats_is_refused_or_sampled() -> None:
    ask = asked("squares")
    claim = Claim(ask.model.producers["squares"], "some", lambda run: bool((run["squares"].array >= 0).all()))
    with pytest.raises(NotStreamable, match="not certain at every length") as caught:
        holds_everywhere(ask, claim)
    assert caught.value.node == "squares"
    ask.options = Options(proof="sampled")
    assert holds_everywhere(ask, claim) and "some" in ask.ledger.sampled


def test_what_does_not_hold_cannot_be_proven() -> None:
    ask = asked("early")
    with pytest.raises(Unclear, match="all of it does not hold at every length") as caught:
        prove(ask, ask.model.producers["early"], "all of it", lambda run: bool(run["early"].array.all()))
    assert caught.value.op == "Less"


@pytest.mark.parametrize(("name", "is_fixed"), [("n7", True), ("t", False), ("p", False), ("", True)])
def test_a_value_is_fixed_if_it_is_the_same_at_every_length(name: str, is_fixed: bool) -> None:
    ask = asked("p", "week")
    assert fixed(ask, ask.model.producers.get(name), name) is is_fixed


def test_a_value_that_is_the_same_at_all_traced_lengths_only_is_not_fixed() -> None:
    """min(t, 7) is 7 wherever one looks, and less for the shortest streams."""
    ask = asked("few")
    assert not fixed(ask, ask.model.producers["few"], "few")
    with pytest.raises(NotStreamable, match="its size changes with the length of the stream"):
        fixed_value(ask, ask.model.producers["few"], "few", "size")


def test_a_fixed_value_is_handed_out() -> None:
    ask = asked("week")
    assert fixed_value(ask, ask.model.producers["y"], "n7", "size").item() == 7
    with pytest.raises(NotStreamable, match="its size depends on the data"):
        fixed_value(ask, ask.model.producers["y"], "x", "size")


def test_zeros_are_zeros_however_many() -> None:
    ask = asked("none", "week")
    assert always_zero(ask, None, "none") and not always_zero(ask, ask.model.producers["week"], "week")


def test_how_much_a_mask_shows_is_known_at_every_length() -> None:
    ask = asked("before")
    shown = tabulated(ask, ask.model.producers["before"], "before", lambda a: int(a.sum()))
    assert [shown.at(s) for s in (5, 7, 8, 20, 100_000)] == [0, 0, 1, 13, 99_993]


def test_lengths_of_one_kind_are_looked_at_once() -> None:
    t = length_itself()
    odd = constant(3)
    lengths, which = kinds([odd], 10)
    assert lengths == [1] and which.tolist() == [0] * 10
    lengths, which = kinds([t], 4)
    assert lengths == [1, 2, 3, 4] and which.tolist() == [0, 1, 2, 3]


def test_the_numbers_behind_a_value_are_those_that_change() -> None:
    ask = asked("before")
    behind = numbers_behind(ask, ["before"])
    assert {int(s.at(100)) for s in behind} >= {100, 93} and all(not s.constant for s in behind)
