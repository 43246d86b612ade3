"""Numbers that the model computes from the length (a slice's end, a pad to the next multiple), at any length.

Only the few scalar nodes behind such a number are evaluated; the shapes they start from are those the rules know. So
hundreds of lengths, of every residue, can be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from pulsify.analysis.facts import Wire
from pulsify.trace.evaluate import Array, CannotRun, Traced

if TYPE_CHECKING:
    from pulsify.emit.context import Context

SMALL = 4096  # elements of a value worth keeping
FARTHEST = 1 << 17  # numbers beyond stand for infinity, or are no lengths
MOST_FAR = 8
FEW, SLOW = 8, 48  # consecutive lengths looked at anyway; frames between two of a wire so slow that they tell little
SPACED = 17  # more than the residues of a few strides by two
NEIGHBOURS = 97  # consecutive lengths looked at: more than any small period, and prime


def known_at(ctx: Context, name: str, s: int) -> Traced:
    """A known value at a stream length of s. Raises CannotRun if the model has none there."""
    kept = ctx.known_values.setdefault(s, {})
    if name in kept:
        return kept[name]
    value = _evaluate(ctx, name, s)
    if math.prod(value.dims) <= SMALL:
        kept[name] = value
    return value


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
            values[i] = _shaped(ctx, i, s) if shape_only else known_at(ctx, i, s)
    tracer.evaluator.step(node, values)
    return values[name]


def _shaped(ctx: Context, name: str, s: int) -> Traced:
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
            i: known_at(ctx, i, s) if ctx.traces.runs[0][i].known else _shaped(ctx, i, s) for i in node.reads if i
        }
        ctx.traces.tracer.evaluator.step(node, values)
        kept |= {o: values[o] for o in node.outputs if o}
    return kept[name]


def near(ctx: Context) -> range:
    """Consecutive lengths (of those the caller declared) to look at."""
    step = ctx.traces.tracer.time.step
    base = ctx.traces.lengths[0] // step * step
    return range(base, base + NEIGHBOURS * step, step)


def spaced(ctx: Context) -> list[int]:
    """Lengths that bring one frame more of every wire so far, whatever its rate: all residues of slow wires."""
    step = ctx.traces.tracer.time.step
    base = ctx.traces.lengths[0] // step * step
    rates = [d for d in sorted(ctx.denominators) if d > 1]
    return sorted({-(-(base + n * d) // step) * step for d in rates for n in range(1, SPACED + 1)})


def residues(ctx: Context) -> list[int]:
    """Lengths of every residue that the last frames of some wire may depend on: for values that are not small."""
    step = ctx.traces.tracer.time.step
    rates = sorted(d for d in ctx.denominators if d > 1)
    quick = [d for d in rates if d <= SLOW]
    base = ctx.traces.lengths[0] // step * step
    slow = {
        -(-(base + n * d) // step) * step for d in {*rates[-1:], *rates[len(quick) :]} for n in range(1, SPACED + 1)
    }
    return sorted({*near(ctx)[: 2 * max(quick, default=FEW)], *slow})


def far(ctx: Context) -> list[int]:
    """Lengths beyond any number in the model that a length may be compared with: a cut at 3000 frames shows there."""
    step = ctx.traces.tracer.time.step
    found = set()
    for tensor in ctx.model.constants.values():
        if tensor.size == 1 and (tensor.dtype.is_integer() or tensor.dtype.is_floating_point()):
            value = float(tensor.numpy().item())
            if ctx.traces.lengths[0] <= abs(value) <= FARTHEST and value == int(value):
                found.add(abs(int(value)))
    return [-(-(times * v + 1) // step) * step for v in sorted(found)[-MOST_FAR:] for times in (2, 16)]


def neighbours(ctx: Context) -> list[int]:
    """Lengths of all residues, and some far out, for values of a few numbers."""
    return [*near(ctx), *spaced(ctx), *far(ctx)]


def fixed(ctx: Context, name: str) -> bool:
    """Is a known value the same at every length looked at?"""
    if not name or name in ctx.model.constants:
        return True
    first: Array | None = None
    for s in neighbours(ctx):
        try:
            array = known_at(ctx, name, s).array
        except CannotRun:
            continue
        if first is None:
            first = array
        elif array.shape != first.shape or not np.array_equal(array, first):
            return False
    return first is not None


def everywhere(
    ctx: Context, name: str, holds: Callable[[Array, int], bool], lengths: Iterable[int] | None = None
) -> bool:
    """Does something hold for a known value at these lengths (at all that are looked at), where the model runs?"""
    if name in ctx.model.constants:
        return holds(ctx.traces.runs[0][name].array, ctx.traces.lengths[0])
    for s in neighbours(ctx) if lengths is None else lengths:
        try:
            if not holds(known_at(ctx, name, s).array, s):
                return False
        except CannotRun:
            continue
    return True
