"""What a refusal offers about shorter streams was tried."""

from __future__ import annotations

import pytest

from pulsify.analysis.questions import Undecided
from pulsify.convert.shorter import declared
from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import SAMPLED, declare
from pulsify.trace.lengths import Tracer
from tests.models import model, node
from tests.unit.build import traced

EXAMPLE, CHUNKS = declare("T", "<=3000"), declare("T", "8*n")


def undecided(change: int) -> Undecided:
    problem = Undecided("it is not certain", node="y", op="Relu", hint=(EXAMPLE, CHUNKS, SAMPLED))
    problem.change, problem.otherwise = change, (SAMPLED,)
    return problem


def refusing(tracer: Tracer) -> None:
    raise NotStreamable("not at any length")


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (0, [EXAMPLE, CHUNKS, SAMPLED]),
        (2000, [CHUNKS, SAMPLED]),
        (3000, [CHUNKS, SAMPLED]),
        (3001, [EXAMPLE, CHUNKS, SAMPLED]),
    ],
)
def test_longer_streams_are_not_offered_where_shorter_ones_were_refused(change: int, left: list[object]) -> None:
    tracer = traced(model([node("Relu", "x", "y")], {"x": [1, 2, "T"]}, ["y"]))
    assert list(declared(tracer, undecided(change), refusing).remedies) == left


def test_the_longest_streams_that_it_converts_for_are_offered() -> None:
    tracer, tried = traced(model([node("Relu", "x", "y")], {"x": [1, 2, "T"]}, ["y"])), list[int | None]()
    refusal = declared(tracer, undecided(2000), lambda t: tried.append(t.time.longest))
    assert tried == [2000] and "up to 2000 frames it does" in refusal.reason
    assert [r.options for r in refusal.remedies] == [{"set": {"T": "<=2000"}}, SAMPLED.options]
