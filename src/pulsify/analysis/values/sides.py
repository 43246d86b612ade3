"""What operators make of values over two time axes far from the diagonal: see `lengths/beyond`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsify.core.facet import Facet
from pulsify.core.traits import Traits, traits
from pulsify.frontend.model import Node
from pulsify.lengths import beyond
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.beyond import Side, with_sides
from pulsify.lengths.indexing import moved_axes

Rule = Callable[[Node, list[Side], int], Side]  # a node, its inputs, and the digits of its output


def _by_traits(t: Traits) -> Rule | None:
    return (lambda _, sides, digits: beyond.any_function(sides)) if t.elementwise and not t.random else None


SIDES = Facet[Rule]("sides", "what it makes of values far from their diagonal", default=_by_traits)


def of_sides(rule: Callable[[Sequence[Side]], Side]) -> Rule:
    """An answer that asks for the sides alone."""
    return lambda _, sides, digits: rule(sides)


def with_its_sides(node: Node, out: Spread, inputs: Sequence[Spread]) -> Spread:
    """A value that is made entry by entry of others, with what it is on either side."""
    rule = SIDES.of(node)
    if rule is None or not traits(node.op, node.domain).elementwise or out.rank < 2:
        return out
    given = [moved_axes(v, {a: a + out.rank - v.rank for a in range(v.rank)}, out.sizes) for v in inputs]
    return with_sides(out, given, lambda sides: rule(node, sides, out.drift.digits))
