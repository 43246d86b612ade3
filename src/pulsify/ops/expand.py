"""Expand and Tile: a fixed value repeated over time, or a stream repeated across other axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Layout, Static, Window, Wire, deferred
from pulsify.analysis.proof.claims import fixed
from pulsify.analysis.proof.numbers import as_expected, numbers, parts_where_batch_fails, sizes
from pulsify.analysis.values.follow import FEW, VALUES, Few, Fixed, Follower, Value
from pulsify.analysis.values.moves import anything, carried, numbers_in
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.indexing import met, moved_axes
from pulsify.lengths.series import constant, multiply
from pulsify.ops.pointwise import static
from pulsify.ops.registry import rule
from pulsify.plan.context import Context, broadcast_axis, streams_in_step
from pulsify.plan.known_facts import constant_wire
from pulsify.plan.plan import Plan, Read
from pulsify.trace.evaluate import ARRAYS
from pulsify.trace.lengths import BATCHES
from pulsify.trace.shapes import Inputs
from pulsify.trace.traced import Array, CannotRun
from pulsify.trace.usage import SIZED, Sized


@rule("Expand", says="across any axis; a value without time repeated at every frame")
def expand(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return _over_time(ctx, node)
    name = node.outputs[0]
    axes = ctx.ask.time_axes(name)
    if axes != [broadcast_axis(wire.layout, len(ctx.ask.dims(name)))]:
        ctx.ask.refuse(
            node,
            "it repeats the stream along a second time axis",
            "a bounded mask is needed where frames meet frames",
            kind=Kind.LOOK_AHEAD,
        )
    _check_shape(ctx, node, axes[0])
    layout = ctx.ask.layout(node, name, wire.layout.outer)
    targets = [1 if s <= 0 else s for s in layout.sizes]
    grows = _grows_with_batch(ctx, node, wire, layout)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        if grows:
            return (ctx.builder.op("Expand", values[0], _batch_target(ctx, node, targets, layout), name=node.name),)
        return (ctx.builder.op("Expand", values[0], ctx.builder.ints(*targets), name=node.name),)

    if wire.end is None and wire.layout.batch is None:
        layout = Layout(tuple(1 if s < 0 else s for s in layout.sizes), layout.axis, layout.outer)
    return Plan((Read(wire),), (layout,), wire.length, emit, copies=wire.end is not None)


def _grows_with_batch(ctx: Context, node: Node, wire: Wire, layout: Layout) -> bool:
    """Data without a batch axis gets one here. (A known value can stay one for all streams.)"""
    return wire.end is not None and layout.batch is not None and wire.layout.batch is None


def _batch_target(ctx: Context, node: Node, targets: list[int], layout: Layout) -> ir.Value:
    b = ctx.builder
    stream = next(iter(b.inputs.values()))
    assert layout.batch is not None
    size = b.op("Mul", b.op("Shape", stream, start=0, end=1), b.ints(-layout.sizes[layout.batch]))
    parts = [b.ints(t) for t in targets]
    parts[layout.batch] = size
    return b.op("Concat", *parts, axis=0)


def _over_time(ctx: Context, node: Node) -> Plan | None:
    name = node.outputs[0]
    axes = ctx.ask.time_axes(name)
    if not axes:
        return static(ctx, node)
    source = node.inputs[0]
    at = axes[0] - (len(ctx.ask.dims(name)) - len(ctx.ask.dims(source)))
    if len(axes) > 1 or (at >= 0 and ctx.ask.dims(source)[at] != 1):
        ctx.ask.refuse(node, "it repeats more than one frame over time", "repeat a single frame")
    _check_shape(ctx, node, axes[0])
    value = ctx.ask.operand(node, source)
    assert value is not None
    layout = ctx.ask.layout(node, name)
    kept = [1] * (len(ctx.ask.dims(name)) - len(ctx.ask.dims(source))) + _kept(ctx, source)
    # what is one for all streams stays so
    own = tuple(1 if s < 0 and k > 0 else s for s, k in zip(layout.sizes, kept, strict=True))
    layout, targets = replace(layout, sizes=own), [1 if s <= 0 else s for s in own]

    def make() -> ir.Value:
        b, ranked = ctx.builder, ctx.builder.reshape(value.value, kept)
        return b.op("Expand", ranked, b.ints(*targets)) if any(t != 1 for t in targets) else ranked

    frame = deferred(make, value)
    fact = ctx.ask.fact(source)
    assert isinstance(fact, Static)
    ctx.ask.facts[name] = replace(constant_wire(ctx, name, frame, layout), waits=fact.early)
    return None


def _check_shape(ctx: Context, node: Node, time: int) -> None:
    """Sizes are what they look like, at every length; a stream is repeated along time nowhere."""
    dims, unit = ctx.ask.dims(node.outputs[0]), ctx.ask.traces.tracer.time.step
    given, own = numbers(ctx.ask, node, node.inputs[1]).reshape(-1), sizes(ctx.ask, node, node.inputs[0])
    for back in range(1, len(given) + 1):
        axis, size = len(dims) - back, given[-back]
        before = own[-back] if back <= len(own) else constant(1, unit)
        if node.op == "Tile":
            expected = constant(dims[axis] // int(before.item), unit) if before.constant else constant(1, unit)
        else:
            expected = before if axis == time else constant(dims[axis], unit)
        if size.constant and size.item == 1 and node.op == "Expand":
            continue
        if axis == time and node.op == "Expand" and parts_where_batch_fails(ctx.ask, node, size, before, ones=True):
            continue
        if axis != time or not before.constant:
            as_expected(ctx.ask, node, node.outputs[0], axis, size, expected)


def _kept(ctx: Context, name: str) -> list[int]:
    dims = list(ctx.ask.dims(name, 0))
    other = ctx.ask.traces.other_batch
    if other is not None:
        dims = [d if d == o else -1 for d, o in zip(dims, other[name].dims, strict=True)]
    return dims


@rule("Tile", says="across any axis but time; a value without time repeated at every frame")
def tile(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return _over_time(ctx, node) if ctx.ask.time_axes(node.outputs[0]) else static(ctx, node)
    tables = ctx.ask.known(node.inputs[1])
    if tables is None:
        ctx.ask.refuse(
            node, "how often it repeats depends on the data", "repeat a fixed number of times", kind=Kind.DATA
        )
    if not fixed(ctx.ask, node, node.inputs[1]):
        ctx.ask.refuse(
            node, "how often it repeats depends on the total length", "repeat a fixed number of times", kind=Kind.LENGTH
        )
    repeats = [int(r) for r in tables[0].reshape(-1)]
    if _once_a_stream(ctx, node, wire):
        return _for_every_stream(ctx, node, wire, repeats)
    if repeats[wire.layout.axis] != 1:
        ctx.ask.refuse(
            node,
            "it repeats the whole stream, whose end never comes",
            "repeat every frame instead (unsqueeze, expand, reshape)",
            kind=Kind.WHOLE_STREAM,
        )

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (ctx.builder.op("Tile", values[0], ctx.builder.ints(*repeats), name=node.name),)

    layout = ctx.ask.layout(node, node.outputs[0], wire.layout.outer)
    return Plan((Read(wire),), (layout,), wire.length, emit, copies=wire.end is not None)


def _once_a_stream(ctx: Context, node: Node, wire: Wire) -> bool:
    """Is a known value said again for every stream, one behind the other: [1, T] to [1, B*T], or to [2, B*T]?"""
    other = ctx.ask.traces.other_batch
    if other is None or wire.end is not None or wire.layout.outer not in ((1, 1), BATCHES):
        return False
    axis = wire.layout.axis
    counts = [run[node.inputs[1]].array.reshape(-1).tolist() for run in (ctx.ask.traces.runs[0], other)]
    others = [[*each[:axis], *each[axis + 1 :]] for each in counts]
    return tuple(each[axis] for each in counts) == BATCHES and others[0] == others[1]


def _for_every_stream(ctx: Context, node: Node, wire: Wire, repeats: list[int]) -> Plan:
    """Positions have an entry for every stream already."""
    axis = wire.layout.axis
    again = [1 if i == axis else n for i, n in enumerate(repeats)]
    sizes = tuple(s * n for s, n in zip(wire.layout.sizes, again, strict=True))

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b = ctx.builder
        if wire.layout.outer != BATCHES:
            parts = [streams_in_step(ctx) if i == axis else b.ints(n) for i, n in enumerate(again)]
            return (b.op("Tile", values[0], b.op("Concat", *parts, axis=0), name=node.name),)
        return (b.op("Tile", values[0], b.ints(*again), name=node.name) if set(again) != {1} else values[0],)

    return Plan((Read(wire),), (Layout(sizes, axis, BATCHES),), wire.length, emit)


# ---- roles of inputs
SIZED.add({"Expand": Sized((1,), "all"), "Tile": Sized((1,), "other")})


# ---- at one length
@ARRAYS("Expand")
def _view(node: Node, ins: Inputs) -> list[Array]:
    """A view: masks are spread over many channels."""
    value, target = ins[0], ins[1]
    assert value is not None and target is not None
    wanted = tuple(int(d) for d in target.array)
    if min(wanted, default=0) < 0:
        raise CannotRun(node, f"the output would have shape {list(wanted)}")
    try:
        shape = np.broadcast_shapes(value.dims, wanted)
    except ValueError as error:
        raise CannotRun(node, str(error)[:200]) from error
    return [np.broadcast_to(value.array, shape)]


# ---- values by length
@VALUES("Expand", "Tile")
def repeated_values(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if isinstance(ins[0], Few) and isinstance(ins[1], Fixed) and f.fixed(ins[1]).prod() <= FEW:
        return carried(f, node, ins[0], ins[1:])
    v, target = f.spread(ins[0]), numbers_in(f, ins[1])
    rank = max(v.rank, len(target))
    to = {a: a + rank - v.rank for a in range(v.rank)}
    own = [*[constant(1, f.unit)] * (rank - v.rank), *v.sizes]
    wanted = [*[constant(1, f.unit)] * (rank - len(target)), *target]
    shape, again, whole = [], set[int](), False
    for axis, (s, w) in enumerate(zip(own, wanted, strict=True)):
        if s.constant and s.item == 1:
            shape.append(w)
        elif node.op == "Expand":
            shape.append(met([s, w]))
        elif w.constant and w.item == 1:
            shape.append(s)
        elif s.constant and w.constant:
            shape.append(constant(s.item * w.item, f.unit))
        elif s.constant:  # as many entries a frame, the same at every frame
            shape.append(multiply(s, w))
            again.add(axis)
        else:  # frames repeated from the first to the last
            shape.append(multiply(s, w))
            whole = True
    moved = moved_axes(v, to, tuple(shape))
    if whole:
        return anything(moved)
    period = math.lcm(moved.period, *(wanted[a].pace.denominator for a in again))
    return replace(moved, uses=moved.uses | again, period=period) if again else moved
