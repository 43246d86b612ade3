"""The Carry: a value that goes on from frame to frame, whatever the pulses.

    frames    . . | 0 1 2 3 | 4 5 6 7 |
    carry           h0 ───▶ h3 ──────▶ h7

It must not take in frames before 0, even where a delay puts the first real frame in the middle of a pulse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window
from pulsify.core.length import Length
from pulsify.core.spec import Kind
from pulsify.emit.builder import choose
from pulsify.emit.emission import Graph
from pulsify.emit.state import Sizes, State, batch_axis, from_state, state_shape, to_state


@dataclass(eq=False)
class Carry:
    """One carried value: `value` as the pulse finds it; `keep` says what the next one finds."""

    ctx: Graph
    node: str
    dtype: ir.DataType
    sizes: Sizes
    before: ir.Value
    value: ir.Value
    start: int
    kind: Kind = "carry"

    def keep(self, after: ir.Value) -> None:
        kept = to_state(self.ctx.builder, after, self.sizes)
        shape = state_shape(self.sizes, self.ctx.batch)
        self.ctx.carries.append(State(self.node, self.kind, self.dtype, shape, self.before, kept, start=self.start))


def carry(
    ctx: Graph,
    node: str,
    dtype: ir.DataType,
    sizes: Sizes,
    initial: ir.Value | None,
    window: Window,
    kind: Kind = "carry",
) -> Carry:
    """A carried value that starts at zero, or at `initial` as long as no real frame has come."""
    b = ctx.builder
    before = ir.val(b.unique("state"), dtype, ir.Shape(state_shape(sizes, ctx.batch)))
    value = from_state(b, before, sizes)
    if initial is not None:
        first = ctx.clock.frames(Window(window.p, window.start, window.start + 1))
        begun = b.op("Greater", first, b.constant(np.array(0, np.int32), "int"))
        value = choose(b, per_stream(ctx, begun, sizes), value, initial, dtype)
    return Carry(ctx, node, dtype, sizes, before, value, window.start, kind)


def per_stream(ctx: Graph, x: ir.Value, sizes: Sizes) -> ir.Value:
    """[B, 1] laid out to broadcast against a value without time."""
    b, at = ctx.builder, batch_axis(sizes)
    dims = [1] * len(sizes)
    if at is None:  # what has no axis for the streams is one for all of them: they go in step
        return b.reshape(x if ctx.batch is None else b.slice(x, 0, 0, 1), dims)
    dims[at] = -1
    per = -sizes[at]
    return b.reshape(b.op("Expand", x, b.ints(1, per)) if per > 1 else x, dims)


def skipped(ctx: Graph, window: Window) -> ir.Value | None:
    """How many frames at the front of the window lie before 0, int32 [B, 1]; None if there never are any."""
    if window.start >= 0:
        return None
    b = ctx.builder
    first = ctx.clock.frames(Window(window.p, window.start, window.start + 1))
    missing = b.op("Max", b.op("Neg", first), b.constant(np.array(0, np.int32), "int"))
    return b.op("Min", missing, b.constant(np.array(window.frames, np.int32), "int"))


def real_count(ctx: Graph, window: Window, length: Length | None, skip: ir.Value | None) -> ir.Value:
    """How many real frames the window holds, int32 [B, 1]."""
    b = ctx.builder
    count = b.constant(np.full((1, 1), window.frames, np.int32), "count")
    if length is not None:
        first = ctx.clock.frames(Window(window.p, window.start, window.start + 1))
        count = b.op("Min", count, b.op("Sub", ctx.clock.end(length), first))
    if skip is not None:
        count = b.op("Sub", count, skip)
    return b.op("Max", count, b.constant(np.array(0, np.int32), "int"))
