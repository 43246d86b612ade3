"""Frames as nodes: which are real, flags and positions beside data, frames gathered by their places."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.core.length import Length
from pulsify.emit.emission import Graph


def real_frames(ctx: Graph, window: Window, length: Length | None, starts: bool) -> ir.Value:
    """Which frames of a window are real, bool [B, frames]; `length` None leaves the end open."""
    b, frames = ctx.builder, ctx.clock.frames(window)
    parts = []
    if starts:
        parts.append(b.op("GreaterOrEqual", frames, b.constant(np.array(0, np.int32), "int")))
    if length is not None:
        parts.append(b.op("Less", frames, ctx.clock.end(length)))
    return parts[0] if len(parts) == 1 else b.op("And", *parts)


def along(ctx: Graph, x: ir.Value, layout: Layout, frames: int) -> ir.Value:
    """[B, frames] laid out so that it broadcasts against a tensor of this layout."""
    if frames < 0:  # a window that grows
        assert layout.batch in (None, 0)
        others = [i for i in range(1, layout.rank) if i != layout.axis]
        return ctx.builder.op("Unsqueeze", x, ctx.builder.ints(*others)) if others else x
    dims = [1] * layout.rank
    dims[layout.axis] = frames
    if layout.batch is not None:
        if layout.batch > layout.axis:
            x = ctx.builder.op("Transpose", x, perm=[1, 0])
        dims[layout.batch] = -1
        return ctx.builder.reshape(_repeat(ctx, x, layout), dims)
    if layout.folded:
        dims[layout.axis] = -1
    elif ctx.batch is not None:
        x = _first_stream(ctx, x)
    return ctx.builder.reshape(x, dims)


def aligned(ctx: Graph, wire: Wire, value: ir.Value, target: Layout, window: Window) -> ir.Value:
    """A clock counts per stream, with the streams folded in front of time: bring them to the target's batch axis."""
    if wire.layout.outer == target.outer or (wire.constant_frame is not None and value is wire.constant_frame.value):
        return value
    b, layout = ctx.builder, wire.layout
    first = [max(s, 1) for s in layout.sizes[: layout.axis]]
    rest = [max(s, 1) for s in layout.sizes[layout.axis + 1 :]]
    split = b.reshape(value, [*first, -1, window.frames, *rest])
    at = len(first)
    front = b.op("Transpose", split, perm=[at, *(i for i in range(len(first) + 2 + len(rest)) if i != at)])
    # front is [B, *first, frames, *rest]; the target has B on its batch axis, in front of or behind time.
    own = [*first, window.frames, *rest]
    full = [1] * (target.rank - len(own)) + own
    batch = target.batch
    if batch is None:
        return b.reshape(front if ctx.batch is None else _first_stream(ctx, front), full)
    heads = -target.sizes[batch]
    if heads > 1:  # folded with the streams: each has the places of its stream
        lead = b.op("Unsqueeze", front, b.ints(1))
        each = b.op("Expand", lead, b.ints(1, heads, *([1] * len(own))))
        front = b.reshape(each, [-1, *own])
    if all(d == 1 for d in full[: batch + 1]):
        return b.reshape(front, [*full[:batch], -1, *full[batch + 1 :]])
    lifted = b.reshape(front, [-1, *full])
    moved = b.op("Transpose", lifted, perm=[*range(1, batch + 1), 0, *range(batch + 1, len(full) + 1)])
    return b.reshape(moved, [*full[:batch], -1, *full[batch + 1 :]])


def gather_frames(ctx: Graph, x: ir.Value, place: ir.Value, layout: Layout, frames: int) -> ir.Value:
    """x at `place` (int [B, frames]) along the time axis, each stream at its own places."""
    b = ctx.builder
    if layout.batch is None:
        place = place if ctx.batch is None else _first_stream(ctx, place)
        return b.op("Gather", x, b.reshape(place, [frames]), axis=layout.axis)
    dims = [1 if s < 0 else s for s in layout.sizes]
    dims[layout.axis] = 1
    index = b.op("Expand", along(ctx, place, layout, frames), b.ints(*dims))
    return b.op("GatherElements", x, index, axis=layout.axis)


def _first_stream(ctx: Graph, x: ir.Value) -> ir.Value:
    """[B, ...] -> [1, ...], for known values that have one entry for all streams: those go in step."""
    return ctx.builder.slice(x, 0, 0, 1)


def _repeat(ctx: Graph, x: ir.Value, layout: Layout) -> ir.Value:
    """Where the batch axis holds k entries a stream, every stream's row k times."""
    assert layout.batch is not None
    per = -layout.sizes[layout.batch]
    if per == 1:
        return x
    b = ctx.builder
    if layout.batch > layout.axis:
        return b.op("Expand", b.op("Unsqueeze", x, b.ints(2)), b.ints(1, 1, per))
    return b.op("Expand", b.op("Unsqueeze", x, b.ints(1)), b.ints(1, per, 1))
