"""Gather: an embedding of a stream, a choice of channels, or frames by a computed index table (framing, repeating)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire
from pulsify.analysis.length import Length
from pulsify.analysis.reach import Reach, fit
from pulsify.emit.context import Context
from pulsify.emit.plan import Plan, Read
from pulsify.frontend.model import Node
from pulsify.rules.axes import guard
from pulsify.rules.lengths import length_from_model
from pulsify.rules.pointwise import pointwise, static
from pulsify.rules.registry import rule
from pulsify.rules.slice import table_rows
from pulsify.trace.evaluate import Array, Trace


@rule("Gather", says="across time; embeddings; frames by an index table that moves on with time (unfold, repeat)")
def gather(ctx: Context, node: Node) -> Plan | None:
    data, index = ctx.fact(node.inputs[0]), node.inputs[1]
    axis = node.attr("axis", 0) % len(ctx.dims(node.inputs[0]))
    if isinstance(data, Wire) and data.layout.axis == axis:
        return _frames(ctx, node, data, index, axis)
    if not isinstance(data, Wire):
        rows = _counted_rows(ctx, node, index, axis)
        if rows is not None:
            return table_rows(ctx, node, axis, rows)
    elif ctx.wire(index) is not None:
        ctx.refuse(node, "it looks up a stream with another stream", "use GatherElements with both aligned in time")
    return pointwise(ctx, node)


def _counted_rows(ctx: Context, node: Node, index: str, axis: int) -> list[tuple[int, int, int]] | None:
    """A table indexed by a plain count 0, 1, 2, ...: rows by position (so that running out of rows is noticed)."""
    tables = ctx.known(index)
    if tables is None or not ctx.time_axes(index) or tables[0].ndim != 1 or tables[0].size < 2:
        return None
    rows = []
    for t in tables:
        start, step = int(t[0]), int(t[1] - t[0])
        if step < 1 or start < 0 or not np.array_equal(t, start + step * np.arange(t.size)):
            return None
        rows.append((start, start + step * t.size, step))
    return rows


def _frames(ctx: Context, node: Node, wire: Wire, index: str, axis: int) -> Plan | None:
    tables = ctx.known(index)
    if tables is None:
        ctx.refuse(node, "which frames it takes depends on the data", "choose frames by position")
    grown = ctx.time_axes(index)
    if len(grown) != 1:
        reason = "single frames of the stream are used as a value of their own" if not grown else "its index grows along two axes"
        ctx.refuse(node, reason, "feed such frames as a separate input without a time axis")
    at = grown[0]
    frames_in = [ctx.dims(node.inputs[0], i)[axis] for i in range(len(tables))]
    tables = [np.where(t < 0, t + n, t) for t, n in zip(tables, frames_in, strict=True)]
    length = length_from_model(ctx, node, node.outputs[0], axis + at) if wire.length is not None else None
    step = _step(ctx, node, wire, length)
    reach = _reach(ctx, node, tables, at, step)
    template = _template(ctx, node, index, at, reach, length, axis)
    name = node.outputs[0]
    layout = ctx.layout(node, name)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        places = template(window)
        return (ctx.builder.op("Gather", values[0], ctx.builder.constant(places, "places"), axis=axis, name=node.name),)

    return Plan((Read(wire, reach),), (layout,), length, emit)


def _step(ctx: Context, node: Node, wire: Wire, length: Length | None) -> Fraction:
    if length is None or wire.length is None or not length.rate:
        ctx.refuse(node, "it takes frames of something that does not stream", "index the data instead")
    return wire.length.rate / length.rate


def _reach(ctx: Context, node: Node, tables: list[Array], at: int, step: Fraction) -> Reach:
    """The tightest reach that covers the index table at every traced length."""
    reaches = []
    for t in tables:
        rows = np.moveaxis(t, at, 0).reshape(t.shape[at], -1)
        reaches.append(fit(rows.min(1).tolist(), rows.max(1).tolist(), step))
    if len({(r.lo, r.hi) for r in reaches}) > 1:
        ctx.refuse(
            node, "how far its index table looks depends on the total length (it runs backwards, or from the end)",
            "index frames relative to the current one",
        )
    return reaches[0]


def _template(ctx: Context, node: Node, index: str, at: int, reach: Reach, length: Length | None, axis: int):  # type: ignore[no-untyped-def]
    """Places within the window read, the same at every pulse: claimed for every frame of every traced length."""
    num, den = reach.num, reach.den

    def relative(run: Trace, window: Window) -> Array:
        table = run[index].array
        table = np.where(table < 0, table + run[node.inputs[0]].dims[axis], table)
        rows = np.moveaxis(table, at, 0)
        k = np.arange(len(rows)).reshape(-1, *(1,) * (rows.ndim - 1))
        return rows * den - k * num  # type: ignore[no-any-return]

    period = den  # the offset of frame k repeats with k mod den

    def regular(run: Trace) -> bool:
        offsets = relative(run, Window(1, 0, 1))
        return all(np.array_equal(offsets[r::period], np.broadcast_to(offsets[r], offsets[r::period].shape)) for r in range(min(period, len(offsets))))

    ctx.claim(node, "its index table moving on with time", regular)
    offsets = relative(ctx.traces.longest, Window(1, 0, 1))[:period]

    def places(window: Window) -> Array:
        k = np.arange(window.start, window.end)
        rows = (offsets[k % period] + (k * num).reshape(-1, *(1,) * (offsets.ndim - 1))) // den - reach.first(window.start)
        return np.moveaxis(rows, 0, at).astype(np.int64)

    return places


@rule("GatherElements", says="along any axis but time")
def gather_elements(ctx: Context, node: Node) -> Plan | None:
    guard(ctx, node, ctx.wire(node.inputs[0]), [node.attr("axis", 0)], "picks frames")
    wires = [ctx.wire(n) for n in node.inputs]
    if (wires[0] is None) != (wires[1] is None):
        ctx.refuse(node, "only one of data and index streams", "give both the same time axis")
    return pointwise(ctx, node)


@rule("Compress", says="of values without a time axis")
def compress(ctx: Context, node: Node) -> Plan | None:
    if any(ctx.wire(n) for n in node.inputs):
        ctx.refuse(node, "how many frames it keeps depends on the data", "keep all frames and mask instead")
    return static(ctx, node)


