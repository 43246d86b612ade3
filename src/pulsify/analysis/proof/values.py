"""Known values at any length: only the nodes behind a value are evaluated, from the shapes that the rules know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsify.analysis.facts import Field, FirstFrames, Static, Wire
from pulsify.core.traits import traits
from pulsify.trace.evaluate import measures
from pulsify.trace.traced import CannotRun, Traced

if TYPE_CHECKING:
    from pulsify.analysis.questions import Questions


def known_at(ask: Questions, name: str, s: int) -> Traced:
    """A known value at a stream length of s. Raises CannotRun if the model has none there."""
    kept = ask.known_values.setdefault(s, {})
    if name in kept:
        return kept[name]
    if ask.large_values[0] != s:  # what is large is kept for one length at a time
        ask.large_values = (s, {})
    large = ask.large_values[1]
    if name not in large:
        value = _evaluate(ask, name, s)
        (kept if ask.traces.tracer.made.keeps(value) else large)[name] = value
        return value
    return large[name]


def _evaluate(ask: Questions, name: str, s: int) -> Traced:
    tracer = ask.traces.tracer
    constants = tracer.evaluator.constants()
    if name in constants:
        return constants[name]
    node = ask.model.producers.get(name)
    if node is None:
        return tracer.inputs(s, ask.traces.runs[0].batch)[name]
    values: dict[str, Traced] = {}
    shape_only = measures(node)
    for i in node.inputs:
        if i:
            values[i] = perhaps_empty(ask, i, s) if shape_only else known_at(ask, i, s)
    return tracer.made.of(node, values)[name]


def shaped_at(ask: Questions, name: str, s: int) -> Traced:
    """A data value, of which only the shape is asked."""
    run = ask.traces.runs[0]
    if run[name].known:
        return known_at(ask, name, s)
    fact = ask.facts.get(name)
    # a stream may have fewer first frames than that
    few = isinstance(fact, FirstFrames) or (isinstance(fact, Static) and fact.early)
    if not ask.time_axes(name) and not few and (fact is not None or name not in ask.model.producers):
        return run[name]
    dims = list(run[name].dims)
    if isinstance(fact, Wire) and fact.length is not None:
        dims[fact.layout.axis] = fact.layout.outer[0] * fact.length.at(s)
    elif isinstance(fact, Field) and fact.lengths is not None:  # also behind the end of a table that scores are made of
        for axis, length in fact.lengths.items():
            dims[axis] = length.at(s)
    else:
        return _inferred(ask, name, s)
    if min(dims) <= 0:
        raise CannotRun(ask.model.nodes[0], f"'{name}' has no frames")
    return Traced(run[name].dtype, tuple(dims), False)


def perhaps_empty(ask: Questions, name: str, s: int) -> Traced:
    """A value of which only the shape is asked: there may be no frame of it, and the model runs all the same.

    If it does not, the operator that gives no frames has ruled such streams out.
    """
    try:
        return shaped_at(ask, name, s)
    except CannotRun:
        node, fact, run = ask.model.producers.get(name), ask.facts.get(name), ask.traces.runs[0]
        if isinstance(fact, Wire) and fact.length is not None and fact.length.at(s) == 0:
            dims = list(run[name].dims)
            dims[fact.layout.axis] = 0
            return Traced(run[name].dtype, tuple(dims), False)
        if node is None or traits(node.op, node.domain).axes != "cut" or ask.follower is None:
            raise
        shaped_at(ask, node.inputs[0], s)
        sizes = ask.follower.sizes_of(name)
        return Traced(run[name].dtype, tuple(max(int(x.at(s)), 0) for x in sizes), False)


def _inferred(ask: Questions, name: str, s: int) -> Traced:
    """The shape of a data value of which the rules know nothing, from the shapes it is made of."""
    kept = ask.known_values.setdefault(s, {})
    if name not in kept:
        node = ask.model.producers.get(name)
        if node is None:
            return ask.traces.tracer.inputs(s, ask.traces.runs[0].batch)[name]
        values = {
            i: known_at(ask, i, s) if ask.traces.runs[0][i].known else shaped_at(ask, i, s) for i in node.reads if i
        }
        kept |= ask.traces.tracer.made.of(node, values)
    return kept[name]
