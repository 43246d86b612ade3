"""Slice and Split: a shifted, thinned or shortened view of the stream, or rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from pulsify.analysis.amounts import far, fixed, known_at, neighbours
from pulsify.analysis.facts import Layout, Prefix, Window, Wire
from pulsify.analysis.fitted import fitted_length, with_short
from pulsify.analysis.length import Length
from pulsify.analysis.reach import Reach
from pulsify.emit.context import Context, Limit, Requirement
from pulsify.emit.plan import Plan, Read
from pulsify.frontend.model import Node
from pulsify.rules.pointwise import pointwise, static
from pulsify.rules.registry import rule
from pulsify.trace.evaluate import CannotRun
from pulsify.trace.lengths import BATCHES

FAR = (1 << 31) - 1  # an end this far means "to the end"
Range = tuple[int, int, int]  # start, stop, step


@rule("Slice", says="any start and end anchored at either end, positive step; rows of a table by position")
def slice_(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.wire(node.inputs[0])
    for i in range(1, 5):
        if node.input(i) and ctx.known(node.input(i)) is None:
            ctx.refuse(node, "where it cuts depends on the data", "cut at a fixed place")
    if wire is None:
        grown = ctx.time_axes(node.outputs[0])
        if not grown:
            return static(ctx, node)
        runs = [_ranges(ctx, node, run.length, run[node.inputs[0]].dims) for run in ctx.traces.runs]
        return table_rows(ctx, node, grown[0], [r[grown[0]] for r in runs])
    first = ctx.traces.runs[0]
    ranges = _ranges(ctx, node, first.length, first[node.inputs[0]].dims)
    if wire.layout.axis not in ranges:
        return _others(ctx, node, wire, ranges)
    _limit(ctx, node, wire)
    return _on_time(ctx, node, wire, _seen(ctx, node, wire), ranges)


def _limit(ctx: Context, node: Node, wire: Wire) -> None:
    """A fixed end (or a fixed number of last frames) beyond all traced lengths: longer streams would be cut there."""
    if wire.length is None or not all(fixed(ctx, node.input(i)) for i in (1, 2, 3)):
        return
    first = ctx.traces.runs[0]
    starts, stops, axes = (
        [int(v) for v in first[n].array.reshape(-1)] if n else [] for n in map(node.input, (1, 2, 3))
    )
    rank = wire.layout.rank
    at = [a % rank for a in (axes or range(len(starts)))].index(wire.layout.axis)
    longest = max(run[wire.name].dims[wire.layout.axis] for run in ctx.traces.runs)
    for rows in (stops[at] if 0 < stops[at] < FAR else 0, -starts[at] if starts[at] < 0 else 0):
        if rows > longest:
            ctx.limits[Limit(wire.length, node.name, rows)] = None


def _ranges(ctx: Context, node: Node, s: int, dims: Sequence[int]) -> dict[int, Range]:
    """axis -> (start, stop, step), clamped as Python's slices are, at one length."""
    parts = [[int(v) for v in known_at(ctx, n, s).array.reshape(-1)] if n else [] for n in map(node.input, range(1, 5))]
    starts, stops, axes, steps = parts
    axes = axes or list(range(len(starts)))
    steps = steps or [1] * len(starts)
    out = {}
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        end: int | None = stop
        if step < 0 and stop < -dims[axis]:
            end = None
        out[axis % len(dims)] = slice(start, end, step).indices(dims[axis])
    return out


def _on_time_at(ctx: Context, node: Node, wire: Wire, s: int) -> Range | None:
    """The range on the time axis at a stream length of s, or None if the model cannot run there."""
    assert wire.length is not None
    dims = list(ctx.dims(node.inputs[0], 0))
    dims[wire.layout.axis] = wire.length.at(s)
    try:
        return _ranges(ctx, node, s, dims)[wire.layout.axis]
    except CannotRun:
        return None


def _seen(ctx: Context, node: Node, wire: Wire) -> list[tuple[int, Range]]:
    """(frames, range) at the traced lengths; at many more if the model computes where it cuts."""
    runs = ctx.traces.runs
    out = []
    for run in runs:
        dims = run[node.inputs[0]].dims
        out.append((dims[wire.layout.axis], _ranges(ctx, node, run.length, dims)[wire.layout.axis]))
    if wire.length is not None:
        computed = not all(fixed(ctx, node.input(i)) for i in range(1, 5))
        more = ((wire.length.at(s), _on_time_at(ctx, node, wire, s)) for s in (neighbours if computed else far)(ctx))
        out += [(n, r) for n, r in more if r is not None]
    return out


def _whole(r: Range, frames: int) -> bool:
    return r == (0, frames, 1)


def _cut_others(ctx: Context, x: ir.Value, wire: Wire, ranges: dict[int, Range]) -> ir.Value:
    """Slice the axes that are not time."""
    b, axis = ctx.builder, wire.layout.axis
    rest = {a: r for a, r in ranges.items() if a != axis and not _whole(r, wire.layout.sizes[a])}
    if not rest:
        return x
    starts, stops, steps = zip(*rest.values(), strict=True)
    stops = tuple(-(1 << 31) if s < 0 and e < 0 else e for e, s in zip(stops, steps, strict=True))
    return b.op("Slice", x, b.ints(*starts), b.ints(*stops), b.ints(*rest), b.ints(*steps))


def _others(ctx: Context, node: Node, wire: Wire, ranges: dict[int, Range]) -> Plan:
    for axis, r in ranges.items():
        if (
            axis != wire.layout.axis
            and wire.layout.sizes[axis] < 0
            and not _whole(r, ctx.dims(node.inputs[0], 0)[axis])
        ):
            ctx.refuse(node, "it cuts the batch axis", 'fix the batch size with set={"B": 1}')
    kept = {a: r for a, r in ranges.items() if wire.layout.sizes[a] >= 0}

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (_cut_others(ctx, values[0], wire, kept),)

    return Plan((Read(wire),), (ctx.layout(node, node.outputs[0], wire.layout.outer),), wire.length, emit)


def _on_time(
    ctx: Context, node: Node, wire: Wire, seen: list[tuple[int, Range]], ranges: dict[int, Range]
) -> Plan | None:
    if all(_whole(r, n) for n, r in seen):
        return _others(ctx, node, wire, ranges)
    starts, steps = {r[0] for _, r in seen}, {r[2] for _, r in seen}
    if min(steps) < 0:
        ctx.refuse(node, "it runs backwards over the whole stream", "a stream has no end to start from; drop the flip")
    if len(starts) > 1 or len(steps) > 1:
        ctx.refuse(
            node,
            "where it starts depends on the total length (it keeps the last frames)",
            "keep a fixed number of frames from the start, or all frames and choose after the stream",
        )
    (start,), (step,) = starts, steps
    axis, name = wire.layout.axis, node.outputs[0]
    if len({r[1] for _, r in seen}) == 1 and len({n for n, _ in seen}) > 1:
        return _prefix(ctx, node, wire, start, seen[0][1][1], step, ranges)
    length = _length(ctx, node, wire, start, step, {n - r[1] for n, r in seen})

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        x = values[0]
        if step > 1:
            x = ctx.builder.slice(x, axis, 0, (window.frames - 1) * step + 1, step)
        return (_cut_others(ctx, x, wire, ranges),)

    if wire.length is not None and length is not None and length.rate * step != wire.length.rate:
        ctx.refuse(
            node, "it keeps the first part of the stream, and the rest waits longer and longer", "take every n-th frame"
        )
    reach = Reach(step, 1, start, start)
    return Plan((Read(wire, reach),), (ctx.layout(node, name),), length, emit)


def _length(ctx: Context, node: Node, wire: Wire, start: int, step: int, behind: set[int]) -> Length | None:
    """How many frames are left; `behind` are the numbers of frames cut off at the end."""
    own = wire.length
    if own is None:
        return None

    def frames(s: int) -> int | None:
        r = _on_time_at(ctx, node, wire, s)
        return None if r is None else len(range(*r))

    if len(behind) > 1:
        return fitted_length(ctx, node, frames, own.period)
    length = own.then(1, step - 1 - start - behind.pop(), step, floor=True)
    if node.op == "Slice" and not all(fixed(ctx, node.input(i)) for i in range(1, 5)):
        return with_short(ctx, node, length, frames)
    if node.op == "Split":
        ctx.require(Requirement(own, node.name, at_least=start))
    return length


def _prefix(
    ctx: Context, node: Node, wire: Wire, start: int, stop: int, step: int, ranges: dict[int, Range]
) -> Plan | None:
    """A fixed number of the stream's first frames: kept as such, for whoever can use it (Concat)."""
    if (
        start
        or step != 1
        or any(not _whole(r, wire.layout.sizes[a]) for a, r in ranges.items() if a != wire.layout.axis)
    ):
        ctx.refuse(
            node,
            "a few frames from the start of the stream are cut out and used as a value of their own",
            "feed them as a separate input without a time axis",
        )
    ctx.facts[node.outputs[0]] = Prefix(wire, stop)
    return None


def table_rows(ctx: Context, node: Node, axis: int, ranges: Sequence[Range]) -> Plan | None:
    """A table cut to the length of the stream: frame k is row start + k * step, looked up by the clock."""
    starts, steps = {r[0] for r in ranges}, {r[2] for r in ranges}
    if len(starts) > 1 or len(steps) > 1:
        ctx.refuse(
            node, "which rows of the table it takes depends on the total length", "count positions from the start"
        )
    (start,), (step,) = starts, steps
    rows = ctx.dims(node.inputs[0])[axis]
    b, name = ctx.builder, node.outputs[0]
    table = ctx.operand(node, node.inputs[0])
    outer = BATCHES if ctx.clock.batch else (1, 1)
    sizes = tuple(0 if i == axis else s for i, s in enumerate(ctx.dims(name)))
    layout = Layout(sizes, axis, outer)

    def take(window: Window) -> ir.Value:
        place = ctx.clock.positions(window)
        if step != 1:
            place = b.op("Mul", place, b.constant(np.array(step, np.int32), "int"))
        if start:
            place = b.op("Add", place, b.constant(np.array(start, np.int32), "int"))
        place = b.op("Max", place, b.constant(np.array(0, np.int32), "int"))
        place = b.op("Min", place, b.constant(np.array(rows - 1, np.int32), "int"))
        return b.op("Gather", table, b.reshape(place, [-1]), axis=axis)

    left = (rows - start + step - 1) // step
    ctx.facts[name] = Wire(name, layout, ctx.dtype(name), None, None, take, rows=left)
    return None


@rule("Split", says="across time; on time into a first part of fixed size and the rest")
def split(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    if wire.layout.axis != node.attr("axis", 0) % wire.layout.rank:
        return pointwise(ctx, node)
    begin = [0] * len(ctx.traces.runs)
    for name in node.outputs:
        sizes = [run[name].dims[wire.layout.axis] for run in ctx.traces.runs]
        frames = [run[node.inputs[0]].dims[wire.layout.axis] for run in ctx.traces.runs]
        on_time = [(n, (b, b + s, 1)) for n, b, s in zip(frames, begin, sizes, strict=True)]
        part = Node(node.name, node.op, "", node.version, node.inputs, (name,), node.attrs, node.proto)
        _split_part(ctx, part, wire, on_time)
        begin = [b + s for b, s in zip(begin, sizes, strict=True)]
    return None


def _split_part(ctx: Context, node: Node, wire: Wire, on_time: list[tuple[int, Range]]) -> None:
    from pulsify.emit.plan import execute

    if len({r[0] for _, r in on_time}) > 1 and not any(node.outputs[0] in n.inputs for n in ctx.model.nodes):
        return  # nobody reads this part
    plan = _on_time(ctx, node, wire, on_time, {})
    if plan is not None:
        execute(ctx, node, plan)
