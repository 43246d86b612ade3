"""Facets: answers by operator, by trait, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.core.facet import FACETS, Facet


@dataclass(frozen=True)
class Named:
    op: str
    domain: str = ""


@pytest.fixture
def colour() -> Iterator[Facet[str]]:
    yield Facet("colour", "which colour it has", default=lambda t: "grey" if t.elementwise else None)
    del FACETS["colour"]


def test_an_operator_has_its_own_answer_or_that_of_its_traits(colour: Facet[str]) -> None:
    colour.add({"Conv": "red", "acme::Conv": "blue"})
    assert [colour.of(Named("Conv")), colour.of(Named("Conv", "acme")), colour.named("Relu")] == ["red", "blue", "grey"]
    assert colour.named("Relu", "acme") is None and colour.of(Named("Loop")) is None


def test_a_second_answer_names_the_operator_and_the_facet(colour: Facet[str]) -> None:
    colour.add({"Conv": "red"})
    with pytest.raises(InvalidArgument, match="Conv has an answer already for 'colour': red"):
        colour.add({"Conv": "blue"})


def test_a_decorated_function_is_the_answer() -> None:
    double = Facet[object]("double", "twice as much")
    try:

        @double("Add", "Sum")
        def twice(x: int) -> int:
            return 2 * x

        assert double.named("Sum") is twice
    finally:
        del FACETS["double"]
