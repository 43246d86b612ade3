"""What a buffer holds at pulse 0, where a stream begins with known frames or some that are made apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window
from pulsify.core.arrays import Array
from pulsify.emit.buffer import Buffer, Stored, known_part
from pulsify.emit.builder import choose
from pulsify.emit.emission import Graph
from pulsify.emit.frames import along


def beginning(ctx: Graph, buffer: Buffer, frames: Array | None) -> Callable[[ir.Value, int], ir.Value | None]:
    """What stands in for a state's frames at pulse 0: known ones, then those made apart; zeros before frame 0.

    frames    -2 -1 | 0 1 | 2 3 | 4 5 6 7        history 6, two known, own window from 4 on
    state      0  0   k k   b b
    """
    b, stored, axis, start = ctx.builder, buffer.stored, buffer.layout.axis, buffer.window.start

    def begin(past: ir.Value, history: int) -> ir.Value | None:
        if start <= 0:
            return None
        first, last = known_part(stored, buffer.history)
        parts: list[ir.Value] = []
        known = _zeros(stored, max(history - start, 0))
        if frames is not None and first < last:
            known = np.concatenate([known, frames.take(range(stored.offset + first, stored.offset + last), axis)], axis)
        if known.shape[axis]:
            parts.append(b.constant(known, "start"))
        if stored.begun is not None:
            parts.append(_last_frames(ctx, stored, min(history, start - stored.known)))
        elif not known.any():
            return None  # the state starts at zero anyway
        begun = parts[0] if len(parts) == 1 else _joined(ctx, stored, parts)
        at = ctx.clock.frames(Window(ctx.clock.pulse, 0, 1))
        later = b.op("Greater", at, b.constant(np.array(0, np.int32), "int"))
        return choose(b, along(ctx, later, stored.layout, 1), past, begun, stored.dtype)

    return begin


def _zeros(stored: Stored, count: int) -> Array:
    dims = [count if i == stored.layout.axis else max(s, 1) for i, s in enumerate(stored.layout.sizes)]
    return np.zeros(dims, stored.dtype.numpy())


def _last_frames(ctx: Graph, stored: Stored, count: int) -> ir.Value:
    """Of those made apart."""
    made = stored.window.start - stored.known
    assert stored.begun is not None
    x = stored.begun.value
    return x if count == made else ctx.builder.slice(x, stored.layout.axis, made - count, made)


def _joined(ctx: Graph, stored: Stored, parts: list[ir.Value]) -> ir.Value:
    """One behind the other; what is the same for all streams is repeated for each."""
    b, layout = ctx.builder, stored.layout
    if layout.batch is not None:
        dims = [b.ints(1)] * layout.rank
        dims[layout.batch] = b.size(parts[-1], layout.batch)
        parts = [b.op("Expand", parts[0], b.op("Concat", *dims, axis=0)), *parts[1:]]
    return b.op("Concat", *parts, axis=layout.axis)
