"""Concat: side by side across time, or fixed frames in front of and behind the stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, FirstFrames, Layout, Static, Window, Wire
from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.proof.numbers import in_frames, length_of, measured
from pulsify.analysis.unused import unused_entries
from pulsify.analysis.values.follow import FEW, VALUES, Few, Follower, Value
from pulsify.analysis.values.moves import COLUMNS
from pulsify.analysis.values.sizes import SIZES
from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE, shift
from pulsify.core.refusal import Kind
from pulsify.emit.builder import choose
from pulsify.emit.frames import aligned, along, gather_frames
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.joining import joined_along
from pulsify.lengths.series import Series, add, constant, extreme, subtract
from pulsify.lengths.sizes import Sizes
from pulsify.ops.pointwise import as_many, common_length, pointwise, static
from pulsify.ops.registry import rule
from pulsify.plan.boundary import check_aligned, mirrored_wire
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read, settled
from pulsify.trace.shapes import CHECK, Inputs
from pulsify.trace.traced import CannotRun


@rule("Concat", says="across time; on time with fixed frames before or after the stream")
def concat(ctx: Context, node: Node) -> Plan | None:
    facts = [ctx.ask.fact(n) for n in node.inputs]
    wires = [f for f in facts if isinstance(f, Wire)]
    if not wires:
        return static(ctx, node)
    axis = node.attr("axis") % len(ctx.ask.dims(node.outputs[0]))
    if any(w.layout.axis != axis for w in wires):
        return _across(ctx, node, wires)
    return _on_time(ctx, node, axis)


def _across(ctx: Context, node: Node, wires: list[Wire]) -> Plan | None:
    if len({w.layout.axis for w in wires}) > 1 or len(wires) < len(node.inputs):
        ctx.ask.refuse(
            node, "it joins values whose time axes differ", "give every part the same time axis", kind=Kind.AXES
        )
    known = [w for w in wires if w.end is None]
    if not known:
        return _without_late_parts(ctx, node, wires) or pointwise(ctx, node)
    if len(known) == len(wires):
        return pointwise(ctx, node)
    # A clock or a constant beside data: bring it to the data's batch first.
    target = next(w for w in wires if w.end is not None).layout
    reads = tuple(Read(w) for w in wires)

    def check(window: Window) -> None:
        for w in known:
            check_aligned(ctx, w, target, window)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        parts = []
        for w, v in zip(wires, values, strict=True):
            data = values[wires.index(_data(wires))]
            if w.constant_frame is not None and w.layout.outer != target.outer:
                parts.append(as_many(ctx, w, data, _data(wires)))
            else:
                parts.append(batched(ctx, w, v, target, data, window) if w.end is None else v)
        return ctx.builder.ops("Concat", parts, node.attrs, name=node.name)

    layout = ctx.ask.layout(node, node.outputs[0], target.outer)
    return Plan(reads, (layout,), common_length(wires), emit, merges=True, check=check)


def _without_late_parts(ctx: Context, node: Node, wires: list[Wire]) -> Plan | None:
    """Where parts that come late count for nothing (samples that a window makes zero), others stand in for them."""
    if len({w.layout.outer for w in wires}) > 1 or any(w.end is None for w in wires):
        return None
    axis = node.attr("axis") % wires[0].layout.rank
    sizes = [ctx.ask.dims(n)[axis] for n in node.inputs]
    front, back = unused_entries(ctx.ask, node.outputs[0], axis)
    behind = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    needed = [i for i, n in enumerate(sizes) if behind[i] > front and behind[i] - n < behind[-1] - back]
    stands_in = [_nearest(i, [j for j in needed if sizes[j] == n]) for i, n in enumerate(sizes)]
    used = sorted(set(stands_in))
    length = common_length(wires)
    if length is None:
        return None
    ends = [w.end for w in wires if w.end is not None]
    if min(ends[i] for i in used) <= min(ends):
        for i in set(range(len(wires))) - set(used):  # at another phase they may be late
            ctx.spare(node, wires[i], POINTWISE, None)
        return None
    for wire in wires:
        if wire.length not in (None, length):
            ctx.ask.ledger.require(node.name, length, equals=wire.length)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        parts = [values[used.index(i)] for i in stands_in]
        return ctx.builder.ops("Concat", parts, node.attrs, name=node.name)

    layout = ctx.ask.layout(node, node.outputs[0], wires[0].layout.outer)
    return Plan(tuple(Read(wires[i]) for i in used), (layout,), length, emit, merges=True)


def _nearest(part: int, others: list[int]) -> int:
    return min(others, key=lambda i: abs(i - part), default=part)


def _data(wires: list[Wire]) -> Wire:
    return next(w for w in wires if w.end is not None)


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of fixed size: constant frames, the first frames of the stream itself, or what is made of all of them.

    ends: where the frames end that must have come before it is right, counted as those of the stream it is joined to.
    """

    name: str
    frames: int
    first: FirstFrames | None = None
    ends: tuple[int, ...] = ()


def _on_time(ctx: Context, node: Node, axis: int) -> Plan | None:
    """Frame k is front[k] below the front's size, then the stream, then the tail counted from the stream's end."""
    streams = [i for i, n in enumerate(node.inputs) if isinstance(ctx.ask.fact(n), Wire)]
    if len(streams) > 1:
        ctx.ask.refuse(
            node,
            "it puts one stream behind the end of another, which never comes",
            "join them on another axis, or run them as two streams",
            kind=Kind.WHOLE_STREAM,
        )
    at = streams[0]
    found = ctx.ask.wire(node.inputs[at])
    assert found is not None
    wire = measured(ctx.ask, node, found)
    front = [_part(ctx, node, n, axis) for n in node.inputs[:at]]
    tail = [_part(ctx, node, n, axis, wire) for n in node.inputs[at + 1 :]]
    if len(front) > 1 or any(_of_another_rate(p, wire) for p in front):
        front = [_as_value(ctx, node, p) for p in front]  # not frames that are there already: values, waited for
    tail = [_as_value(ctx, node, p) for p in tail]
    if front and front[0].first and front[0].first.wire is found and wire.length is not None:
        wire = _repeated(ctx, node, wire, front[0].frames, f"{node.outputs[0]}#front" if tail else node.outputs[0])
        if not tail:
            ctx.ask.facts[node.outputs[0]] = wire
            return None
        front = []
    before, after = sum(p.frames for p in front), sum(p.frames for p in tail)
    length = wire.length.then(add=before + after) if wire.length is not None else None
    layout = ctx.ask.layout(node, node.outputs[0])
    reads = [Read(wire, shift(-before))]
    if front and front[0].first:
        early = front[0].first.wire
        reads.append(Read(early))
        if early.length is not None:
            ctx.ask.ledger.require(node.name, early.length, at_least=front[0].frames)

    tables = {p.name: f.recipe for p in (*front, *tail) if isinstance(f := ctx.ask.fact(p.name), Static)}

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b, frames = ctx.builder, ctx.clock.frames(window)
        x = values[0] if found.end is not None else _for_every_stream(ctx, wire, values[0], layout, frames, window)
        if before and window.start < before:
            early = values[1] if len(values) > 1 else _rows(ctx, front, tables, frames, layout, window)
            begun = b.op("Less", frames, b.constant(np.array(before, np.int32), "int"))
            x = choose(b, along(ctx, begun, layout, window.frames), early, x, wire.dtype)
        if after:
            assert wire.length is not None
            end = ctx.clock.end(wire.length.then(add=before))
            late = _rows(ctx, tail, tables, b.op("Sub", frames, end), layout, window)
            over = b.op("GreaterOrEqual", frames, end)
            x = choose(b, along(ctx, over, layout, window.frames), late, x, wire.dtype)
        return (x,)

    ends = [end for p in tail for end in p.ends]
    if after and found.end is None and wire.length is not None:
        ends.append(ctx.latest_end(wire.length))  # known frames go on past their end
    most = min(ends, default=None)
    return Plan(tuple(reads), (layout,), length, emit, tail=after > 0, most=None if most is None else most + before)


def _for_every_stream(
    ctx: Context, wire: Wire, value: ir.Value, layout: Layout, frames: ir.Value, window: Window
) -> ir.Value:
    """Known frames, which may be one for all streams, once for each. frames: their places, [B, frames]."""
    b, value = ctx.builder, aligned(ctx, wire, value, layout, window)
    if layout.batch is None:
        return value
    target = [b.ints(1)] * layout.rank
    target[layout.batch] = b.op("Mul", b.size(frames, 0), b.ints(-layout.sizes[layout.batch]))
    return b.op("Expand", value, b.op("Concat", *target, axis=0))


def _repeated(ctx: Context, node: Node, wire: Wire, count: int, name: str) -> Wire:
    """The stream with its first `count` frames once more in front (fewer, if it has fewer), by this name."""
    own = wire.length
    assert own is not None
    frames = in_frames(ctx.ask, own)
    again = extreme(frames, constant(count, frames.unit), np.minimum)  # fewer, if there are fewer
    length = length_of(ctx.ask, node, add(frames, again))
    source = settled(ctx, node, wire) if wire.mirror is not None else wire
    return mirrored_wire(ctx, name, source, count, 0, "repeat", length)


def _part(ctx: Context, node: Node, name: str, axis: int, ahead: Wire | None = None) -> Part:
    """ahead: the stream that it stands behind. What is made of that stream's last frame is known there."""
    fact = ctx.ask.fact(name)
    frames = ctx.ask.dims(name)[axis]
    if isinstance(fact, FirstFrames):
        return Part(name, frames, fact)
    if ahead is not None and isinstance(fact, Static) and fact.late and not fact.early:
        ends = [_end(ctx, w.length, w.window, ahead) for w in fact.late if w.window is not None]
        if all(end is not None for end in ends):
            return Part(name, frames, ends=tuple(end for end in ends if end is not None))
    ctx.ask.operand(node, name)  # refuses what is neither constant nor static
    return Part(name, frames)


def _end(ctx: Context, length: Length, window: Window, ahead: Wire) -> int | None:
    """So many frames of `ahead`, and of what is behind it, may be given out once this window has come.

    One behind its last is right if `window` has the last one of its wire, which may be longer: x[1:], then x[-1:].
    """
    if ahead.length is None or length.rate != ahead.length.rate:
        return None
    more = subtract(in_frames(ctx.ask, length), in_frames(ctx.ask, ahead.length))
    if more.growth:
        return None
    return window.end - max(int(more.look(more.horizon + more.period).max()) - 1, 0)


def _of_another_rate(part: Part, wire: Wire) -> bool:
    """Do its frames come faster or more slowly than those they are put in front of?"""
    early = None if part.first is None else part.first.wire.length
    return early is not None and wire.length is not None and early.rate != wire.length.rate


def _as_value(ctx: Context, node: Node, part: Part) -> Part:
    """First frames of the stream, waited for."""
    if part.first is not None:
        ctx.ask.operand(node, part.name)
    return replace(part, first=None)


def _rows(
    ctx: Context,
    parts: list[Part],
    tables: Mapping[str, Deferred],
    frames: ir.Value,
    layout: Layout,
    window: Window,
) -> ir.Value:
    """The frames of constant parts at the given places (clamped; what lies outside is never used)."""
    b = ctx.builder
    values = [tables[p.name].value for p in parts if p.name in tables]
    table = values[0] if len(values) == 1 else b.op("Concat", *values, axis=layout.axis)
    size = sum(p.frames for p in parts)
    place = b.op("Max", frames, b.constant(np.array(0, np.int32), "int"))
    place = b.op("Min", place, b.constant(np.array(size - 1, np.int32), "int"))
    batched = ctx.ask.sizes(parts[0].name, layout.axis)
    if layout.batch is not None and batched[layout.batch] == 1:  # one table for all streams
        flat = b.op("Gather", table, b.reshape(place, [-1]), axis=layout.axis)
        split = [max(s, 1) if i != layout.axis else -1 for i, s in enumerate(layout.sizes)]
        split[layout.axis : layout.axis + 1] = [-1, window.frames]
        lifted = b.reshape(flat, split)
        order = [i for i in range(layout.rank + 1) if i != layout.batch + (layout.batch > layout.axis)]
        place_of_batch = order.index(layout.axis)
        del order[place_of_batch]
        order.insert(layout.batch, layout.axis)
        return b.op(
            "Squeeze",
            b.op("Transpose", lifted, perm=[*order, *(i for i in range(layout.rank + 1) if i not in order)]),
            b.ints(layout.rank),
        )
    return gather_frames(ctx, table, place, layout, window.frames)


# ---- at one length
@CHECK("Concat")
def _parts_fit(node: Node, ins: Inputs) -> None:
    axis = node.attr("axis")
    kept = {tuple(d for i, d in enumerate(v.dims) if i != axis % len(v.dims)) for v in ins if v is not None}
    if len(kept) > 1:
        raise CannotRun(node, f"the parts differ in shape: {sorted(kept)}")


# ---- values by length
@VALUES("Concat")
def concat_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    if sum(FEW + 1 if isinstance(v, Spread) else math.prod(v.dims) for v in ins) <= FEW:
        cells = np.concatenate([f.few(v) for v in ins], node.attr("axis"))
        return Few(cells, any(isinstance(c, Series) and c.floating for c in cells.flat))
    parts = [f.spread(v) for v in ins]
    return joined_along(parts, node.attr("axis") % parts[0].rank)


@SIZES("Concat")
def concat_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    out, axis = list(sizes[0]), node.attr("axis") % len(sizes[0])
    for part in sizes[1:]:
        out[axis] = add(out[axis], part[axis])
    return tuple(out)


@COLUMNS("Concat")
def columns(node: Node, rank: int) -> tuple[str, ...] | None:
    return node.inputs if node.attr("axis") % rank == rank - 1 else None


# ---- cells of a mask
CELLS.add({"Concat": CellLaw("joins")})


def batched(ctx: Context, wire: Wire, value: ir.Value, target: Layout, data: ir.Value, window: Window) -> ir.Value:
    """A known wire with one entry for all streams, repeated to the batch size of the data beside it."""
    value = aligned(ctx, wire, value, target, window)
    if target.batch is None:
        return value
    b = ctx.builder
    size = b.size(data, target.batch)
    ones = [b.ints(1)] * target.rank
    ones[target.batch] = size
    return b.op("Expand", value, b.op("Concat", *ones, axis=0))
