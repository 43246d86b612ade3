"""The first frames of a wire as a value: plans that latch them.

Whoever reads one beside frames of the stream waits until it is right (`plan.execute`); if the frames are there at the
first pulse anyway, nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from pulsify.analysis.facts import Prefix, Static, Window, Wire
from pulsify.core.refusal import Kind
from pulsify.emit.latch import latch
from pulsify.frontend.model import Node
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read, Whole, execute

Cut = Callable[[ir.Value], ir.Value]


def latched(ctx: Context, name: str) -> Static:
    """The first frames of a wire, filed as such so far, as a value."""
    fact, node = ctx.ask.facts[name], ctx.ask.model.producers[name]
    assert isinstance(fact, Prefix)
    axis, part = fact.wire.layout.axis, replace(node, outputs=(name,))

    def cut(x: ir.Value) -> ir.Value:
        return ctx.builder.op("Squeeze", x, ctx.builder.ints(axis)) if fact.bare else x

    execute(ctx, part, first_frames(ctx, part, fact.wire, fact.count, cut))
    found = ctx.ask.facts[name]
    assert isinstance(found, Static)
    return found


def first_frames(ctx: Context, node: Node, wire: Wire, count: int, cut: Cut) -> Plan:
    """The first frames of a wire as a value. Streams that have fewer are turned down. cut: what is taken of them."""
    if wire.layout.folded or wire.end is None or wire.length is None:
        ctx.ask.refuse(
            node,
            "the first frames are used as a value of their own where time is merged with another axis (B*T, say), "
            "or of no data",
            "cut before the reshape, or feed them as a separate input without a time axis",
            kind=Kind.AXES,
        )
    ctx.ask.ledger.require(node.name, wire.length, at_least=count)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (cut(latch(ctx, node.name, wire, values[0], window, count)),)

    return Plan((Read(wire),), (None,), wire.length, emit, exact=True, whole=Whole(count))
