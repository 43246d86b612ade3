"""Overlap-add: frames are laid over each other, a hop apart, and summed up where they meet.

frames    [ 0 0 0 0 )
              [ 1 1 1 1 )
                  [ 2 2 2 2 )
signal      a a b b c c d d       a sample is complete once the last frame that covers it is there

Col2Im says so itself; Scatter says it by a table of places, which is read off and turned round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.analysis.proof.claims import fixed_value, prove
from pulsify.analysis.proof.numbers import length_of, measured, numbers
from pulsify.analysis.unused import zero_entries
from pulsify.analysis.values.follow import VALUES, Few, Follower, Value
from pulsify.core.length import Length
from pulsify.core.reach import Reach
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import affine_products as products
from pulsify.lengths.affine_array import FAR, ORIGIN, Spread, T, pair
from pulsify.lengths.series import Series, Unsure, add, choose, compare, constant
from pulsify.ops.concat import batched
from pulsify.ops.pointwise import clone, pointwise, static
from pulsify.ops.registry import rule
from pulsify.plan.boundary import Fill
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read
from pulsify.trace.evaluate import Trace
from pulsify.trace.shapes import NO_LARGER, always
from pulsify.trace.traced import Array
from pulsify.trace.usage import ROLE, Derived, Role, Use, Walk


@rule("Col2Im", says="blocks along time; the other axes of the image hold one block")
def col2im(ctx: Context, node: Node) -> Plan | None:
    """[B, C * block, frames] -> [B, C, ..., samples]."""
    found = ctx.ask.wire(node.inputs[0])
    if found is None:
        return static(ctx, node)
    if found.layout.axis == 0:
        return pointwise(ctx, node)
    block = [int(v) for v in fixed_value(ctx.ask, node, node.inputs[2], "block shape")]
    out = ctx.ask.layout(node, node.outputs[0])
    n, image = len(block), ctx.ask.sizes(node.outputs[0], out.axis)[2:]
    if found.layout.axis != 2 or out.axis != n + 1 or any(b != s for b, s in zip(block[:-1], image, strict=False)):
        ctx.ask.refuse(
            node,
            "its blocks do not follow one another along time alone",
            "fold along time, which must be the last axis",
            kind=Kind.AXES,
        )
    wire = measured(ctx.ask, node, found)
    assert wire.length is not None
    stride, dilation = (int((node.attr(k) or (1,) * n)[-1]) for k in ("strides", "dilations"))
    pads = node.attr("pads") or (0,) * (2 * n)
    before, size = int(pads[n - 1]), block[-1]
    channels = abs(ctx.ask.sizes_static(node.inputs[0])[1]) // size
    front, back = zero_entries(ctx.ask, node.inputs[0], 1) if channels == 1 and found.end is not None else (0, 0)
    before -= front * dilation
    span = (size - front - back - 1) * dilation + 1
    reach = Reach(1, stride, min(before - span + stride, before), before)
    length = length_of(ctx.ask, node, numbers(ctx.ask, node, node.inputs[1]).reshape(-1)[-1])
    ctx.ask.ledger.require(node.name, wire.length, at_least=1)
    blocks = Blocks(channels, size - front - back, stride, dilation)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        x, frames = values[0], reach.span(window.start, window.end)
        if front or back:
            x = ctx.builder.slice(x, 1, front, size - back)
        summed = _laid_over(ctx, blocks, wire.dtype, x, frames, (window.start + before, window.end + before))
        return (ctx.builder.reshape(summed, out.shape(window.frames)),)

    return Plan((Read(wire, reach, Fill()),), (out,), length, emit)


@dataclass(frozen=True)
class Blocks:
    """Frame f of a block of `size` samples begins at sample f * stride; its samples are `dilation` apart."""

    channels: int
    size: int
    stride: int
    dilation: int

    @property
    def piece(self) -> int:
        """Samples of a frame that stay together, wherever they go."""
        return self.stride if self.dilation == 1 else 1

    @property
    def pieces(self) -> int:
        return -(-self.size // self.piece)

    def goes(self, frame: Array, piece: Array) -> Array:
        """Where pieces of frames go, counted in pieces."""
        return frame * self.stride // self.piece + piece * self.dilation


def _table_of(goes: Array, count: int) -> tuple[Array, Array]:
    """For each of `count` places which entries of `goes` lead there, side by side, and how many of them are meant."""
    inside = np.flatnonzero((goes >= 0) & (goes < count))
    order = inside[np.argsort(goes[inside], kind="stable")]
    each = np.bincount(goes[order], minlength=count)
    shown = np.arange(max(each.max(initial=0), 1)) < each[:, None]
    table = np.zeros(shown.shape, np.int64)
    table[shown] = order
    return table, shown


def _laid_over(
    ctx: Context, blocks: Blocks, dtype: ir.DataType, x: ir.Value, frames: tuple[int, int], samples: tuple[int, int]
) -> ir.Value:
    """Frames [B, C * size, frames] as samples [B, C, samples]: every piece of the signal gathers those laid over it.

    No product with a kernel of ones and zeros: that would spread NaN over all samples of a frame.
    """
    b, piece = ctx.builder, blocks.piece
    first, last = samples[0] // piece, -(-samples[1] // piece)
    count = frames[1] - frames[0]
    piece_of, frame_of = np.mgrid[: blocks.pieces, frames[0] : frames[1]].reshape(2, -1)
    table, shown = _table_of(blocks.goes(frame_of, piece_of) - first, last - first)
    table = ((frame_of - frames[0]) * blocks.pieces + piece_of)[table]
    if blocks.channels == 1:  # as such it meets the model's own Transpose, and both go
        x = b.reshape(b.op("Transpose", x, perm=(0, 2, 1)), (-1, 1, count, blocks.size))
    else:
        x = b.op("Transpose", b.reshape(x, (-1, blocks.channels, blocks.size, count)), perm=(0, 1, 3, 2))
    if missing := blocks.pieces * piece - blocks.size:
        x = b.op("Pad", x, b.ints(*[0] * 7, missing), b.constant(np.array(0, dtype.numpy()), "zero"))
    x = b.reshape(x, (-1, blocks.channels, count * blocks.pieces, piece))
    x = b.op("Gather", x, b.constant(table, "places"), axis=2)
    if not shown.all():
        x = b.op("Where", b.constant(shown[..., None], "shown"), x, b.constant(np.array(0, dtype.numpy()), "zero"))
    x = b.reshape(b.op("ReduceSum", x, b.ints(3), keepdims=0), (-1, blocks.channels, (last - first) * piece))
    begin, end = (s - first * piece for s in samples)
    return x if (begin, end) == (0, (last - first) * piece) else b.slice(x, 2, begin, end)


@dataclass(frozen=True, eq=False)
class Places:
    """Update i goes to output frame first[i % count] + i // count * step: `count` updates for every `step` frames."""

    first: Array
    step: int

    def at(self, i: Array) -> Array:
        count = len(self.first)
        return self.first[i % count] + i // count * self.step


@rule(
    "ScatterND",
    "ScatterElements",
    says="frame by frame; reduction='add' along time at places that move on with time (overlap-add)",
)
def scatter(ctx: Context, node: Node) -> Plan | None:
    if not any(ctx.ask.wire(n) for n in (node.inputs[0], node.inputs[2])):
        return static(ctx, node)
    axis = node.attr("axis", 0) % len(ctx.ask.dims(node.inputs[0])) if node.op == "ScatterElements" else 0
    updates, base = ctx.ask.wire(node.inputs[2]), ctx.ask.wire(node.inputs[0])
    if node.op == "ScatterElements" and (plan := _frame_by_frame(ctx, node, axis)) is not None:
        return plan
    if node.attr("reduction", "none") != "add":
        by_data = ctx.ask.known(node.inputs[1]) is None
        why = "depend on the data" if by_data else "are no range of each axis"
        ctx.ask.refuse(
            node,
            f"the places that it writes to {why}, so frames may be written from any other frame",
            "write to a range of frames and channels, sum up (reduction='add'), or join the parts (torch.cat)",
        )
    if updates is None or base is None or updates.layout.axis != axis or base.layout.axis != axis:
        ctx.ask.refuse(
            node, "time is not the axis it scatters along", "scatter along time, with one index a frame", kind=Kind.AXES
        )
    wire = measured(ctx.ask, node, updates)
    assert wire.length is not None
    length = base.length or measured(ctx.ask, node, base).length
    assert length is not None
    places = _places(ctx, node, wire, length, axis)
    reach = _reach(ctx, node, wire, length, axis)
    ctx.ask.ledger.require(node.name, wire.length, at_least=1)
    silent = all(not run[node.inputs[0]].array.any() for run in ctx.ask.traces.runs if run[node.inputs[0]].known)
    silent = silent and ctx.ask.known(node.inputs[0]) is not None
    if silent:
        prove(ctx.ask, node, "what it adds to being zero", lambda run: not run[node.inputs[0]].array.any())
    out = ctx.ask.layout(node, node.outputs[0])

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        summed = _summed(ctx, wire, values[0], places, reach, window)
        return (summed if silent else ctx.builder.op("Add", summed, values[1]),)

    reads = (Read(wire, reach, Fill()), *(() if silent else (Read(base),)))
    return Plan(reads, (out,), length, emit)


def _table(ctx: Context, node: Node, run: Trace, axis: int) -> Array:
    """One place for every update along time."""
    value = run[node.inputs[1]]
    if not value.known:
        ctx.ask.refuse(
            node,
            "where it scatters depends on the data",
            "scatter to places that follow from the position",
            kind=Kind.DATA,
        )
    table = value.array
    if node.op == "ScatterND":
        if table.ndim != 2 or table.shape[1] != 1:
            ctx.ask.refuse(node, "it scatters single elements", "scatter whole frames: indices of shape [count, 1]")
        rows = table[:, 0]
    else:
        flat = np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
        others = [d for i, d in enumerate(table.shape) if i != axis]
        if others != [d for i, d in enumerate(run[node.inputs[0]].dims) if i != axis] or (flat != flat[:, :1]).any():
            ctx.ask.refuse(
                node, "it scatters single elements", "scatter whole frames: the same index across other axes"
            )
        rows = flat[:, 0]
    return np.where(rows < 0, rows + run[node.inputs[0]].dims[axis], rows)


def _places(ctx: Context, node: Node, wire: Wire, length: Length, axis: int) -> Places:
    """The table, read at the longest trace; claimed to move on with every pulse like that."""
    count, step = ctx.frames(wire.rate), ctx.frames(length.rate)
    found = Places(_table(ctx, node, ctx.ask.traces.longest, axis)[:count], step)

    def regular(run: Trace) -> bool:
        table = _table(ctx, node, run, axis)
        return np.array_equal(table, found.at(np.arange(len(table))))

    if len(found.first) < count:
        ctx.ask.refuse(node, "the pulse is longer than any stream looked at", "use a shorter pulse")
    line = {0 if node.op == "ScatterND" else axis: Fraction(step, count)}
    turn = (Fraction(count) / wire.rate).numerator
    prove(ctx.ask, node, "its table of places moving on with time", regular, slope=line, period=turn)
    return found


def _reach(ctx: Context, node: Node, wire: Wire, length: Length, axis: int) -> Reach:
    """Which updates an output frame is made of."""
    table = _table(ctx, node, ctx.ask.traces.longest, axis)
    ratio = Fraction(wire.rate) / length.rate
    num, den = ratio.numerator, ratio.denominator
    i = np.arange(len(table))
    offsets = i * den - table * num
    return Reach(num, den, int(offsets.min()), int(offsets.max()) + den - 1)


def _summed(ctx: Context, wire: Wire, x: ir.Value, places: Places, reach: Reach, window: Window) -> ir.Value:
    """Every output frame gathers what was scattered to it; those that get less add zeros."""
    axis = wire.layout.axis
    lo, hi = reach.span(window.start, window.end)
    goes = places.at(np.arange(lo, hi)) - window.start
    most = int(np.bincount(goes[(goes >= 0) & (goes < window.frames)], minlength=1).max())
    b = ctx.builder
    table = np.zeros((window.frames, max(most, 1)), np.int64)
    weight = np.zeros(table.shape, bool)
    for i, place in enumerate(goes):
        if 0 <= place < window.frames:
            at = int(weight[place].sum())
            table[place, at], weight[place, at] = i, True
    taken = b.op("Gather", x, b.constant(table, "places"), axis=axis)
    if not weight.all():
        shown = b.constant(weight.reshape(*weight.shape, *[1] * (wire.layout.rank - axis - 1)), "weight")
        taken = b.op("Where", shown, taken, b.constant(np.array(0, wire.dtype.numpy()), "zero"))
    return b.op("ReduceSum", taken, b.ints(axis + 1), keepdims=0)


# ---- roles of inputs
@ROLE("ScatterND", "ScatterElements")
def _marked(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    """Some of its entries are replaced."""
    known = walk.known(node.outputs[0])
    if tuple(own) == (0,) and known:
        return own[0]
    if known and walk.timed(node.inputs[0]):
        walk.say(node, Use.LENGTH, f"marks a frame of '{node.inputs[0]}'")
    else:
        walk.into_data(node, own)
    return Derived()


# ---- at one length
NO_LARGER.add({"ScatterND": always, "ScatterElements": always})


# ---- values by length
@VALUES("ScatterND", "ScatterElements")
def scatter_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    """Single entries at places that go with the length; of other writes only the size is certain, not what it holds."""
    v = f.spread(ins[0])
    try:
        if v.rank == 1 and not v.times:
            return _numbers_written(f, node, ins)
        if node.op == "ScatterND" and str(node.attr("reduction", "none")) == "none" and len(v.times) == 1:
            return _written(f, v, v.times[0], f.few(ins[1]), f.spread(ins[2]))
    except Unsure:
        pass
    near = {pair(ORIGIN, c): FAR for c in (T, *v.times)}
    return Spread(v.sizes, lo=-FAR, hi=FAR, near=near, uses=frozenset({T, *v.times}), floating=v.floating)


def _written(f: Follower, v: Spread, axis: int, index: Array, updates: Spread) -> Spread:
    """A value with entries written where the rows of an index say: others where the frame is the one they name."""
    if axis >= index.shape[-1] or updates.times:
        raise Unsure("it writes along time")
    new = many.exactly(updates)
    entry = replace(new, sizes=v.sizes, uses=new.uses & {T})
    for place in {id(p): p for p in index.reshape(-1, index.shape[-1])[:, axis]}.values():
        if not isinstance(place, Series):
            raise Unsure("where it writes is no linear function of the length")
        below = compare(place, constant(0, f.unit), np.less)
        frame = choose(below, add(place, v.sizes[axis]), place)  # negative ones count from the end
        line = f.spread(Few(np.array(frame, object)))
        slope = {axis: Fraction(1), **{c: -q for c, q in line.slope.items()}}
        off = replace(line, sizes=v.sizes, slope=slope, lo=-line.hi, hi=-line.lo, uses=line.uses | {axis})
        v = products.chosen(v.sizes, many.decided(off), entry, v)
    return v


def _frame_by_frame(ctx: Context, node: Node, axis: int) -> Plan | None:
    """Places on another axis than time, for every frame its own: a frame is written from itself."""
    if axis in ctx.ask.time_axes(node.outputs[0]):
        return None
    wires = [ctx.ask.wire(name) for name in node.inputs]
    if any(w is None or w.layout.axis == axis or w.layout.folded for w in wires):
        return None
    used = [measured(ctx.ask, node, w) for w in wires if w is not None]
    if len({w.layout.axis for w in used}) > 1 or all(w.end is None for w in used):
        return None
    run, time = ctx.ask.traces.longest, used[0].layout.axis
    if len({run[name].dims[time] for name in node.inputs}) > 1:
        ctx.ask.refuse(
            node,
            "it writes into a part of the frames only, at places that differ from frame to frame",
            "write into the frames that there are places for (x[..., 1:]), and join the others (torch.cat)",
        )
    target = next((w.layout for w in used if w.end is not None and w.layout.batch is not None), used[0].layout)
    _require_all_streams(ctx, node, target)
    size, dtype = ctx.ask.dims(node.inputs[0])[axis], used[1].dtype

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b = ctx.builder
        data = values[next((i for i, w in enumerate(used) if w.layout is target), 0)]
        x, places, new = (
            batched(ctx, w, v, target, data, window) if w.end is None else v for w, v in zip(used, values, strict=True)
        )
        low, high = (b.constant(np.array(v, dtype.numpy()), "int") for v in (-size, size - 1))
        inside = b.op("Min", b.op("Max", places, low), high)  # of frames that are not real
        return clone(ctx, node, [x, inside, new])

    return Plan(
        tuple(Read(w) for w in used), (ctx.ask.layout(node, node.outputs[0]),), used[0].length, emit, merges=True
    )


def _numbers_written(f: Follower, node: Node, ins: list[Value]) -> Value:
    """A few numbers (a shape), some of which are replaced."""
    cells, index = f.few(ins[0]).copy(), f.fixed(ins[1]).reshape(-1)
    if str(node.attr("reduction", "none")) != "none" or len(set(index.tolist())) < index.size:
        raise Unsure("it combines entries")
    cells[index] = f.few(ins[2]).reshape(-1)
    return Few(cells)


def _require_all_streams(ctx: Context, node: Node, target: Layout) -> None:
    """Places for fewer streams than there are would be those of the first streams."""
    other = ctx.ask.traces.other_batch
    if target.batch is None or other is None:
        return
    if any(len({run[name].dims[target.batch] for name in node.inputs}) > 1 for run in (ctx.ask.traces.longest, other)):
        ctx.ask.refuse(
            node,
            "it writes into some of the streams only",
            (ctx.ask.fix_batch(), "list places for every stream: expand them to the size of the data"),
            kind=Kind.BATCH,
        )
