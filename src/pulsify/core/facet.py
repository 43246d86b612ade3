"""The operator table: what pulsify knows about operators, one facet per question.

A walker declares a facet beside the code that asks it, and names no operator. `pulsify.ops` answers, family by family:

    VALUES = Facet[Law]("value", "what a value that follows from the length becomes")      # analysis/values/follow.py

    @VALUES("Add", "Sum")                                                                   # ops/arithmetic.py
    def add(follower, node, inputs): ...

    law = VALUES.of(node)                       # the operator's answer, that of its traits, or None: unknown

An operator without an answer of its own gets the one that follows from its traits (`core/traits.py`), if the facet has
such a default. All facets side by side are the page of supported operators.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

from pulsify.core.errors import InvalidArgument
from pulsify.core.traits import Traits, traits

T = TypeVar("T")
FACETS: dict[str, Facet[Any]] = {}


class Operator(Protocol):
    """A node, or whatever else has the name of an operator."""

    @property
    def op(self) -> str: ...
    @property
    def domain(self) -> str: ...


def full_name(node: Operator) -> str:
    """Its name in the table: "Conv"; "acme::Boost" if of another domain."""
    return f"{node.domain}::{node.op}" if node.domain else node.op


@dataclass(eq=False)
class Facet(Generic[T]):
    """One question about operators, and the answers by operator ("Conv"; "acme::Boost" if of another domain).

    default: the answer that follows from an operator's traits.
    """

    name: str
    question: str
    default: Callable[[Traits], T | None] = lambda _: None
    answers: dict[str, T] = field(default_factory=dict)

    def __post_init__(self) -> None:
        FACETS[self.name] = self

    def __call__(self, *operators: str) -> Callable[[T], T]:
        """Decorator: this is the answer for these operators."""

        def register(answer: T) -> T:
            self.add(dict.fromkeys(operators, answer))
            return answer

        return register

    def add(self, answers: Mapping[str, T]) -> None:
        """Add answers. Raises InvalidArgument if an operator has one already."""
        for operator, answer in answers.items():
            if operator in self.answers:
                raise InvalidArgument(f"{operator} has an answer already for '{self.name}': {self.answers[operator]}")
            self.answers[operator] = answer

    def of(self, node: Operator) -> T | None:
        """The answer for the operator of a node, or None if it is unknown."""
        return self.named(node.op, node.domain)

    def named(self, operator: str, domain: str = "") -> T | None:
        """The answer for an operator, or None if it is unknown."""
        load_operators()
        answer = self.answers.get(f"{domain}::{operator}" if domain else operator)
        return answer if answer is not None else self.default(traits(operator, domain))


@cache
def load_operators() -> None:
    """Import all families, which fill the table. An upward dependency, resolved when the table is first asked."""
    importlib.import_module("pulsify.ops")
