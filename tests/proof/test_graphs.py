"""Graphs made to fool a converter that looks at a few lengths only: each is exact, or refused. See graphs.py."""

from __future__ import annotations

import pytest

from tests.proof.graphs import CASES, Case
from tests.proof.judge import Batch, Outcome, judge
from tests.selection import turns

LONG = {"mask_segments_1000": [pytest.mark.slow]}  # half a minute: never by default
EACH = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
THIRD = pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=turns(i) or LONG.get(c.name, [])) for i, c in enumerate(CASES)],
)
FAR = pytest.mark.parametrize("case", [c for c in CASES if c.lengths(slow=True)], ids=lambda c: c.name)


def check(case: Case, outcome: Outcome) -> None:
    right = ("exact", "refused") if case.expect == "either" else (case.expect,)
    assert outcome.kind in right, f"{case.name} is to be {' or '.join(right)}: {outcome}"


@THIRD
def test_graph(case: Case) -> None:
    check(case, judge(case.model(), case.pulse, case.lengths(), shortest=case.shortest))


@THIRD
def test_batch_takes_some_lengths(case: Case) -> None:
    """Else nothing is judged."""
    batch = Batch(case.model())
    assert sum(batch.run(batch.data(n)) is not None for n in case.lengths()) > 3


@pytest.mark.slow
@FAR
def test_long_streams(case: Case) -> None:
    check(case, judge(case.model(), case.pulse, case.lengths(slow=True), shortest=case.shortest))


@pytest.mark.slow
@pytest.mark.parametrize("pulse", [1, 3, 64])
@EACH
def test_other_pulses(case: Case, pulse: int) -> None:
    check(case, judge(case.model(), pulse, case.lengths(), shortest=case.shortest))


@pytest.mark.slow
@EACH
def test_checked_on_conversion(case: Case) -> None:
    """The check of every conversion must find nothing: what it finds should have been refused."""
    check(case, judge(case.model(), case.pulse, case.lengths(), shortest=case.shortest, verify=True))
