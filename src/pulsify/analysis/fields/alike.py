"""Fields whose cells are the same at every length, whatever their names: layers of attention under one mask.

What the cells of a field follow from is written down: operators, sizes, known values by how they are made, data by the
order in which they are first met (who hides whom is told by names, so the same data must meet in the same places).
Two fields of which the same is written have the same cells, and what is proven of one holds for the other.

    layer 1   Softmax(Add(scores 0, mask))      data 0, then known value "mask"
    layer 2   Softmax(Add(scores 1, mask))      the same: its data come first, too
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from pulsify.analysis.facts import Field
from pulsify.analysis.fields.cells import hides, made_of_cells, root_of
from pulsify.analysis.proof.numbers import follower
from pulsify.analysis.questions import Questions
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths.series import Series, Unsure
from pulsify.trace.evaluate import measures
from pulsify.trace.one_node import alike

SMALL = 64  # entries of a constant that is told by what it holds


def field_alike(ask: Questions, name: str) -> Hashable:
    """All that the cells of a field follow from, at every length."""
    return _Written(ask).value(name)


@dataclass(eq=False)
class _Written:
    """One field: names are told by the order in which they are met."""

    ask: Questions
    met: dict[str, int] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def value(self, name: str) -> Hashable:
        ask = self.ask
        root, truth = root_of(self.ask, name)
        own = (self._number(name), self._number(root), truth)
        if name in self.written:
            return own
        self.written.add(name)
        if ask.traces.runs[0][name].known:
            return "known", own, known_alike(ask, name)
        node = ask.model.producers.get(name)
        if node is None or not isinstance(ask.facts.get(name), Field) or not made_of_cells(node):
            return "data", own, hides(self.ask, name), _sizes(ask, name), ask.dtype(name)
        read = node.inputs[:1] if traits(node.op).shapes else node.inputs
        given = tuple(self.value(i) if i else "" for i in read)
        return _operator(node, name), own, _sizes(ask, name), ask.dtype(name), given

    def _number(self, name: str) -> int:
        return self.met.setdefault(name, len(self.met))


def _operator(node: Node, name: str) -> Hashable:
    return alike(node), node.outputs.index(name)


def known_alike(ask: Questions, name: str) -> int:
    """Known values that are made the same way of the same have the same number."""
    if name not in ask.alike:
        made = _made(ask, name)
        ask.alike[name] = ask.alike.setdefault(("made", made), len(ask.alike))
    found: int = ask.alike[name]
    return found


def _made(ask: Questions, name: str) -> Hashable:
    value, node = ask.traces.runs[0][name], ask.model.producers.get(name)
    if name in ask.model.constants:
        small = math.prod(value.dims) <= SMALL
        return (value.dtype, value.dims, value.array.tobytes()) if small else name
    if node is None:
        return name
    if measures(node) and not ask.traces.runs[0][node.inputs[0]].known:
        return _operator(node, name), _sizes(ask, node.inputs[0])
    return _operator(node, name), tuple(known_alike(ask, i) if i else -1 for i in node.reads)


def _sizes(ask: Questions, name: str) -> Hashable:
    """How large a value is at every length and batch; whose size it is, if that is not certain."""
    try:
        return ask.sizes_static(name), tuple(_series(s) for s in follower(ask).sizes_of(name))
    except Unsure:
        return name


def _series(s: Series) -> Hashable:
    return s.values.tobytes(), s.values.dtype, s.horizon, s.growth, s.unit, s.limit, s.longest
