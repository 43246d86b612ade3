"""The Latch: the first frames of a wire as a value, kept once they are there.

frames    0 1 2 | 3 4 5 | 6 7 8 |          x[:, :5]
latch     0 1 2     0 1 2 3 4    0 1 2 3 4
                    from this pulse on it is right
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire
from pulsify.emit.builder import choose
from pulsify.emit.carry import carry
from pulsify.emit.emission import Graph
from pulsify.emit.frames import along, gather_frames


def latch(ctx: Graph, node: str, wire: Wire, x: ir.Value, window: Window, count: int) -> ir.Value:
    """What the latch holds with this pulse: of those that came before it what was held, the others from here."""
    b, layout = ctx.builder, wire.layout
    sizes = tuple(count if i == layout.axis else s for i, s in enumerate(layout.sizes))
    held = carry(ctx, f"{node}_first", wire.dtype, sizes, None, window, "latch")
    first = ctx.clock.frames(Window(window.p, window.start, window.start + 1))
    place = b.op("Sub", b.constant(np.arange(count, dtype=np.int32)[None], "offsets"), first)
    none, last = (b.constant(np.array(v, np.int32), "int") for v in (0, window.frames - 1))
    new = gather_frames(ctx, x, b.op("Min", b.op("Max", place, none), last), layout, count)
    before = along(ctx, b.op("Less", place, none), layout, count)
    value = choose(b, before, held.value, new, wire.dtype)
    held.keep(value)
    return value
