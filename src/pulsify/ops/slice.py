"""Slice and Split: a shifted, thinned or shortened view of the stream, or rows of a table."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, FirstFrames, Layout, Window, Wire, deferred, emitted
from pulsify.analysis.fields.shift import AMOUNTS
from pulsify.analysis.proof.claims import fixed, fixed_value
from pulsify.analysis.proof.numbers import (
    SHORT,
    follower,
    in_frames,
    length_of,
    numbers,
    runs_from,
    same_series,
    shortest_taken,
    sizes,
)
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.rows.reaches import ROW_READS
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.analysis.values.follow import VALUES, Follower, Value
from pulsify.analysis.values.moves import few_moved, numbers_in, sliced
from pulsify.analysis.values.sizes import SIZES
from pulsify.core.length import Length
from pulsify.core.reach import Reach
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths import series as one
from pulsify.lengths.series import (
    LONGEST,
    Series,
    Unsure,
    add,
    aligned,
    compare,
    constant,
    divide,
    extreme,
    multiply,
    subtract,
)
from pulsify.lengths.sizes import Sizes, bounds, whole_item
from pulsify.ops.fold import first_frames, last_frames
from pulsify.ops.pointwise import pointwise, static
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read
from pulsify.trace.lengths import BATCHES
from pulsify.trace.shapes import NO_LARGER, always
from pulsify.trace.usage import SIZED, Sized

Range = tuple[int, int, int]  # start, stop, step


@dataclass(frozen=True, eq=False)
class Cut:
    """A slice of one axis: where it starts and how many frames it has at every length, and its step."""

    start: Series
    count: Series
    step: int

    @property
    def whole(self) -> bool:
        return self.step == 1 and self.start.constant and not self.start.item


@rule("Slice", says="any start and end anchored at either end, positive step; rows of a table by position")
def slice_(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    for i in range(1, 5):
        if node.input(i) and ctx.ask.known(node.input(i)) is None:
            ctx.ask.refuse(node, "where it cuts depends on the data", "cut at a fixed place", kind=Kind.DATA)
    if wire is None:
        grown = ctx.ask.time_axes(node.outputs[0])
        if not grown:
            return static(ctx, node)
        cuts = _cuts(ctx, node)
        return table_rows(ctx, node, grown[0], _start(ctx, node, cuts[grown[0]]), cuts[grown[0]].step)
    cuts = _cuts(ctx, node)
    others = _others_cut(ctx, node, wire, cuts)
    if wire.layout.axis not in cuts:
        return _others(ctx, node, wire, others)
    return _on_time(ctx, node, wire, cuts[wire.layout.axis], others)


def _size(ctx: Context, node: Node, axis: int) -> Series:
    """If the length of a wire is unknown, its other axes have the sizes of its layout."""
    wire = ctx.ask.wire(node.inputs[0])
    if wire is not None and axis != wire.layout.axis:
        with contextlib.suppress(Unsure):
            return follower(ctx.ask).sizes_of(node.inputs[0])[axis]
        return constant(ctx.ask.dims(node.inputs[0], 0)[axis], ctx.ask.traces.tracer.time.step)
    return sizes(ctx.ask, node, node.inputs[0])[axis]


def _cuts(ctx: Context, node: Node) -> dict[int, Cut]:
    """By axis, clamped as Python's slices are."""
    rank = len(ctx.ask.dims(node.inputs[0]))
    starts, stops = (numbers(ctx.ask, node, node.input(i)).reshape(-1) for i in (1, 2))
    axes = fixed_value(ctx.ask, node, node.input(3), "axes").reshape(-1) if node.input(3) else range(len(starts))
    steps = fixed_value(ctx.ask, node, node.input(4), "step").reshape(-1) if node.input(4) else [1] * len(starts)
    out = {}
    for start, stop, a, by in zip(starts, stops, axes, steps, strict=True):
        axis, step = int(a) % rank, int(by)
        first, count = bounds(start, stop, step, _size(ctx, node, axis))
        ctx.ask.ledger.series(count)
        out[axis] = Cut(start if start.constant and start.item >= 0 else first, count, step)
    return out


def _others_cut(ctx: Context, node: Node, wire: Wire, cuts: Mapping[int, Cut]) -> dict[int, Range]:
    """The cuts across time, which must not change with the length."""
    out = {}
    for axis, cut in cuts.items():
        if axis == wire.layout.axis:
            continue
        if not cut.start.constant or not cut.count.constant:
            ctx.ask.refuse(
                node,
                f"where it cuts axis {axis} changes with the length of the stream",
                ("cut at a fixed place", ctx.ask.declare("8*n")),
                kind=Kind.LENGTH,
            )
        size = ctx.ask.dims(node.inputs[0])[axis]
        start = min(int(cut.start.item), size if cut.step > 0 else size - 1)
        stop = start + cut.step * int(cut.count.item)
        out[axis] = (start, min(stop, size) if cut.step > 0 else stop, cut.step)
    return out


def _start(ctx: Context, node: Node, cut: Cut, size: Series | None = None) -> int:
    """Where it starts: the same at every length at which anything is left. size: of the data that are cut."""
    if cut.start.constant:
        return int(cut.start.item)
    some = compare(cut.count, constant(0, cut.count.unit), np.greater)
    _, _, (starts, left) = aligned(cut.start, some)
    seen = starts[left]
    if cut.start.growth or not seen.size or (seen != seen[0]).any():
        if size is not None and (count := _from_the_end(cut, size)):
            _refuse_last(ctx, node, count, size)
        ctx.ask.refuse(
            node,
            "where it starts depends on the total length (it keeps the last frames)",
            "keep a fixed number of frames from the start, or all frames and choose after the stream",
            kind=Kind.LENGTH,
        )
    return int(seen[0])


def _with_frames(size: Series, count: int) -> int:
    """The shortest stream that has so many frames."""
    return (bisect_left(range(1, LONGEST // size.unit), count, key=lambda n: size.at(n * size.unit)) + 1) * size.unit


def _refuse_last(ctx: Context, node: Node, count: int, size: Series) -> NoReturn:
    """More of the last frames than short streams have: those come out shorter, which no value of a stream does."""
    least = _with_frames(size, count)
    ctx.ask.refuse(
        node,
        f"it keeps the last {count} frames, and of shorter streams all there are: how many follows from the length",
        (ctx.ask.declare(f"{least}+n", "declare that streams are no shorter"), "keep fewer frames"),
        kind=Kind.LENGTH,
    )


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
            and not _whole(r, ctx.ask.dims(node.inputs[0], 0)[axis])
        ):
            ctx.ask.refuse(node, "it cuts the batch axis", ctx.ask.fix_batch(), kind=Kind.BATCH)
    kept = {a: r for a, r in ranges.items() if wire.layout.sizes[a] >= 0}

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (_cut_others(ctx, values[0], wire, kept),)

    return Plan((Read(wire),), (ctx.ask.layout(node, node.outputs[0], wire.layout.outer),), wire.length, emit)


def _on_time(ctx: Context, node: Node, wire: Wire, cut: Cut, ranges: dict[int, Range]) -> Plan | None:
    step, size = cut.step, sizes(ctx.ask, node, node.inputs[0])[wire.layout.axis]
    if cut.whole and same_series(cut.count, size):
        return _others(ctx, node, wire, ranges)
    if step < 0:
        ctx.ask.refuse(
            node,
            "it runs backwards over the whole stream",
            "a stream has no end to start from; drop the flip",
            kind=Kind.BACKWARDS,
        )
    axis, name = wire.layout.axis, node.outputs[0]
    if axis not in ctx.ask.time_axes(name) and (count := _from_the_end(cut, size)):
        if count > SHORT and _with_frames(size, count) > shortest_taken(ctx.ask):
            _refuse_last(ctx, node, count, size)
        _check_count(ctx, node, cut, size, count, subtract(size, cut.start))
        return last_frames(ctx, node, wire, count, lambda x: _few(ctx, x, wire, (0, cut, ranges)))
    start = _start(ctx, node, cut, size)
    if axis not in ctx.ask.time_axes(name):
        not_folded(ctx, node, wire)
        return _prefix(ctx, node, wire, start, cut, ranges)
    length = _length(ctx, node, wire, start, cut)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        x = values[0]
        if step > 1:
            x = ctx.builder.slice(x, axis, 0, (window.frames - 1) * step + 1, step)
        return (_cut_others(ctx, x, wire, ranges),)

    if wire.length is not None and length is not None and length.rate * step != wire.length.rate:
        ctx.ask.refuse(
            node,
            "it keeps the first part of the stream, and the rest waits longer and longer",
            "take every n-th frame",
            kind=Kind.LENGTH,
        )
    if step > 1:
        not_folded(ctx, node, wire)
    reach, layout = Reach(step, 1, start, start), ctx.ask.layout(node, name, wire.layout.outer)
    if wire.end is None and wire.layout.batch is None:  # what is one for all streams stays so
        layout = replace(layout, sizes=tuple(1 if s < 0 else s for s in layout.sizes))
    return Plan((Read(wire, reach),), (layout,), length, emit)


def not_folded(ctx: Context, node: Node, wire: Wire) -> None:
    """Its first frames are those of the first stream only, where others are folded with time on the same axis."""
    if wire.layout.folded:
        ctx.ask.refuse(
            node,
            "it takes single frames where time is merged with another axis (B*T, say)",
            "take them before the reshape, with time on an axis of its own",
            kind=Kind.AXES,
        )


def _length(ctx: Context, node: Node, wire: Wire, start: int, cut: Cut) -> Length | None:
    """How many frames are left, at every length."""
    own, step = wire.length, cut.step
    if own is None:
        return None
    if node.op == "Split":
        ctx.ask.ledger.require(node.name, own, at_least=start)
    elif not all(fixed(ctx.ask, node, node.input(i)) for i in range(1, 5)):
        runs_from(ctx.ask, node, lambda s: [known_at(ctx.ask, node.input(i), s) for i in (1, 2)])
    frames = in_frames(ctx.ask, own)
    top = None if cut.count.growth or not frames.growth or own.cap is not None else int(cut.count.values[-1])
    # frames cut off behind, once the stream is long enough: so many, or that and what the step leaves over
    tail = cut.count.horizon + cut.count.period if top is None else 0
    left = int(frames.look(tail + 1)[-1]) - start - step * int(cut.count.look(tail + 1)[-1])
    for behind in range(left, left + step):
        length = replace(own.then(1, step - 1 - start - behind, step, floor=True), cap=top)
        length = length if top is not None else own.then(1, step - 1 - start - behind, step, floor=True)
        if same_series(in_frames(ctx.ask, length), cut.count):
            return length
    return length_of(ctx.ask, node, cut.count)


def _prefix(ctx: Context, node: Node, wire: Wire, start: int, cut: Cut, ranges: dict[int, Range]) -> Plan | None:
    """A fixed number of the stream's first frames: kept as such, for whoever can use it (Concat)."""
    count, size = int(cut.count.values[-1]), sizes(ctx.ask, node, node.inputs[0])[wire.layout.axis]
    if (
        start
        or cut.step != 1
        or not (cut.count.constant or same_series(cut.count, extreme(size, constant(count, size.unit), np.minimum)))
        or any(not _whole(r, wire.layout.sizes[a]) for a, r in ranges.items() if a != wire.layout.axis)
        or not count
    ):
        stop = start + cut.step * (count - 1) + 1
        _check_count(ctx, node, cut, size, stop, cut.start)
        return first_frames(ctx, node, wire, stop, lambda x: _few(ctx, x, wire, (start, cut, ranges)))
    ctx.ask.facts[node.outputs[0]] = FirstFrames(wire, count)
    return None


def _from_the_end(cut: Cut, size: Series) -> int:
    """How many frames from the end a slice begins, once the stream is long enough; 0 if it does not go by the end."""
    left = subtract(size, cut.start)
    far = left.growth == 0 and left.period == 1 and not cut.start.constant
    return int(left.values[-1]) if far else 0


def _check_count(ctx: Context, node: Node, cut: Cut, size: Series, frames: int, begins: Series) -> None:
    """A slice has as many frames, from the same place, at every length at which the stream has so many.

    begins: where it does, counted from the start or from the end.
    """
    count, enough = int(cut.count.values[-1]), compare(size, constant(frames, size.unit), np.greater_equal)
    _, _, (counts, starts, there) = aligned(cut.count, begins, enough)
    ctx.ask.ledger.series(begins)
    if (
        not count
        or cut.count.growth
        or begins.growth
        or (counts[there] != count).any()
        or (starts[there] != starts[-1]).any()
    ):
        ctx.ask.refuse(
            node,
            "a few frames of the stream are cut out as a value of their own, and which depends on its length",
            "cut a fixed number of frames at a fixed place from either end",
            kind=Kind.LENGTH,
        )


def _few(ctx: Context, x: ir.Value, wire: Wire, cut: tuple[int, Cut, dict[int, Range]]) -> ir.Value:
    """Of the first or last frames those that a slice takes, and what it cuts across them."""
    start, along, ranges = cut
    count = int(along.count.values[-1])
    x = ctx.builder.slice(x, wire.layout.axis, start, start + along.step * (count - 1) + 1, along.step)
    return _cut_others(ctx, x, wire, {a: r for a, r in ranges.items() if wire.layout.sizes[a] >= 0})


def table_rows(ctx: Context, node: Node, axis: int, start: int, step: int) -> Plan | None:
    """A table cut to the length of the stream: frame k is row start + k * step, looked up by the clock."""
    if step < 1:
        ctx.ask.refuse(
            node,
            "which rows of the table it takes depends on the total length",
            "count positions from the start",
            kind=Kind.LENGTH,
        )
    rows = ctx.ask.dims(node.inputs[0])[axis]
    name, table = node.outputs[0], ctx.ask.operand(node, node.inputs[0])
    outer = BATCHES if ctx.batch else (1, 1)
    sizes = tuple(0 if i == axis else s for i, s in enumerate(ctx.ask.dims(name)))
    layout = Layout(sizes, axis, outer)

    def make(window: Window) -> ir.Value:
        b, place = ctx.builder, ctx.clock.positions(window)
        if step != 1:
            place = b.op("Mul", place, b.constant(np.array(step, np.int32), "int"))
        if start:
            place = b.op("Add", place, b.constant(np.array(start, np.int32), "int"))
        place = b.op("Max", place, b.constant(np.array(0, np.int32), "int"))
        place = b.op("Min", place, b.constant(np.array(rows - 1, np.int32), "int"))
        return b.op("Gather", emitted(table), b.reshape(place, [-1]), axis=axis)

    left = (rows - start + step - 1) // step

    def take(window: Window) -> Deferred:
        return deferred(lambda: make(window), table)

    ctx.ask.facts[name] = Wire(name, layout, ctx.ask.dtype(name), None, None, take, table_rows=left)
    return None


@rule("Split", says="across time; on time into a first part of fixed size and the rest")
def split(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    if wire.layout.axis != node.attr("axis", 0) % wire.layout.rank:
        return pointwise(ctx, node)
    own = sizes(ctx.ask, node, node.inputs[0])[wire.layout.axis]
    begin = constant(0, own.unit)
    for i, name in enumerate(node.outputs):
        size = _split_size(ctx, node, own, i)
        _require_some(ctx, node, size)
        part = Node(node.name, node.op, "", node.version, node.inputs, (name,), node.attrs, node.proto)
        _split_part(ctx, part, wire, Cut(begin, size, 1))
        begin = add(begin, size)
    return None


def _require_some(ctx: Context, node: Node, size: Series) -> None:
    """A part of fewer than no frames makes the batch model fail: such streams are too short."""
    few = np.flatnonzero(size.look(size.horizon + size.period) < 0)
    if size.growth < 0 or (few.size and few[-1] >= size.horizon and not size.growth):
        ctx.ask.refuse(node, "a part would have fewer than no frames", "split off a fixed number of frames")
    while size.growth and few.size and few[-1] >= size.horizon:  # it grows, so it ends
        few = np.flatnonzero(size.look(2 * (int(few[-1]) + size.period)) < 0)
        size = replace(size, values=size.look(int(few[-1]) + 1 + size.period), horizon=int(few[-1]) + 1)
    if few.size:
        ctx.ask.ledger.require(node.name, Length(), at_least=(int(few[-1]) + 2) * size.unit)


def _split_size(ctx: Context, node: Node, own: Series, index: int) -> Series:
    """How many frames a part has: given, or all parts alike (the last may be shorter)."""
    given = numbers(ctx.ask, node, node.input(1)).reshape(-1) if node.input(1) else None
    if given is None and node.attr("split") is not None:
        return constant(node.attr("split")[index], own.unit)
    if given is not None:
        found: Series = given[index]
        return found
    parts = constant(len(node.outputs), own.unit)
    each = divide(add(own, constant(len(node.outputs) - 1, own.unit)), parts)
    begin = multiply(each, constant(index, own.unit))
    return extreme(each, subtract(own, begin), np.minimum)


def _split_part(ctx: Context, node: Node, wire: Wire, cut: Cut) -> None:
    from pulsify.plan.plan import execute

    model, name = ctx.ask.model, node.outputs[0]
    if not cut.start.constant and name not in model.outputs and not any(name in n.inputs for n in model.nodes):
        return  # nobody reads this part
    plan = _on_time(ctx, node, wire, cut, {})
    if plan is not None:
        execute(ctx, node, plan)


# ---- roles of inputs
SIZED.add({"Slice": Sized((1, 2), "part"), "Split": Sized((1,), "part")})


# ---- at one length
NO_LARGER.add({"Slice": always})


# ---- values by length
@VALUES("Slice")
def slice_values(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if (few := few_moved(f, node, ins)) is not None:
        return few
    starts, stops = (numbers_in(f, v, "where it cuts") for v in ins[1:3])
    axes, steps = (f.fixed(v).reshape(-1) if v is not None else None for v in [*ins[3:], None, None][:2])
    out: Value = ins[0]
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        axis, step = int(axes[i]) if axes is not None else i, int(steps[i]) if steps is not None else 1
        out = sliced(f, out, axis, start, stop, step)
    return out


@SIZES("Slice")
def slice_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    out = list(sizes[0])
    places = [numbers_in(f, f.value(n)) if n else None for n in node.inputs[1:]] + [None, None]
    starts, stops = places[0], places[1]
    assert starts is not None and stops is not None
    axes = [whole_item(n) % len(out) for n in places[2]] if places[2] is not None else list(range(len(starts)))
    steps = [whole_item(n) for n in places[3]] if places[3] is not None else [1] * len(starts)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        out[axis] = bounds(start, stop, step, out[axis])[1]
    return tuple(out)


@VALUES("Split")
def split_values(f: Follower, node: Node, ins: list[Value]) -> list[Value]:
    if (few := few_moved(f, node, ins)) is not None:
        return few
    v = f.spread(ins[0])
    axis = node.attr("axis", 0) % v.rank
    if axis in v.times:
        raise Unsure("it is split along time")
    if len(ins) > 1 and ins[1] is not None:
        f.fixed(ins[1])
    return [
        replace(v, sizes=(*v.sizes[:axis], constant(f.first(o).dims[axis], f.unit), *v.sizes[axis + 1 :]))
        for o in node.outputs
    ]


# ---- rows of known tables
@ROW_READS("Split")
def _part_of_rows(w: Wanted) -> list[RowRead]:
    sizes, index = w.sizes(), list(w.node.outputs).index(w.name)
    axis = w.node.attr("axis", 0) % len(sizes)
    if w.node.input(1):
        parts = w.rows.numbers(w.node.inputs[1])
    else:
        total, count = w.rows.item(sizes[axis]), w.node.attr("num_outputs") or len(w.node.outputs)
        parts = [w.rows.constant(-(-total // count))] * len(w.node.outputs)
    start = w.rows.constant(0)
    for part in parts[:index]:
        start = one.add(start, part)
    if axis == w.axis and w.place is not None:
        return [RowRead(w.node.inputs[0], axis, w.place.moved(start))]
    w.rows.item(start)
    return [w.read(0, w.axis)]


AMOUNTS.add({"Split": (1,)})
