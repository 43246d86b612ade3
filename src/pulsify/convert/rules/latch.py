"""The Latch: the first frames of a wire as a value, kept once they are there.

    frames    0 1 2 | 3 4 5 | 6 7 8 |          x[:, :5]
    latch     0 1 2     0 1 2 3 4    0 1 2 3 4
                        from this pulse on it is right

Whoever reads it beside frames of the stream waits until it is (`plan.execute`); if the frames are there at the first
pulse anyway, nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from pulsify.convert.context import Context
from pulsify.convert.facts import First, Prefix, Static, Window, Wire
from pulsify.convert.plan import Plan, Read, execute
from pulsify.convert.primitives.boundary import along, gather_frames
from pulsify.convert.primitives.builder import choose
from pulsify.convert.primitives.carry import carry
from pulsify.frontend.model import Node

Cut = Callable[[ir.Value], ir.Value]


def latched(ctx: Context, name: str) -> Static:
    """The first frames of a wire, filed as such so far, as a value."""
    fact, node = ctx.ask.facts[name], ctx.ask.model.producers[name]
    assert isinstance(fact, Prefix)
    axis, b = fact.wire.layout.axis, ctx.builder
    bare: Cut = lambda x: b.op("Squeeze", x, b.ints(axis))  # noqa: E731
    plan = first_frames(ctx, node, fact.wire, fact.count, bare if fact.bare else lambda x: x, name)
    execute(ctx, node, plan)
    found = ctx.ask.facts[name]
    assert isinstance(found, Static)
    return found


def first_frames(ctx: Context, node: Node, wire: Wire, count: int, cut: Cut, name: str = "") -> Plan:
    """The first frames of a wire as a value. Streams that have fewer are turned down. cut: what is taken of them."""
    if wire.layout.folded or wire.end is None or wire.length is None:
        ctx.ask.refuse(
            node,
            "the first frames of time folded with another axis, or of no data, are used as a value of their own",
            "cut before the reshape, or feed them as a separate input without a time axis",
        )
    ctx.ask.ledger.require(node.name, wire.length, at_least=count)
    name = name or node.outputs[0]

    def emit(values: list[ir.Value], window: Window) -> Sequence[None]:
        value = cut(_kept(ctx, node, wire, values[0], window, count))
        ctx.ask.facts[name] = Static(value, first=(First(count, window),))
        return [None] * len(node.outputs)

    return Plan((Read(wire),), (None,) * len(node.outputs), wire.length, emit, exact=True)


def _kept(ctx: Context, node: Node, wire: Wire, x: ir.Value, window: Window, count: int) -> ir.Value:
    """What the latch holds with this pulse: of those that came before it what was held, the others from here."""
    b, layout = ctx.builder, wire.layout
    sizes = tuple(count if i == layout.axis else s for i, s in enumerate(layout.sizes))
    held = carry(ctx, f"{node.name}_first", wire.dtype, sizes, None, window, "latch")
    first = ctx.clock.frames(Window(window.p, window.start, window.start + 1))
    place = b.op("Sub", b.constant(np.arange(count, dtype=np.int32)[None], "offsets"), first)
    none, last = (b.constant(np.array(v, np.int32), "int") for v in (0, window.frames - 1))
    new = gather_frames(ctx, x, b.op("Min", b.op("Max", place, none), last), layout, count)
    before = along(ctx, b.op("Less", place, none), layout, count)
    value = choose(b, before, held.value, new, wire.dtype)
    held.keep(value)
    return value
