"""Known values at any length: only the nodes behind a value are evaluated, from the shapes that the rules know."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pulsify.convert.facts import Wire
from pulsify.trace.evaluate import CannotRun, Traced

if TYPE_CHECKING:
    from pulsify.convert.context import Context

SMALL = 4096  # elements of a value worth keeping


def known_at(ctx: Context, name: str, s: int) -> Traced:
    """A known value at a stream length of s. Raises CannotRun if the model has none there."""
    kept = ctx.known_values.setdefault(s, {})
    if name in kept:
        return kept[name]
    if ctx.large_values[0] != s:  # what is large is kept for one length at a time
        ctx.large_values = (s, {})
    large = ctx.large_values[1]
    if name not in large:
        value = _evaluate(ctx, name, s)
        if math.prod(value.dims) <= SMALL:
            kept[name] = value
            return value
        large[name] = value
    return large[name]


def _evaluate(ctx: Context, name: str, s: int) -> Traced:
    tracer = ctx.traces.tracer
    constants = tracer.evaluator.constants()
    if name in constants:
        return constants[name]
    node = ctx.model.producers.get(name)
    if node is None:
        return tracer.inputs(s, ctx.traces.runs[0].batch)[name]
    values: dict[str, Traced] = {}
    shape_only = node.op in ("Shape", "Size")
    for i in node.inputs:
        if i:
            values[i] = shaped_at(ctx, i, s) if shape_only else known_at(ctx, i, s)
    tracer.evaluator.step(node, values)
    return values[name]


def shaped_at(ctx: Context, name: str, s: int) -> Traced:
    """A data value, of which only the shape is asked."""
    run = ctx.traces.runs[0]
    if run[name].known:
        return known_at(ctx, name, s)
    if not ctx.time_axes(name):
        return run[name]
    fact = ctx.facts.get(name)
    if not isinstance(fact, Wire) or fact.length is None:
        return _inferred(ctx, name, s)
    dims = list(run[name].dims)
    dims[fact.layout.axis] = fact.layout.outer[0] * fact.length.at(s)
    if min(dims) <= 0:
        raise CannotRun(ctx.model.nodes[0], f"'{name}' has no frames")
    return Traced(run[name].dtype, tuple(dims), False)


def _inferred(ctx: Context, name: str, s: int) -> Traced:
    """The shape of a data value of which the rules know nothing, from the shapes it is made of."""
    kept = ctx.known_values.setdefault(s, {})
    if name not in kept:
        node = ctx.model.producers.get(name)
        if node is None:
            return ctx.traces.tracer.inputs(s, ctx.traces.runs[0].batch)[name]
        values = {
            i: known_at(ctx, i, s) if ctx.traces.runs[0][i].known else shaped_at(ctx, i, s) for i in node.reads if i
        }
        ctx.traces.tracer.evaluator.step(node, values)
        kept |= {o: values[o] for o in node.outputs if o}
    return kept[name]
