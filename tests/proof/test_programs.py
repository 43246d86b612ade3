"""Random programs over the stream's length: exact or refused, never wrong. See programs.py.

The long run: PULSIFY_EXAMPLES=500 pytest -m slow tests/proof/test_programs.py
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.proof.expr import Expr
from tests.proof.programs import changes, critical, program

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 500))
QUICK = 20


def check(seed: int) -> None:
    made = program(seed)
    outcome = made.judge()
    assert outcome.kind in ("exact", "refused"), f"seed {seed}, {' > '.join(made.readers)} [{made.text}]: {outcome}"


@pytest.mark.parametrize("seed", range(QUICK))
def test_program(seed: int) -> None:
    check(seed)


# a part that is empty at some lengths; one that took for ever; a table that repeats later than is looked at
@pytest.mark.parametrize("seed", [200586, 201572, pytest.param(229, marks=pytest.mark.slow)])
def test_found_in_a_long_run(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, QUICK + EXAMPLES))
def test_many_programs(seed: int) -> None:
    check(seed)


def test_programs_repeat() -> None:
    """A seed is all it takes to see one again."""
    one, two = program(3), program(3)
    assert one.model.SerializeToString() == two.model.SerializeToString() and one.lengths == two.lengths


def test_lengths_lie_on_both_sides_of_changes() -> None:
    late = Expr("and", (
        Expr(">", (Expr("T"), Expr("const", number=4000)), kind="b"),
        Expr("==", (Expr("%", (Expr("T"), Expr("const", number=7))), Expr("const", number=3)), kind="b"),
    ), kind="b")  # fmt: skip
    T = np.arange(5000)
    assert changes(late.value({"T": T}))[0] == 4007
    assert {4006, 4007, 4008, 4014} <= set(critical([late], 5000, np.random.default_rng(0)))
