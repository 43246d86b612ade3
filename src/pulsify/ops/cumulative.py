"""Running sums and products: every frame holds what has been summed up so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Layout, Window, Wire, deferred
from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.values.follow import VALUES, Follower, Value
from pulsify.analysis.values.reductions import running_sum
from pulsify.core.refusal import Kind
from pulsify.emit.carry import carry
from pulsify.emit.fold import SHORT
from pulsify.emit.frames import along, real_frames
from pulsify.emit.state import Sizes
from pulsify.frontend.model import Node
from pulsify.lengths.series import Unsure
from pulsify.ops.pointwise import pointwise
from pulsify.ops.range import exact_up_to
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.known_facts import counter
from pulsify.plan.plan import Plan, Read
from pulsify.trace.usage import ROLE, Derived, Extent, Role, Walk

NEUTRAL = {"CumSum": 0, "CumProd": 1}


JOIN = {("CumSum", False): "Add", ("CumSum", True): "Sub", ("CumProd", False): "Mul"}  # True: with its sign off


# A state starts at 0, but only -0.0 + x is x, sign and all: these are kept with the sign off.
SIGNED_ZERO = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@rule("CumSum", "CumProd", says="forward along time, inclusive or exclusive; along any other axis")
def cumulative(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    axis = int(fixed_value(ctx.ask, node, node.inputs[1], "axis").reshape(-1)[0])
    if wire is None or wire.layout.axis != axis % wire.layout.rank:
        return pointwise(ctx, node)
    if node.attr("reverse", 0):
        ctx.ask.refuse(
            node, "it accumulates from the end of the stream", "accumulate from the start", kind=Kind.BACKWARDS
        )
    if wire.constant_frame is not None and node.op == "CumSum" and (counted := _counted(ctx, node, wire)) is not None:
        ctx.ask.facts[node.outputs[0]] = counted
        return None
    if wire.layout.folded or wire.end is None or wire.length is None:
        ctx.ask.refuse(
            node,
            "it accumulates where time is merged with another axis (B*T, say), or over no data",
            "use a plain time axis",
            kind=Kind.AXES,
        )
    sizes = tuple(1 if i == wire.layout.axis else s for i, s in enumerate(wire.layout.sizes))

    over = ctx.ask.operand(node, node.inputs[1])
    assert over is not None

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (_running(ctx, node, wire, sizes, values[0], window, over),)

    return Plan((Read(wire),), (wire.layout,), wire.length, emit, exact=True)


def _running(
    ctx: Context, node: Node, wire: Wire, sizes: Sizes, x: ir.Value, window: Window, over: Deferred
) -> ir.Value:
    """One frame after the other onto the carried value, so that every addition rounds as it does in batch.

    The carried value is the frame before the pulse's first: `CumSum([carried, *pulse])` is all that is given out, but
    for its first frame, or for its last where the frame itself is left out. Half precision is added up in float32, as
    the runtime does.
    """
    b, time, exclusive = ctx.builder, wire.layout.axis, bool(node.attr("exclusive", 0))
    dtype = SHORT.get(wire.dtype, wire.dtype)
    x = x if dtype == wire.dtype else b.op("Cast", x, to=int(dtype))
    negated = node.op == "CumSum" and not exclusive and dtype in SIGNED_ZERO
    if window.start < 0:  # frames before the first count for nothing
        neutral = b.constant(np.array(-0.0 if negated else NEUTRAL[node.op], dtype.numpy()), "neutral")
        real = real_frames(ctx, window, None, starts=True)
        x = b.op("Where", along(ctx, real, wire.layout, window.frames), x, neutral)
    start = None
    if node.op == "CumProd":
        one = b.constant(np.array(1, dtype.numpy()), "neutral")
        start = b.op("Expand", one, b.ints(*([1] * len(sizes))))
    so_far = carry(ctx, node.name, dtype, sizes, start, window)
    p = window.frames
    if p == 1 and not exclusive:
        out = last = b.ops(JOIN[node.op, negated], [x, so_far.value], name=node.name)[0]
    else:
        first = b.op("Neg", so_far.value) if negated else so_far.value
        sums = b.ops(node.op, [b.op("Concat", first, x, axis=time), over.value], name=node.name)[0]
        if exclusive:
            out, last = b.slice(sums, time, 0, p), b.slice(sums, time, p, p + 1)
        else:
            out = b.slice(sums, time, 1, p + 1)
            last = b.slice(out, time, p - 1, p)
    so_far.keep(b.op("Neg", last) if negated else last)
    return out if dtype == wire.dtype else b.op("Cast", out, to=int(wire.dtype))


def _counted(ctx: Context, node: Node, wire: Wire) -> Wire | None:
    """The sum of frames that are all alike: frame k holds k + 1 of them."""
    name = node.outputs[0]
    frame = ctx.ask.traces.runs[0][node.inputs[0]]
    if not frame.known or (frame.array.dtype.kind == "f" and (frame.array * 1024 % 1).any()):  # sums that round
        return None
    for number in np.unique(frame.array) if frame.array.dtype.kind == "f" else ():
        exact_up_to(ctx, name, 0.0, float(number))
    count = counter(ctx, name, wire.layout.axis, 0 if node.attr("exclusive", 0) else 1, 1)

    each = wire.constant_frame
    assert each is not None

    def take(window: Window) -> Deferred:
        x = count.take(window)
        return deferred(lambda: ctx.builder.op("Mul", x.value, each.value), x, each)

    layout = Layout(wire.layout.sizes, wire.layout.axis, count.layout.outer)
    return Wire(name, layout, wire.dtype, None, None, take)


# ---- roles of inputs
@ROLE("CumSum")
def _summed_up(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    return own[0] if isinstance(own.get(0), Extent) else Derived()


# ---- values by length
@VALUES("CumSum")
def running_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    v = f.spread(ins[0])
    axis = int(f.fixed(ins[1]).reshape(-1)[0]) % v.rank
    if node.attr("reverse", 0) and axis in v.times:
        raise Unsure("it is a running sum of what grows")
    return running_sum(f, node, v, axis)
