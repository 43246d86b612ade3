"""Random networks of two to seven fragments, with branches and several outputs.

The long run: PULSIFY_EXAMPLES=2000 pytest -m slow tests/property/test_compositions.py (random; a failure prints how
to replay it).
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.check import check
from tests.property.strategies import compositions

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 2000))
FACTORS = st.sampled_from([None, 2, 3, 1, 5, 8])


@settings(max_examples=60)
@given(made=compositions(), factor=FACTORS)
def test_composition(made: tuple, factor: int | None) -> None:
    check(*made, factor)


@settings(max_examples=15)
@given(made=compositions(most=4, batches=("B",)), factor=FACTORS)
def test_composition_in_a_batch(made: tuple, factor: int | None) -> None:
    check(*made, factor)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(made=compositions(batches=(1, "B")), factor=FACTORS, seed=st.integers(0, 99))
def test_many_compositions(made: tuple, factor: int | None, seed: int) -> None:
    check(*made, factor, seed)
