"""The Fold: a value without time that is made of frames as they come, and carried from pulse to pulse.

    frames    . . | 0 1 2 3 | 4 5 6 7 | 8 9 . . |        each frame is seen once, those outside the stream never
    fold            f(0..3) ─▶ f(0..7) ─▶ f(0..9)        right when the last one it is made of has come
    first 6         0 1 2 3    0 .. 5     0 .. 5         from the second pulse on

What is summed up is summed within a pulse as the model does it, and from pulse to pulse in double precision: a million
pulses are as exact as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window
from pulsify.core.length import Length
from pulsify.core.spec import Kind
from pulsify.emit.builder import choose
from pulsify.emit.carry import Carry, carry, per_stream
from pulsify.emit.emission import Graph
from pulsify.emit.frames import along, gather_frames, real_frames
from pulsify.emit.state import Sizes
from pulsify.frontend.model import Node

DOUBLE, INT32, INT64 = ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64
SHORT = {ir.DataType.FLOAT16: ir.DataType.FLOAT, ir.DataType.BFLOAT16: ir.DataType.FLOAT}  # floats that hold too little
COMPARED_AS = {  # types that not every operator compares, and those that hold all their values
    **SHORT,
    **dict.fromkeys((ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8), INT32),
    **dict.fromkeys((ir.DataType.INT16, ir.DataType.UINT16), INT32),
    ir.DataType.UINT32: INT64,
}


@dataclass(frozen=True, eq=False)
class Fold:
    """One pulse of frames that a node reduces: those of a wire of this length, in a window that holds each once."""

    ctx: Graph
    node: Node
    length: Length
    window: Window

    # ---- the frames of this pulse

    def real(self) -> ir.Value:
        """Which frames lie in the stream, bool [B, frames]."""
        return real_frames(self.ctx, self.window, self.length, starts=self.window.start < 0)

    def only(self, x: ir.Value, layout: Layout, dtype: ir.DataType, other: float) -> ir.Value:
        """x, with `other` in the place of frames that do not lie in the stream."""
        b = self.ctx.builder
        neutral = b.constant(np.array(other, dtype.numpy()), "neutral")
        return choose(b, along(self.ctx, self.real(), layout, self.window.frames), x, neutral, dtype)

    def reduced(self, op: str, x: ir.Value, axes: Iterable[int]) -> ir.Value:
        """Over these axes, which stay with a size of one."""
        b, axes = self.ctx.builder, sorted(axes)
        if len(onnx.defs.get_schema(op, self.ctx.opset).inputs) > 1:  # of older opsets axes are an attribute
            return b.op(op, x, b.ints(*axes), keepdims=1)
        return b.op(op, x, axes=axes, keepdims=1)

    def cast(self, x: ir.Value, dtype: ir.DataType, to: ir.DataType) -> ir.Value:
        return x if dtype == to else self.ctx.builder.op("Cast", x, to=int(to))

    # ---- what is carried

    def running(
        self, what: str, dtype: ir.DataType, sizes: Sizes, start: float | None = None, kind: Kind = "fold"
    ) -> Carry:
        """A carried value that starts at zero, or at `start`."""
        b = self.ctx.builder
        initial = None
        if start is not None:
            initial = b.constant(np.full([1] * len(sizes), start, dtype.numpy()), "start")
        return carry(self.ctx, f"{self.node.name}_{what}", dtype, sizes, initial, self.window, kind)

    def total(
        self, what: str, part: ir.Value, dtype: ir.DataType, sizes: Sizes, by: ir.Value | None = None
    ) -> ir.Value:
        """The sum of a pulse's part and all before, of floats in double precision. by: what those before are worth."""
        to = DOUBLE if dtype.is_floating_point() else INT64
        so_far = self.running(what, to, sizes)
        before = so_far.value if by is None else self.ctx.builder.op("Mul", so_far.value, by)
        after = self.ctx.builder.op("Add", before, self.cast(part, dtype, to))
        so_far.keep(after)
        return after

    def product(self, what: str, part: ir.Value, dtype: ir.DataType, sizes: Sizes) -> ir.Value:
        to = DOUBLE if dtype.is_floating_point() else INT64
        so_far = self.running(what, to, sizes, 1)
        after = self.ctx.builder.op("Mul", so_far.value, self.cast(part, dtype, to))
        so_far.keep(after)
        return after

    def extreme(
        self, op: str, part: ir.Value, dtype: ir.DataType, sizes: Sizes, start: float
    ) -> tuple[ir.Value, ir.Value]:
        """The largest (op Max) or smallest (Min) before this pulse, and with it; in a type that can be compared.

        start: what it is before the first.
        """
        to = COMPARED_AS.get(dtype, dtype)
        so_far = self.running(op.lower(), to, sizes, start)
        after = self.ctx.builder.op(op, so_far.value, self.cast(part, dtype, to))
        so_far.keep(after)
        return so_far.value, after

    def count(self, sizes: Sizes) -> ir.Value:
        """How many frames there have been, in double precision, laid out beside a value of these sizes.

        Counted by itself: the stream's own counters may be set back.
        """
        key, b, counts = (self.length, self.window), self.ctx.builder, self.ctx.counts
        if key not in counts:
            here = self.reduced("ReduceSum", b.op("Cast", self.real(), to=int(DOUBLE)), [1])
            counts[key] = self.total("count", here, DOUBLE, (-1 if self.ctx.batch else 1, 1))
        return per_stream(self.ctx, counts[key], sizes)

    def first(self, x: ir.Value, layout: Layout, dtype: ir.DataType, frames: int) -> ir.Value:
        """The first frames of the stream: of those that came before this pulse what was kept, the others from here."""
        ctx, b = self.ctx, self.ctx.builder
        sizes = tuple(frames if i == layout.axis else s for i, s in enumerate(layout.sizes))
        so_far = self.running("first", dtype, sizes, kind="latch")
        first = ctx.clock.frames(Window(self.window.p, self.window.start, self.window.start + 1))
        place = b.op("Sub", b.constant(np.arange(frames, dtype=np.int32)[None], "offsets"), first)
        none, last = (b.constant(np.array(v, np.int32), "int") for v in (0, self.window.frames - 1))
        new = gather_frames(ctx, x, b.op("Min", b.op("Max", place, none), last), layout, frames)
        before = along(ctx, b.op("Less", place, none), layout, frames)
        after = choose(b, before, so_far.value, new, dtype)
        so_far.keep(after)
        return after

    def last(self, x: ir.Value, layout: Layout, dtype: ir.DataType, frames: int) -> ir.Value:
        """The last frames of the stream: those before this pulse and those in it, up to where the stream ends."""
        ctx, b, p = self.ctx, self.ctx.builder, self.window.frames
        sizes = tuple(frames if i == layout.axis else s for i, s in enumerate(layout.sizes))
        so_far = self.running("last", dtype, sizes)
        both = b.op("Concat", so_far.value, x, axis=layout.axis)
        first = ctx.clock.frames(Window(self.window.p, self.window.start, self.window.start + 1))
        here = b.op("Sub", ctx.clock.end(self.length), first)
        none, all_ = (b.constant(np.array(v, np.int32), "int") for v in (0, p))
        here = b.op("Min", b.op("Max", here, none), all_)
        place = b.op("Add", here, b.constant(np.arange(frames, dtype=np.int32)[None], "offsets"))
        after = gather_frames(ctx, both, place, layout, frames)
        so_far.keep(after)
        return after
