"""Values that follow from the length alone: constants, positions, tables. Evaluated first, classified by what they are.

A known value that has a time axis is, in this order: whatever its own operator's rule makes of its inputs (a formula of
the position, right at any length); the same at every frame (kept as one frame); counting up frame by frame (the clock).
The last two are read off the traced lengths, for values such as a mask up to the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import (
    Deferred,
    Fact,
    Layout,
    Static,
    Varying,
    Window,
    Wire,
    deferred,
    deferred_all,
    emitted,
)
from pulsify.analysis.proof.batches import by_batch, one_number
from pulsify.analysis.proof.claims import Claim, filled_later, fixed, holds_everywhere, prove, tabulated
from pulsify.analysis.proof.numbers import length_of, runs_from, size_length
from pulsify.analysis.proof.values import known_at
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.emit.frames import along
from pulsify.plan.context import counted
from pulsify.trace.evaluate import Trace, measures
from pulsify.trace.lengths import BATCHES
from pulsify.trace.traced import Array, same

if TYPE_CHECKING:
    from pulsify.frontend.model import Node
    from pulsify.plan.context import Context

MOST_ENDS = 32  # frames at which the entries of a mask end
SMALL = 4096  # elements of a constant that is looked at, at every kind of length: larger ones cost too much


def known_fact(ctx: Context, name: str) -> Fact:
    """The fact of a value that no data rule has filed: it is known, so look at it."""
    if name in ctx.ask.model.constants:
        tensor = ctx.ask.model.constants[name]
        return Static(Deferred(lambda: ctx.builder.tensor(ctx.builder.unique(name), tensor)))
    node = ctx.ask.model.producers.get(name)
    if node is not None and _static_subgraph(ctx, node):
        return _copy(ctx, node, name)
    axes = ctx.ask.time_axes(name)
    if not axes:
        return _without_time(ctx, name, node)
    if node is None:  # an input that is bound to ones
        sizes = _sizes(ctx, name, axes[0])
        frame = np.full([s or 1 for s in sizes], ctx.ask.traces.runs[0][name].array.flat[0])
        return constant_wire(ctx, name, constant_value(ctx, name, frame), Layout(sizes, axes[0]))
    try:  # a formula of the position holds at every length
        ctx.node_rule(ctx, node)
        return ctx.ask.facts[name]
    except NotStreamable:
        wire = _looks_like(ctx, node, name, axes)
        if wire is None:
            raise
        return wire


def _looks_like(ctx: Context, node: Node, name: str, axes: list[int]) -> Wire | None:
    """What a value is by its looks, where it is no formula of the position (a mask up to the length, say)."""
    if len(axes) != 1:
        return None
    axis = axes[0]
    return _held(ctx, node, name, axis) or _counting(ctx, node, name, axis) or _ending(ctx, node, name, axis)


def _static_subgraph(ctx: Context, node: Node) -> bool:
    """Made of large constants only (weights being transposed, dequantised, ...): emitted as it stands."""
    values = [ctx.ask.traces.runs[0][o] for o in node.outputs if o]
    if not all(v.known and v._array is None for v in values):
        return False
    return all(not i or i in ctx.ask.model.constants or _from_constants(ctx, i) for i in node.inputs)


def _from_constants(ctx: Context, name: str) -> bool:
    node = ctx.ask.model.producers.get(name)
    return node is not None and all(
        not i or i in ctx.ask.model.constants or _from_constants(ctx, i) for i in node.inputs
    )


def _copy(ctx: Context, node: Node, name: str) -> Fact:
    inputs = [ctx.ask.operand(node, i) for i in node.inputs]

    def make() -> Sequence[ir.Value]:
        given, count = [emitted(i) for i in inputs], len(node.outputs)
        return ctx.builder.ops(node.op, given, node.attrs, outputs=count, domain=node.domain, name=node.name)

    for output, value in zip(node.outputs, deferred_all(make, len(node.outputs), *inputs), strict=True):
        if output:
            ctx.ask.facts[output] = Static(value)
    return ctx.ask.facts[name]


def constant_value(ctx: Context, name: str, array: Array) -> Deferred:
    """A constant, by this name."""
    return Deferred(lambda: ctx.builder.constant(array, name))


def _without_time(ctx: Context, name: str, node: Node | None) -> Fact:
    arrays = [run[name].array for run in ctx.ask.traces.runs]
    if not all(same(a, arrays[0]) for a in arrays):
        return Varying(name)
    if not fixed(ctx.ask, node, name) and (node is None or not filled_later(ctx.ask, node, name)):
        return Varying(name)
    if node is not None and by_batch(ctx.ask, name):
        return _per_batch(ctx, node, name)
    if node is not None and arrays[0].size <= SMALL:
        runs_from(ctx.ask, node, lambda s: known_at(ctx.ask, name, s))
    return Static(constant_value(ctx, name, arrays[0]))


def _per_batch(ctx: Context, node: Node, name: str) -> Fact:
    """A value that differs with the batch size alone: computed in the streaming graph as the model does."""
    if measures(node):
        return Static(_shape(ctx, node))
    if one_number(ctx.ask, name):
        number, sizes = ctx.ask.traces.runs[0][name].array.reshape(-1)[:1], ctx.ask.sizes_static(name)

        def numbers() -> ir.Value:
            return ctx.builder.op("Expand", ctx.builder.constant(number, name), counted(ctx, sizes))

        return Static(Deferred(numbers))
    inputs: list[Deferred | None] = []
    for i in node.inputs:
        if not i:
            inputs.append(None)
            continue
        arrays = [run[i].array for run in ctx.ask.traces.runs]
        if all(same(a, arrays[0]) for a in arrays):
            inputs.append(ctx.ask.operand(node, i))
        else:  # e.g. a whole Shape of which only the batch entry is used further on
            producer = ctx.ask.model.producers.get(i)
            if producer is None:
                ctx.ask.refuse(
                    node, f"it follows from the number of streams by way of the input '{i}', which is no stream",
                    "export with a fixed batch of 1", kind=Kind.BATCH
                )  # fmt: skip
            fact = _per_batch(ctx, producer, i)
            assert isinstance(fact, Static)
            inputs.append(fact.recipe)

    def make() -> ir.Value:
        given, count = [emitted(i) for i in inputs], len(node.outputs)
        made = ctx.builder.ops(node.op, given, node.attrs, outputs=count, domain=node.domain)
        return made[list(node.outputs).index(name)]

    return Static(deferred(make, *inputs))


def _shape(ctx: Context, node: Node) -> Deferred:
    """The shape of a value, worked out from the number of streams. No entry but those that follow it can matter."""
    sizes = ctx.ask.sizes_static(node.inputs[0])
    sizes = sizes[node.attr("start", 0) : node.attr("end", len(sizes))]
    fixed = all(s >= 0 for s in sizes)
    if ctx.ask.dims(node.outputs[0]):
        return Deferred(lambda: counted(ctx, sizes), fixed=fixed)
    return Deferred(lambda: ctx.builder.op("ReduceProd", counted(ctx, sizes), keepdims=0), fixed=fixed)


def _sizes(ctx: Context, name: str, axis: int) -> tuple[int, ...]:
    """Known values do not differ from stream to stream: a batch axis can be kept as one entry, if it is alike."""
    return tuple(1 if s < 0 else s for s in ctx.ask.sizes(name, axis))


def _held(ctx: Context, node: Node, name: str, axis: int) -> Wire | None:
    """All frames alike, at every length: one frame is kept."""
    sizes = _sizes(ctx, name, axis)

    def one(run: Trace) -> Array:
        array: Array = run[name].array
        for i, s in enumerate(ctx.ask.sizes(name, axis)):
            if s < 0 and array.shape[i]:
                array = array[(slice(None),) * i + (slice(0, 1),)]
        return array[(slice(None),) * axis + (slice(0, 1),)]

    frame = one(ctx.ask.traces.runs[0])

    def alike(run: Trace) -> bool:
        return same(np.broadcast_to(frame, run[name].dims), run[name].array)

    if not frame.size or not all(alike(run) for run in ctx.ask.traces.runs):
        return None
    if not holds_everywhere(ctx.ask, Claim(node, f"'{name}' being the same at every frame", alike)):
        return None
    return constant_wire(ctx, name, constant_value(ctx, name, frame), Layout(sizes, axis))


def constant_wire(ctx: Context, name: str, frame: Deferred, layout: Layout) -> Wire:
    """A wire whose every frame is `frame` (one frame along the time axis)."""

    def take(window: Window) -> Deferred:
        dims = [1] * layout.rank
        dims[layout.axis] = window.frames
        return deferred(lambda: ctx.builder.op("Expand", frame.value, ctx.builder.ints(*dims)), frame)

    return Wire(name, layout, ctx.ask.dtype(name), None, None, take, constant_frame=frame)


def _by_frame(array: Array, axis: int) -> Array:
    """[frames, all the rest]; there may be no frames at all."""
    first = np.moveaxis(array, axis, 0)
    return first.reshape(len(first), math.prod(first.shape[1:]))


def _counting(ctx: Context, node: Node, name: str, axis: int) -> Wire | None:
    """Integers that count up by a fixed step from frame to frame: a clock."""
    if not ctx.ask.dtype(name).is_integer() or any(s != 1 for i, s in enumerate(_sizes(ctx, name, axis)) if i != axis):
        return None
    first = ctx.ask.traces.runs[0][name].array.reshape(-1)
    if first.size < 2:
        return None
    start, step = int(first[0]), int(first[1]) - int(first[0])

    def counts(run: Trace) -> bool:
        array = _by_frame(run[name].array, axis)
        return same(
            array, np.broadcast_to(start + step * np.arange(len(array))[:, None], array.shape).astype(array.dtype)
        )

    if not all(counts(run) for run in ctx.ask.traces.runs):
        return None
    prove(
        ctx.ask,
        node,
        f"'{name}' counting {start}, {start + step}, ...",
        counts,
        slope={axis: Fraction(step)} if step else {},
    )
    return counter(ctx, name, axis, start, step)


def _ending(ctx: Context, node: Node, name: str, axis: int) -> Wire | None:
    """A mask that is True up to some frame near the end (or False, and then True): compared with the clock.

    Its entries may end at frames of their own (i + k < T for every k), along one other axis. Until the end is known all
    frames given out lie in front of it: those that may not wait.
    """
    sizes = ctx.ask.sizes(name, axis)
    others = [i for i, s in enumerate(sizes) if s > 1]
    if ctx.ask.dtype(name) != ir.DataType.BOOL or any(s < -1 for s in sizes) or len(others) > 1:
        return None
    if not all(run[name].array.size for run in (ctx.ask.traces.longest, *ctx.ask.traces.runs)):
        return None
    first = _by_frame(ctx.ask.traces.longest[name].array, axis)[0]
    together = [_Ending(axis, slice(None), bool(first[0]))]
    apart = [_Ending(axis, slice(c, c + 1), bool(start)) for c, start in enumerate(first)]
    several = 1 < len(apart) <= MOST_ENDS and min(sizes) >= 0
    ends, lengths = together, _ends(ctx, node, name, together)
    if lengths is None and several:
        ends, lengths = apart, _ends(ctx, node, name, apart)
    if lengths is None:
        return None
    own = size_length(ctx.ask, node, name, axis)
    prove(
        ctx.ask,
        node,
        f"'{name}' ending with the stream",
        lambda run: all(e.shown(run[name].array) == n.at(run.length) for e, n in zip(ends, lengths, strict=True)),
        ends=True,
        period=2 * math.lcm(*(n.period for n in lengths)),
    )
    layout = Layout(tuple(s if s <= 0 else 1 for s in sizes), axis)

    def take(window: Window) -> Deferred:
        def make() -> ir.Value:
            frames, flags = ctx.clock.frames(window), list[ir.Value]()
            for e, length in zip(ends, lengths, strict=True):
                made = ctx.builder.op("Less" if e.start else "GreaterOrEqual", frames, ctx.clock.end(length))
                flags.append(along(ctx, made, layout, window.frames))
            return flags[0] if len(flags) == 1 else ctx.builder.op("Concat", *flags, axis=others[0])

        return Deferred(make, fixed=False)

    entries = tuple(s if i in others and len(ends) > 1 else layout.sizes[i] for i, s in enumerate(sizes))
    end = min(map(ctx.latest_end, lengths))
    return Wire(name, Layout(entries, axis), ir.DataType.BOOL, own, end, take)


@dataclass(frozen=True)
class _Ending:
    """Entries that change at the same frame; start: what they are before."""

    axis: int
    columns: slice
    start: bool

    def shown(self, array: Array) -> int | None:
        """How many frames come before; None if they change otherwise."""
        flags = _by_frame(array, self.axis)[:, self.columns]
        first = flags[:, 0] == self.start
        count = int(first.argmin()) if not first.all() else len(first)
        regular = (flags == flags[:, :1]).all() and not first[count:].any()
        return count if regular else None


def _ends(ctx: Context, node: Node, name: str, ends: Sequence[_Ending]) -> list[Length] | None:
    """Where each of them changes, as a length; None if one changes otherwise."""
    lengths = []
    for e in ends:
        if not all(run[name].array.size and e.shown(run[name].array) is not None for run in ctx.ask.traces.runs):
            return None
        found = tabulated(ctx.ask, node, name, e.shown)
        if found is None:
            return None
        lengths.append(length_of(ctx.ask, node, found))
    return lengths


def counter(ctx: Context, name: str, axis: int, start: float, step: float) -> Wire:
    """Frame k holds start + step * k. Each stream has its own clock: a free batch is folded in front of time."""
    rank, dtype = len(ctx.ask.dims(name)), ctx.ask.dtype(name)
    outer = BATCHES if ctx.batch else (1, 1)
    sizes = tuple(0 if i == axis else 1 for i in range(rank))
    layout = Layout(sizes, axis, outer)

    def make(window: Window) -> ir.Value:
        b = ctx.builder
        x = b.op("Cast", ctx.clock.positions(window), to=int(dtype))
        if step != 1:
            x = b.op("Mul", x, b.constant(np.array(step, dtype.numpy()), "step"))
        if start != 0:
            x = b.op("Add", x, b.constant(np.array(start, dtype.numpy()), "start"))
        return b.reshape(x, layout.shape(window.frames))

    return Wire(name, layout, dtype, None, None, lambda w: Deferred(lambda: make(w)))
