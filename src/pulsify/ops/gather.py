"""Gather: an embedding of a stream, a choice of channels, or frames by a computed index table (framing, repeating)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import FirstFrames, Layout, Window, Wire, emitted
from pulsify.analysis.proof.claims import Claim, fixed, fixed_value, holds_everywhere, prove
from pulsify.analysis.proof.numbers import follower, runs_from, size_length, uncertain
from pulsify.analysis.proof.values import known_at, perhaps_empty
from pulsify.analysis.questions import Unclear
from pulsify.analysis.unused import unused_entries, unused_frames
from pulsify.core.length import Length
from pulsify.core.reach import Reach, fit
from pulsify.core.refusal import Kind
from pulsify.emit.frames import gather_frames
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import T, exactly, most, plane, reps, with_near
from pulsify.lengths.series import LONGEST, Unsure
from pulsify.ops.axes import guard
from pulsify.ops.conv import comes_sooner
from pulsify.ops.pointwise import pointwise
from pulsify.ops.registry import rule
from pulsify.ops.single import few, for_every_entry, of_each_stream
from pulsify.ops.slice import table_rows
from pulsify.plan.boundary import Fill, overrun
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import Array, CannotRun


@rule("Gather", says="across time; embeddings; frames by an index table that moves on with time (unfold, repeat)")
def gather(ctx: Context, node: Node) -> Plan | None:
    data, index = ctx.ask.fact(node.inputs[0]), node.inputs[1]
    axis = node.attr("axis", 0) % len(ctx.ask.dims(node.inputs[0]))
    if isinstance(data, Wire) and data.layout.axis == axis:
        return frames_by_index(ctx, node, data, index, axis)
    if not isinstance(data, Wire):
        counted = _counted_rows(ctx, node, index)
        if counted is not None:
            return table_rows(ctx, node, axis, *counted)
        if ctx.ask.known(index) is not None and ctx.ask.wire(index) is not None:
            return _looked_up(ctx, node, index, axis)
        computed = ctx.ask.wire(index) if index in ctx.ask.model.producers else None
        if computed is not None:
            return _embedded(ctx, node, computed, axis)
    elif ctx.ask.wire(index) is not None:
        ctx.ask.refuse(node, "it looks up a stream with another stream", "use GatherElements with both aligned in time")
    return pointwise(ctx, node)


def _embedded(ctx: Context, node: Node, wire: Wire, axis: int) -> Plan:
    """A table looked up with computed indices: those of frames that are not real are held inside the table."""
    rows = ctx.ask.dims(node.inputs[0])[axis]
    layout, table = ctx.ask.layout(node, node.outputs[0], wire.layout.outer), ctx.ask.operand(node, node.inputs[0])

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b = ctx.builder
        low, high = (b.constant(np.array(v, wire.dtype.numpy()), "int") for v in (-rows, rows - 1))
        place = b.op("Min", b.op("Max", values[0], low), high)
        return (b.op("Gather", emitted(table), place, axis=axis, name=node.name),)

    return Plan((Read(wire),), (layout,), wire.length, emit)


def _looked_up(ctx: Context, node: Node, index: str, axis: int) -> Plan:
    """A table at known places that follow from the position: held inside the table, whose end is noticed in time."""
    wire = ctx.ask.wire(index)
    assert wire is not None
    size = ctx.ask.dims(node.inputs[0])[axis]
    rows = _frames_inside(ctx, node, index, size)
    if rows is not None:
        wire = replace(wire, table_rows=rows if wire.table_rows is None else min(rows, wire.table_rows))
    table, per_stream = ctx.ask.operand(node, node.inputs[0]), _has_rows_per_stream(ctx, node, wire, axis)
    layout = ctx.ask.layout(node, node.outputs[0], (1, 1) if per_stream else wire.layout.outer)
    known = Layout(tuple(1 if s < 0 else s for s in layout.sizes), layout.axis, layout.outer)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b, dtype = ctx.builder, ctx.ask.dtype(index).numpy()
        place = b.op("Max", values[0], b.constant(np.array(-size, dtype), "int"))  # below zero: from the table's end
        place = b.op("Min", place, b.constant(np.array(size - 1, dtype), "int"))
        if per_stream:
            count = b.constant(np.array(size, dtype), "int")
            place = b.reshape(b.op("Mod", b.op("Add", place, count), count), [-1, window.frames])
            rows_of_each = emitted(table)
            assert rows_of_each is not None
            return (gather_frames(ctx, rows_of_each, place, layout, window.frames),)
        return (b.op("Gather", emitted(table), place, axis=axis, name=node.name),)

    return Plan((Read(wire),), (layout if per_stream else known,), wire.length, emit)


def _has_rows_per_stream(ctx: Context, node: Node, wire: Wire, axis: int) -> bool:
    """Has the table an axis of the batch, so that each stream looks up its own rows, at its own places?"""
    sizes = ctx.ask.sizes_static(node.inputs[0])
    if all(s >= 0 for s in sizes) or not wire.layout.folded:
        return False
    if sizes[axis] < 0:
        ctx.ask.refuse(node, "it picks among the streams of a batch", ctx.ask.fix_batch(), kind=Kind.BATCH)
    if wire.layout.rank > 1:
        ctx.ask.refuse(
            node, "each stream has a table of its own, looked up at several places a frame", ctx.ask.fix_batch()
        )
    return True


def _frames_inside(ctx: Context, node: Node, index: str, size: int) -> int | None:
    """How many frames find their row in a table of this size; None if all of them do, however many there are."""
    (at,) = ctx.ask.time_axes(index)
    try:
        v = follower(ctx.ask).spread(follower(ctx.ask).value(index))
        if T in v.uses:
            raise Unsure("which rows it takes depends on the total length")
        v = exactly(v) if not v.slope else replace(with_near(v, plane(v, size + most(v))), slope={})
        length, _ = reps([v], {}, 1, False)
        ctx.ask.ledger.up_to(v.certain, index)
    except Unsure as problem:
        if ctx.ask.options.proof != "sampled":
            uncertain(ctx.ask, node, index, problem)
        ctx.ask.ledger.sampled[index] = str(problem)
        length = ctx.ask.traces.lengths[-1]
    step = ctx.ask.traces.tracer.time.step
    table = known_at(ctx.ask, index, -(-2 * length // step) * step).array
    rows = np.moveaxis(table, at, 0).reshape(table.shape[at], -1)
    outside = np.flatnonzero(((rows < -size) | (rows >= size)).any(1))
    return int(outside[0]) if outside.size else None


def _counted_rows(ctx: Context, node: Node, index: str) -> tuple[int, int] | None:
    """(start, step) of a table indexed by a plain count: rows by position (so that running out of rows is noticed)."""
    if ctx.ask.known(index) is None or len(ctx.ask.time_axes(index)) != 1 or len(ctx.ask.dims(index)) != 1:
        return None
    try:
        v = follower(ctx.ask).spread(follower(ctx.ask).value(index))
    except Unsure:
        return None
    step = v.slope.get(0, Fraction(0))
    plain = (
        set(v.slope) == {0}
        and v.lo == v.hi
        and not v.near
        and v.period == 1
        and T not in v.uses
        and v.longest == LONGEST
    )
    if not plain or v.lo < 0 or step < 1 or step.denominator != 1:
        return None
    ctx.ask.ledger.up_to(v.certain, index)
    return int(v.lo), int(step)


@dataclass(frozen=True, eq=False)
class IndexTable:
    """Which input frames each output frame takes, read off the model's own index table.

    pattern: den rows; output frame k takes input frames (pattern[k % den] + k * num) / den, but for the first few
    frames (`early`), and but for indices past the end, which are held at the last frame (`clipped`).
    unused: so many of the first output frames count for nothing, whatever they take.
    """

    reach: Reach
    pattern: Array
    early: Array
    clipped: bool
    axis: int  # of the table, that grows with the stream
    unused: int = 0

    def regular(self, k: Array) -> Array:
        inner = (1,) * (self.pattern.ndim - 1)
        rows = (self.pattern[k % self.reach.den] + (k * self.reach.num).reshape(-1, *inner)) // self.reach.den
        return rows

    def rows(self, count: int, frames: int) -> Array:
        """The whole table for `count` output frames out of `frames` input frames."""
        out = self.regular(np.arange(count))
        out[: len(self.early)] = self.early[:count]
        return np.minimum(out, frames - 1) if self.clipped else out


def frames_by_index(ctx: Context, node: Node, wire: Wire, index: str, axis: int) -> Plan | None:
    if ctx.ask.known(index) is None:
        ctx.ask.refuse(node, "which frames it takes depends on the data", "choose frames by position", kind=Kind.DATA)
    grown = ctx.ask.time_axes(index)
    if not grown and wire.layout.folded:
        return of_each_stream(ctx, node, wire, index)
    first = not grown and ctx.ask.dims(index) in ((), (1,)) and fixed(ctx.ask, node, index)
    if first and not fixed_value(ctx.ask, node, index, "index").any():
        ctx.ask.facts[node.outputs[0]] = FirstFrames(wire, 1, bare=ctx.ask.dims(index) == ())
        return None
    if not grown:
        return few(ctx, node, wire, index, axis)
    if len(grown) != 1:
        ctx.ask.refuse(
            node, "its index grows along two axes", "feed such frames as a separate input without a time axis"
        )
    if wire.length is None:
        ctx.ask.refuse(node, "it takes frames of something that does not stream", "index the data instead")
    length = size_length(ctx.ask, node, index, grown[0])
    mirrored = _mirrored(ctx, node, index, grown[0], length, wire.length, axis)
    if mirrored is not None:
        return _regular_plan(ctx, node, wire, length, *mirrored)
    table = _index_table(ctx, node, index, grown[0], length, wire.length, axis)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (_by_clock(ctx, wire, length, table, values[0], window),)

    if not len(table.early) and not table.clipped:
        return _regular_plan(ctx, node, wire, length, table, None)
    layout = ctx.ask.layout(node, node.outputs[0])
    least = _cover(table.regular(np.arange(table.reach.den)), Fraction(table.reach.num, table.reach.den))
    return Plan((Read(wire, table.reach, least=least),), (layout,), length, emit, ends=table.clipped)


def _regular_plan(ctx: Context, node: Node, wire: Wire, length: Length, table: IndexTable, fill: Fill | None) -> Plan:
    """Places that move on with time. fill: what is seen of them outside the stream."""
    axis = wire.layout.axis
    table = _without_unused(ctx, node, table, wire, length)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        k = np.arange(window.start, window.end)
        places = np.moveaxis(table.regular(k) - table.reach.first(window.start), 0, table.axis).astype(np.int64)
        return (ctx.builder.op("Gather", values[0], ctx.builder.constant(places, "places"), axis=axis, name=node.name),)

    return Plan((Read(wire, table.reach, fill),), (ctx.ask.layout(node, node.outputs[0]),), length, emit)


def _without_unused(ctx: Context, node: Node, table: IndexTable, wire: Wire, length: Length) -> IndexTable:
    """Frames that are multiplied by a window need not have samples that it makes zero: they take others of theirs.

    window   0 0 . . . . 0 0
    frame k      a b c d         taken as  a a a b c d d d
    """
    if table.pattern.ndim != 2 or wire.end is None:
        return table
    front, back = unused_entries(ctx.ask, node.outputs[0], wire.layout.axis + 1 - table.axis)
    size, reach = table.pattern.shape[1], table.reach
    if not comes_sooner(ctx, node, wire, length, reach, _taking(table, 0, size - back).reach):
        back = 0
    hop = max(reach.num // reach.den, 1)
    return _taking(table, front // hop * hop, size - back)


def _taking(table: IndexTable, first: int, end: int) -> IndexTable:
    """The same with entries first ... end - 1, the outermost of which stand for the others."""
    size, reach = table.pattern.shape[1], table.reach
    if (first, end) == (0, size):
        return table
    held = replace(table, pattern=table.pattern[:, np.clip(np.arange(size), first, end - 1)])
    return replace(held, reach=_cover(held.regular(np.arange(reach.den)), Fraction(reach.num, reach.den)))


MIRRORS: dict[str, Callable[[Array, int], Array]] = {  # places, and how many frames there are
    "reflect": lambda i, n: np.minimum(np.abs(i), 2 * (n - 1) - np.abs(i)),
    "symmetric": lambda i, n: np.minimum(np.maximum(i, -1 - i), 2 * n - 1 - np.maximum(i, -1 - i)),
}


def _mirrored(
    ctx: Context, node: Node, index: str, at: int, length: Length, own: Length, axis: int
) -> tuple[IndexTable, Fill] | None:
    """A table that moves on with time, and is mirrored outside the stream (Kaldi's frames, edges not snipped)."""

    def rows(run: Trace) -> Array:
        return _rows(node, run[index].array, run[node.inputs[0]].dims[axis], at)

    ctx.frames(length.rate)  # at a pulse that does not fit, too few frames are looked at
    longest, step = rows(ctx.ask.traces.longest), own.rate / length.rate
    begin = len(longest) // 3 // step.denominator * step.denominator
    inside = longest[begin : 2 * len(longest) // 3 + 1]  # far from both ends
    reach = _cover(inside - begin // step.denominator * step.numerator, step)
    _check_seen(node, longest, reach)
    table = replace(_read(longest, reach, at), early=longest[:0], clipped=False)

    def places(run: Trace) -> Array:
        return table.regular(np.arange(len(rows(run))))

    def shown(run: Trace, mode: str) -> bool:
        return np.array_equal(rows(run), MIRRORS[mode](places(run), run[node.inputs[0]].dims[axis]))

    mode = next((m for m in MIRRORS if all(shown(run, m) for run in ctx.ask.traces.runs)), None)
    if mode is None or all(np.array_equal(rows(run), places(run)) for run in ctx.ask.traces.runs):
        return None
    before, after = max(-reach.first(0), 0), overrun(reach, own, length)
    least = max(before, after) + (mode == "reflect")
    plain = _regular(node, rows, table, length, axis)
    claim = replace(
        plain,
        what="its index table moving on with time, and mirrored at both ends",
        holds=lambda run: run[node.inputs[0]].dims[axis] < least or shown(run, mode),
        near={"start": before / float(own.rate), "end": after / float(own.rate)},
        ends=True,
    )
    if not holds_everywhere(ctx.ask, claim):
        return None
    ctx.ask.ledger.require(node.name, own, at_least=least)  # shorter ones are mirrored more than once, if at all
    _require_inside(ctx, node, index, axis, at)
    return table, Fill(mode)


def _index_table(ctx: Context, node: Node, index: str, at: int, length: Length, own: Length, axis: int) -> IndexTable:
    """Read the table at the traced lengths; claim that it goes on like that."""

    def rows(run: Trace) -> Array:
        return _rows(node, run[index].array, run[node.inputs[0]].dims[axis], at)

    ctx.frames(length.rate)  # at a pulse that does not fit, too few frames are looked at
    step = own.rate / length.rate
    reaches = [_cover(rows(run), step) for run in ctx.ask.traces.runs]
    if len({(r.lo, r.hi) for r in reaches}) > 1:
        ctx.ask.refuse(
            node,
            "how far its index table looks depends on the total length (it runs backwards, or from the end)",
            "index frames relative to the current one",
            kind=Kind.LENGTH,
        )
    longest = rows(ctx.ask.traces.longest)
    _check_seen(node, longest, reaches[0])
    table = _early_unused(ctx, node, _read(longest, reaches[0], at), longest, axis + at)
    if not table.clipped and not holds_everywhere(ctx.ask, _regular(node, rows, table, length, axis)):
        table = replace(table, clipped=True)  # at other residues the end is
    if 0 < at < longest.ndim - 1 and (len(table.early) or table.clipped):
        ctx.ask.refuse(
            node,
            "its index table is irregular near the ends of the stream",
            "pad first, then index regularly",
            kind=Kind.NOT_PROVEN,
        )
    claim = _regular(node, rows, table, length, axis)
    prove(
        ctx.ask, node, claim.what, claim.holds, near=claim.near, period=claim.period, ends=claim.ends, slope=claim.slope
    )
    _require_inside(ctx, node, index, axis, at)
    return table


def _early_unused(ctx: Context, node: Node, table: IndexTable, rows: Array, axis: int) -> IndexTable:
    """Where the first frames look further ahead than others do, but count for nothing, they take what is there.

    So it is in interpolation: the first lie in front of frame 0, and are that one and nothing of the next.
    """
    count, step = len(table.early), Fraction(table.reach.num, table.reach.den)
    if not count or _reach_from(rows, count, step).hi == table.reach.hi:
        return table
    count = unused_frames(ctx.ask, node.outputs[0], axis, count)
    if not count:
        return table
    rows = np.concatenate([np.maximum(table.regular(np.arange(count)), 0), rows[count:]])
    return replace(_read(rows, _cover(rows, step), table.axis), unused=count)


def _reach_from(rows: Array, first: int, step: Fraction) -> Reach:
    """The reach of all rows but the first few."""
    turns = -(-first // step.denominator)
    return _cover(rows[turns * step.denominator :] - turns * step.numerator, step)


def _regular(node: Node, rows: Callable[[Trace], Array], table: IndexTable, length: Length, axis: int) -> Claim:
    reach = table.reach

    def holds(run: Trace) -> bool:
        found = rows(run)
        expected = table.rows(len(found), run[node.inputs[0]].dims[axis])
        return np.array_equal(found[table.unused :], expected[table.unused :])

    span = (abs(reach.lo) + abs(reach.hi) + reach.den) / reach.den / float(length.rate)
    return Claim(
        node,
        "its index table moving on with time",
        holds,
        near={"start": max(len(table.early), table.unused) / float(length.rate), "end": span if table.clipped else 0},
        period=(Fraction(reach.den) / length.rate).numerator,
        ends=table.clipped,
        slope={table.axis: Fraction(reach.num, reach.den)},
    )


def _require_inside(ctx: Context, node: Node, index: str, axis: int, at: int) -> None:
    """Streams so short that the table points outside of them are ruled out: the batch model fails there.

    A stream without a single row of the table does not show that the next one works.
    """

    def evaluate(s: int) -> Array:
        frames = perhaps_empty(ctx.ask, node.inputs[0], s).dims[axis]
        found = _rows(node, known_at(ctx.ask, index, s).array, frames, at)
        if found.size and (found.min() < 0 or found.max() >= frames):
            raise CannotRun(node, "its index table points outside the stream")
        return found

    runs_from(ctx.ask, node, evaluate, lambda found: found.size > 0)


def _rows(node: Node, table: Array, frames: int, at: int) -> Array:
    """The table row by row, counted from the stream's start."""
    if node.op == "GatherND":
        table = table[..., 0]
    return np.moveaxis(np.where(table < 0, table + frames, table), at, 0)


def _cover(rows: Array, step: Fraction) -> Reach:
    flat = rows.reshape(len(rows), -1)
    return fit(flat.min(1).tolist(), flat.max(1).tolist(), step)


def _check_seen(node: Node, rows: Array, reach: Reach) -> None:
    """All places of a table are read off as many rows as it repeats after."""
    if len(rows) // 2 // reach.den * reach.den + reach.den > len(rows):
        raise Unclear(
            f"its index table repeats after {reach.den} frames, and no more than {len(rows)} were looked at",
            node=node.name,
            op=node.op,
            hint="take frames by a step that repeats sooner",
        )


def _read(rows: Array, reach: Reach, at: int) -> IndexTable:
    """Take the pattern from the middle, then see where the start departs from it, and whether the end is clipped."""
    num, den = reach.num, reach.den
    middle = len(rows) // 2 // den * den
    inner = (1,) * (rows.ndim - 1)
    k = np.arange(middle, middle + den)
    pattern = rows[middle : middle + den] * den - (k * num).reshape(-1, *inner)
    plain = IndexTable(reach, pattern, rows[:0], False, at)
    differs = (plain.regular(np.arange(len(rows))) != rows).reshape(len(rows), -1).any(1)
    wrong = np.flatnonzero(differs)
    early = wrong[wrong < middle]
    late = wrong[wrong >= middle]
    return IndexTable(reach, pattern, rows[: int(early[-1]) + 1 if early.size else 0], bool(late.size), at)


def _by_clock(ctx: Context, wire: Wire, length: Length, table: IndexTable, x: ir.Value, window: Window) -> ir.Value:
    """Places that differ near the ends: worked out from the position, stream by stream.

    A table of several entries a frame is worked out as [B, frames, entries], and taken as so many more frames.
    """
    b, reach = ctx.builder, table.reach
    assert wire.length is not None
    p = window.p * reach.num // reach.den
    lo, hi = reach.span(window.start, window.end)
    inner = table.pattern.shape[1:]
    entries = int(np.prod(inner, dtype=int))

    def number(value: int) -> ir.Value:
        return b.constant(np.array(value, np.int32), "int")

    def beside(value: ir.Value, frames: int) -> ir.Value:
        return b.reshape(value, [-1, frames, 1]) if inner else value

    offsets = table.regular(np.arange(window.start, window.end)).astype(np.int32)
    offsets = offsets.reshape(1, window.frames, *([entries] if inner else []))
    shown = b.op("Add", beside(ctx.clock.frames(Window(p, 0, 1)), 1), b.constant(offsets, "offsets"))
    if len(table.early):
        frames = ctx.clock.frames(window)
        held = b.op("Min", b.op("Max", frames, number(0)), number(len(table.early) - 1))
        early = table.early.astype(np.int32).reshape(len(table.early), *([entries] if inner else []))
        first = b.op("Gather", b.constant(early, "early"), held)
        begun = beside(b.op("Less", frames, number(len(table.early))), window.frames)
        shown = b.op("Where", begun, first, shown)
    if table.clipped:
        shown = b.op("Min", shown, beside(b.op("Sub", ctx.clock.end(wire.length), number(1)), 1))
    place = b.op("Sub", shown, beside(ctx.clock.frames(Window(p, lo, lo + 1)), 1))
    place = b.op("Min", b.op("Max", place, number(0)), number(hi - lo - 1))
    if not inner:
        return gather_frames(ctx, x, place, wire.layout, window.frames)
    dims = [window.frames, *inner]
    if table.axis:
        place, dims = b.op("Transpose", place, perm=[0, 2, 1]), [*inner, window.frames]
    count = window.frames * entries
    taken = gather_frames(ctx, x, b.reshape(place, [-1, count]), wire.layout, count)
    sizes = [-1 if s < 0 else s for s in wire.layout.sizes]
    return b.reshape(taken, [*sizes[: wire.layout.axis], *dims, *sizes[wire.layout.axis + 1 :]])


@rule("GatherElements", says="along any axis but time; over time one frame, from either end")
def gather_elements(ctx: Context, node: Node) -> Plan | None:
    wires = [ctx.ask.wire(n) for n in node.inputs]
    data = wires[0]
    if data is not None and data.layout.axis == node.attr("axis", 0) % data.layout.rank:
        if ctx.ask.time_axes(node.inputs[1]):
            guard(ctx, node, data, [data.layout.axis], "picks frames")
        return for_every_entry(ctx, node, data)
    if (wires[0] is None) != (wires[1] is None):
        ctx.ask.refuse(node, "only one of data and index streams", "give both the same time axis")
    return pointwise(ctx, node)
