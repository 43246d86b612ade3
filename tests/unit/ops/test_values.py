"""Values by length: every answer in the table names an operator, and operators of one trait need none."""

from __future__ import annotations

import onnx
import pytest

from pulsify.analysis.proof.batches import BATCH
from pulsify.analysis.proof.decided import DECIDES
from pulsify.analysis.proof.failing import LOOKS_UP
from pulsify.analysis.values.choices import EXTREME, TERMS
from pulsify.analysis.values.follow import VALUES
from pulsify.analysis.values.moves import COLUMNS
from pulsify.analysis.values.sizes import SIZES, broadcast, same_size
from pulsify.core.facet import Facet, load_operators
from pulsify.core.traits import TRAITS

FACETS: list[Facet[object]] = [VALUES, SIZES, TERMS, EXTREME, COLUMNS, BATCH, LOOKS_UP, DECIDES]  # type: ignore[list-item]


@pytest.mark.parametrize("facet", FACETS, ids=lambda f: str(f.name))
def test_every_answer_is_about_an_operator_of_onnx(facet: Facet[object]) -> None:
    load_operators()
    assert facet.answers
    assert all(onnx.defs.has(op) for op in facet.answers if "::" not in op)


def test_sizes_follow_from_traits() -> None:
    load_operators()
    for op, kind in TRAITS.items():
        if op not in SIZES.answers and (kind.keeps_size or kind.elementwise):
            assert SIZES.named(op) is (same_size if kind.keeps_size else broadcast)
    assert SIZES.named("NoSuchOperator") is None
