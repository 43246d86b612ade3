"""Operators that treat every frame alike and by itself: one generic rule.

An operator is pointwise in time if the time axis is none of the axes it mixes. Families that mix some axes
(softmax, norms, matmul, ...) check that and then use `pointwise` too.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import onnx_ir as ir

from pulsify.convert.context import Context, broadcast_axis
from pulsify.convert.facts import Layout, Static, Window, Wire
from pulsify.convert.plan import Plan, Read
from pulsify.convert.primitives.builder import Builder
from pulsify.convert.rules.registry import rule
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.traits import ELEMENTWISE
from pulsify.frontend.model import Node


@rule(*sorted(ELEMENTWISE), says="frame by frame, any operand on any side, with broadcasting")
def elementwise(ctx: Context, node: Node) -> Plan | None:
    """Elementwise with broadcasting: the operands' time axes must fall on the same axis of the output."""
    if not any(ctx.ask.wire(i) for i in node.inputs):
        return static(ctx, node)
    name = node.outputs[0]
    rank = len(ctx.ask.dims(name))
    wires = {i: w for i, n in enumerate(node.inputs) if n and (w := ctx.ask.wire(n)) is not None}
    axes = {broadcast_axis(w.layout, rank) for w in wires.values()}
    if len(axes) > 1:
        ctx.ask.refuse(
            node,
            "time stands on different axes of its operands, so every frame meets every other",
            "a bounded mask is needed where frames meet frames",
        )
    check_operands(ctx, node, wires)
    target = _target(ctx, node, list(wires.values()))
    reads = tuple(Read(w, broadcast=True) for w in wires.values())

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value | None]:
        given = dict(zip(wires, values, strict=True))
        inputs = [
            aligned(ctx, wires[i], given[i], target, window) if i in given else ctx.ask.operand(node, n)
            for i, n in enumerate(node.inputs)
        ]
        if node.op in ("Div", "Mod") and 1 in given and wires[1].dtype.is_integer():
            inputs[1] = not_zero(ctx.builder, wires[1].dtype, inputs[1])
        return clone(ctx, node, inputs)

    layouts = (target, *(None for _ in node.outputs[1:]))
    return Plan(reads, layouts, common_length(list(wires.values())), emit, merges=True)


def not_zero(b: Builder, dtype: ir.DataType, divisor: ir.Value | None) -> ir.Value:
    """Frames that are not real may divide by zero, which ends the process for whole numbers. Real ones never do."""
    none, one = (b.constant(np.array(v, dtype.numpy()), "int") for v in (0, 1))
    return b.op("Where", b.op("Equal", divisor, none), one, divisor)


def _target(ctx: Context, node: Node, wires: list[Wire]) -> Layout:
    """The output's layout: time unfolded as soon as one operand that waits for data has it so."""
    data = [w for w in wires if w.end is not None] or wires
    outers = {w.layout.outer for w in data if w.constant_frame is None} or {(1, 1)}
    if len(outers) > 1:
        ctx.ask.refuse(
            node, "time is folded with another axis in one operand and not in the other", "reshape both alike"
        )
    outer = outers.pop()
    layout = ctx.ask.layout(node, node.outputs[0], outer)
    if all(w.end is None for w in wires):  # a known value keeps one entry for all streams
        return Layout(tuple(1 if s < 0 else s for s in layout.sizes), layout.axis, outer)
    return layout


def aligned(ctx: Context, wire: Wire, value: ir.Value, target: Layout, window: Window) -> ir.Value:
    """A clock counts per stream, with the streams folded in front of time: bring them to the target's batch axis."""
    if wire.layout.outer == target.outer or (wire.constant_frame is not None and value is wire.constant_frame):
        return value
    if window.grows and ctx.clock.batch is not None:
        raise NotStreamable(
            "positions of a past that grows meet streams of any number",
            node=wire.name,
            op="position",
            hint='fix the batch size: set={"B": 1}',
        )
    b, layout = ctx.builder, wire.layout
    first = [max(s, 1) for s in layout.sizes[: layout.axis]]
    rest = list(layout.sizes[layout.axis + 1 :])
    split = b.reshape(value, [*first, -1, window.frames, *rest])
    at = len(first)
    front = b.op("Transpose", split, perm=[at, *(i for i in range(len(first) + 2 + len(rest)) if i != at)])
    # front is [B, *first, frames, *rest]; the target has B on its batch axis, in front of or behind time.
    own = [*first, window.frames, *rest]
    full = [1] * (target.rank - len(own)) + own
    batch = target.batch
    if batch is None:
        return b.reshape(front, full)  # the batch is one
    if target.sizes[batch] != -1:
        raise NotStreamable(
            "positions meet a batch folded together with another axis (heads)",
            node=wire.name,
            op="position",
            hint='fix the batch size: set={"B": 1}',
        )
    if all(d == 1 for d in full[: batch + 1]):
        return b.reshape(front, [*full[:batch], -1, *full[batch + 1 :]])
    lifted = b.reshape(front, [-1, *full])
    moved = b.op("Transpose", lifted, perm=[*range(1, batch + 1), 0, *range(batch + 1, len(full) + 1)])
    return b.reshape(moved, [*full[:batch], -1, *full[batch + 1 :]])


def pointwise(ctx: Context, node: Node) -> Plan | None:
    """The node as it is on every pulse's frames. All inputs with a time axis must hold the same frames.

    Before: the caller has made sure that the time axis is not among the axes the operator mixes.
    """
    wires = {i: w for i, n in enumerate(node.inputs) if n and (w := ctx.ask.wire(n)) is not None}
    if not wires:
        return static(ctx, node)
    check_operands(ctx, node, wires)
    outers = {w.layout.outer for w in wires.values() if w.constant_frame is None} or {(1, 1)}
    if len(outers) > 1:
        ctx.ask.refuse(
            node, "time is folded with another axis in one operand and not in the other", "reshape both alike"
        )
    outer = outers.pop()

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value | None]:
        given = dict(zip(wires, values, strict=True))
        first = next((i for i, w in wires.items() if w.constant_frame is None), None)
        for i, w in wires.items():
            if first is not None and w.constant_frame is not None and w.layout.outer != outer:
                given[i] = _as_many(ctx, w, given[first], wires[first])
        return clone(
            ctx, node, [given[i] if i in given else ctx.ask.operand(node, n) for i, n in enumerate(node.inputs)]
        )

    layouts = tuple(ctx.ask.layout(node, o, outer) if o else None for o in node.outputs)
    reads = tuple(Read(w) for w in wires.values())
    copies = node.op == "Transpose" and reads[0].wire.copies
    return Plan(reads, layouts, common_length(list(wires.values())), emit, merges=True, copies=copies)


def _as_many(ctx: Context, wire: Wire, beside: ir.Value, other: Wire) -> ir.Value:
    """A wire of equal frames, as many of them as another has with all that is folded in front of time."""
    b = ctx.builder
    parts = [b.ints(1)] * wire.layout.rank
    parts[wire.layout.axis] = b.size(beside, other.layout.axis)
    return b.op("Expand", wire.constant_frame, b.op("Concat", *parts, axis=0))


def check_operands(ctx: Context, node: Node, wires: Container[int]) -> None:
    """Refuse what has no time axis and yet is not fixed, before anything is emitted."""
    for i, name in enumerate(node.inputs):
        if i not in wires:
            ctx.ask.operand(node, name)


def common_length(wires: list[Wire]) -> Length | None:
    return next((w.length for w in wires if w.length is not None), None)


def clone(ctx: Context, node: Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
    """The node itself, on other inputs."""
    return ctx.builder.ops(node.op, inputs, node.attrs, outputs=len(node.outputs), domain=node.domain, name=node.name)


def static(ctx: Context, node: Node) -> Plan | None:
    """No input has a time axis: the node is copied, its outputs are the same at every pulse (or final, as they are)."""
    facts = {n: ctx.ask.fact(n) for n in node.inputs if n}
    final = next((f.final for f in facts.values() if isinstance(f, Static) and f.final is not None), None)
    inputs = []
    for name in node.inputs:
        fact = facts.get(name)
        inputs.append(fact.value if isinstance(fact, Static) else ctx.ask.operand(node, name))
    for output, value in zip(node.outputs, clone(ctx, node, inputs), strict=True):
        if output:
            ctx.ask.facts[output] = Static(value, final)
    return None
