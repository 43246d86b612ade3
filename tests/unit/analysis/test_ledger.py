"""The ledger: what was seen, how far it is certain, and what a stream must be like."""

from __future__ import annotations

from pulsify.analysis.ledger import CRITICAL, Ledger
from pulsify.core.length import Length
from pulsify.core.spec import Condition
from pulsify.lengths.series import LONGEST, constant, length_itself


def test_nothing_claimed_is_certain_everywhere() -> None:
    proof = Ledger().proof()
    assert (proof.horizon, proof.period, proof.limit, proof.critical, proof.sampled) == (1, 1, None, (), ())


def test_horizons_grow_and_periods_meet() -> None:
    ledger = Ledger()
    for horizon, period in ((5, 4), (3, 6), (1, 1)):
        ledger.saw(horizon, period)
    assert (ledger.horizon, ledger.period) == (5, 12)
    assert ledger.critical == {5, 9, 3}


def test_the_nearest_limit_counts_and_is_named() -> None:
    ledger = Ledger()
    for limit, name in ((1 << 24, "far"), (1 << 20, "near"), (1 << 22, "between")):
        ledger.up_to(limit, name)
    assert (ledger.limit, ledger.limited_by) == (1 << 20, "near")
    assert ledger.proof().limit == 1 << 20


def test_a_limit_behind_every_stream_is_none() -> None:
    ledger = Ledger()
    ledger.up_to(LONGEST, "x")
    assert ledger.proof().limit is None and not ledger.limited_by


def test_a_file_names_the_shortest_and_longest_critical_lengths() -> None:
    ledger = Ledger(critical=set(range(100, 200)))
    critical = ledger.proof().critical
    assert len(critical) == 2 * CRITICAL
    assert critical[0] == 100 and critical[-1] == 199 and list(critical) == sorted(critical)


def test_what_was_sampled_is_told_with_the_reason() -> None:
    assert Ledger(sampled={"mask": "too far"}).proof().sampled == ("mask: too far",)


def test_a_number_that_is_claimed_is_counted() -> None:
    ledger = Ledger()
    ledger.series(constant(3))
    ledger.series(length_itself(), "t")
    assert ledger.claims == 2 and ledger.horizon == 1


def test_a_condition_is_required_once() -> None:
    ledger = Ledger()
    for _ in range(2):
        ledger.require("conv", Length().then(add=-2), at_least=1)
    assert list(ledger.conditions) == [Condition("conv", Length().then(add=-2), at_least=1)]
