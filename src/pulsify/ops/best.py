"""TopK over time: the best frames so far and where they were, those of a pulse beside those of all before.

best so far   9 7 7 | 3 8 7 2   pulse          of equals the earlier is the better one, as it stands in front
best          9 8 7
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire
from pulsify.analysis.proof.claims import fixed_value
from pulsify.core.refusal import Kind
from pulsify.emit.carry import per_stream
from pulsify.emit.fold import DOUBLE, INT64, Fold
from pulsify.frontend.model import Node
from pulsify.ops.fold import over_all, sizes_of
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan

BEYOND = 1e300  # what is infinite counts as this: no float of 32 bits is as large, and it is a frame of the stream


LONG = (DOUBLE, INT64, ir.DataType.UINT64)  # there is nothing beyond all their numbers


def best_frames(ctx: Context, node: Node, wire: Wire) -> Plan:
    """The k largest, or smallest, in order. Streams that have fewer are rejected."""
    if not node.attr("sorted", 1):
        ctx.ask.refuse(
            node,
            "it gives out the best frames of the whole stream in no order that is said",
            "export it with sorted=1 (torch.topk(..., sorted=True))",
            kind=Kind.WHOLE_STREAM,
        )
    if wire.dtype in LONG:
        ctx.ask.refuse(
            node,
            "it sorts numbers of 64 bits over the whole stream",
            "cast them to 32 bits first",
            kind=Kind.WHOLE_STREAM,
        )
    counts = ctx.ask.known(node.inputs[1])
    if counts is not None and len({int(c.reshape(-1)[0]) for c in counts}) > 1:
        ctx.ask.refuse(
            node,
            "it sorts all frames of the stream: the first of them is known only when the stream has ended",
            "take a fixed number of the best frames, which come out at the end",
            kind=Kind.WHOLE_STREAM,
        )
    k = int(fixed_value(ctx.ask, node, node.inputs[1], "number of frames").reshape(-1)[0])
    axis = wire.layout.axis
    worst = -np.inf if node.attr("largest", 1) else np.inf
    floats = wire.dtype.is_floating_point()
    held = DOUBLE if floats else INT64
    limits = np.iinfo(np.int64)
    none = worst if floats else (limits.min if worst < 0 else limits.max)
    sizes = sizes_of(wire.layout, set(), k)

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        b = ctx.builder
        best, where = fold.running("best", held, sizes, none), fold.running("where", INT64, sizes)
        x = fold.cast(values[0], wire.dtype, held)
        if floats:
            x = _instead(ctx, x, worst, np.sign(worst) * BEYOND)
        both = b.op("Concat", best.value, fold.only(x, wire.layout, held, none), axis=axis)
        attrs = {"axis": axis, "largest": int(worst < 0), "sorted": 1}
        now, inside = b.ops("TopK", [both, b.ints(k)], attrs, outputs=2, name=node.name)
        count, last = (b.constant(np.array(v, np.int64), "int") for v in (k, k - 1))
        first = ctx.clock.positions(Window(fold.window.p, fold.window.start, fold.window.start + 1))
        here = b.op("Add", b.op("Sub", inside, count), per_stream(ctx, b.op("Cast", first, to=int(INT64)), sizes))
        before = b.op("GatherElements", where.value, b.op("Min", inside, last), axis=axis)
        place = b.op("Where", b.op("Less", inside, count), before, here)
        best.keep(now)
        where.keep(place)
        made = _instead(ctx, now, np.sign(worst) * BEYOND, worst) if floats else now
        return b.op("Cast", made, to=int(wire.dtype)), place

    plan = over_all(ctx, node, (wire,), make)
    assert plan.length is not None
    ctx.ask.ledger.require(node.name, plan.length, at_least=k)
    return plan


def _instead(ctx: Context, x: ir.Value, found: float, other: float) -> ir.Value:
    """One number in the place of another."""
    b = ctx.builder
    this, that = (b.constant(np.array(v, np.float64), "beyond") for v in (found, other))
    return b.op("Where", b.op("Equal", x, this), that, x)
