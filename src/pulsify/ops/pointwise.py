"""Operators that treat every frame alike and by itself: one generic rule.

An operator is pointwise in time if the time axis is none of the axes it mixes. Families that mix some axes
(softmax, norms, matmul, ...) check that and then use `pointwise` too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Late, Layout, Outer, Static, Varying, Window, Wire, deferred_all, emitted
from pulsify.core.constants import CHOSEN_AS
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.core.traits import ELEMENTWISE
from pulsify.emit.builder import Builder, choose
from pulsify.emit.frames import aligned
from pulsify.frontend.model import Node
from pulsify.ops.registry import rule
from pulsify.plan.at_end import at_end
from pulsify.plan.boundary import check_aligned
from pulsify.plan.context import Context, broadcast_axis
from pulsify.plan.known_facts import constant_wire
from pulsify.plan.plan import Plan, Read
from pulsify.trace.lengths import BATCHES

Make = Callable[[Context, Node, Sequence[ir.Value | None]], Sequence[ir.Value]]  # the node, where it is no mere copy


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
            kind=Kind.LOOK_AHEAD,
        )
    if (late := joined(ctx, node, wires)) is not None:
        ctx.ask.facts[name] = late
        return None
    beside = beside_wires(ctx, node, wires)
    target = _target(ctx, node, list(wires.values()))
    reads = tuple(Read(w, broadcast=True) for w in wires.values())

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value | None]:
        given = dict(zip(wires, values, strict=True))
        inputs = [
            aligned(ctx, wires[i], given[i], target, window) if i in given else emitted(beside[i])
            for i in range(len(node.inputs))
        ]
        if node.op in ("Div", "Mod") and 1 in given and wires[1].dtype.is_integer():
            inputs[1] = not_zero(ctx.builder, wires[1].dtype, inputs[1])
        return clone(ctx, node, inputs)

    if all(w.constant_frame is not None and w.length is None and not w.waits for w in wires.values()):
        alike = [w.constant_frame for w in wires.values() if w.constant_frame is not None]
        one, count = Window(1, 0, 1), len(node.outputs)  # one frame is all of them
        frame = deferred_all(lambda: emit([f.value for f in alike], one), count, *alike, *beside.values())[0]
        ctx.ask.facts[name] = constant_wire(ctx, name, frame, target)
        return None

    def check(window: Window) -> None:
        for wire in wires.values():
            check_aligned(ctx, wire, target, window)

    layouts = (target, *(None for _ in node.outputs[1:]))
    return Plan(reads, layouts, common_length(list(wires.values())), emit, merges=True, check=check)


def joined(ctx: Context, node: Node, wires: Mapping[int, Wire]) -> Late | None:
    """Frames less a value of the whole stream, times it or divided by it: a sum over time may still follow."""
    if len(node.inputs) != 2 or list(wires) not in ([0], [1]) or wires[next(iter(wires))].layout.folded:
        return None
    (at,) = wires
    scales = node.op == "Mul" or (node.op == "Div" and at == 0)
    if not wires[at].dtype.is_floating_point() or ctx.ask.known(node.outputs[0]) is not None:
        return None
    other = ctx.ask.fact(node.inputs[1 - at])
    if isinstance(other, Varying) and scales:
        other = at_end(ctx, other.name)
    if not isinstance(other, Static) or not other.late:
        return None
    if node.op == "Sub" and at == 0:
        return Late(node, other.last_seen_by, wires[at], centre=other)
    return Late(node, other.last_seen_by, wires[at], scales=((node.op, other),)) if scales else None


def not_zero(b: Builder, dtype: ir.DataType, divisor: ir.Value | None) -> ir.Value:
    """Frames that are not real may divide by zero, which ends the process for whole numbers. Real ones never do."""
    assert divisor is not None
    none, one = (b.constant(np.array(v, dtype.numpy()), "int") for v in (0, 1))
    return choose(b, b.op("Equal", divisor, none), one, divisor, dtype)


def _folded_alike(ctx: Context, node: Node, wires: Iterable[Wire]) -> Outer:
    """What is folded with time, which has to be the same for all operands."""
    outers = {w.layout.outer for w in wires if w.constant_frame is None} or {(1, 1)}
    if len(outers) > 1:
        ctx.ask.refuse(
            node,
            "time is merged with another axis (B*T, say) in one operand and not in the other",
            "reshape both alike",
            kind=Kind.AXES,
        )
    return outers.pop()


def _target(ctx: Context, node: Node, wires: list[Wire]) -> Layout:
    """The output's layout: time unfolded as soon as one operand that waits for data has it so."""
    data = [w for w in wires if w.end is not None] or wires
    outer = _folded_alike(ctx, node, data)
    layout = ctx.ask.layout(node, node.outputs[0], outer)
    if all(w.end is None for w in wires):
        beside = [ctx.ask.sizes_static(n) for n in node.inputs if n and ctx.ask.wire(n) is None]
        if any(s < 0 for sizes in (*beside, *(w.layout.sizes for w in wires)) for s in sizes):
            own = ctx.ask.layout(node, node.outputs[0])  # positions beside values that each stream has of its own
            return own if outer == BATCHES else layout
        # a known value keeps one entry for all streams
        return Layout(tuple(1 if s < 0 else s for s in layout.sizes), layout.axis, outer)
    return layout


def pointwise(ctx: Context, node: Node, make: Make | None = None) -> Plan | None:
    """The node as it is on every pulse's frames. All inputs with a time axis must hold the same frames.

    Before: the caller has made sure that the time axis is not among the axes the operator mixes.
    """
    wires = {i: w for i, n in enumerate(node.inputs) if n and (w := ctx.ask.wire(n)) is not None}
    if not wires:
        return static(ctx, node)
    beside = beside_wires(ctx, node, wires)
    outer = _folded_alike(ctx, node, wires.values())

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value | None]:
        given = dict(zip(wires, values, strict=True))
        first = next((i for i, w in wires.items() if w.constant_frame is None), None)
        for i, w in wires.items():
            if first is not None and w.constant_frame is not None and w.layout.outer != outer:
                given[i] = as_many(ctx, w, given[first], wires[first])
        inputs = [given[i] if i in given else emitted(beside[i]) for i in range(len(node.inputs))]
        return (make or clone)(ctx, node, inputs)

    layouts = tuple(ctx.ask.layout(node, o, outer) if o else None for o in node.outputs)
    reads = tuple(Read(w) for w in wires.values())
    copies = node.op == "Transpose" and reads[0].wire.copies
    return Plan(reads, layouts, common_length(list(wires.values())), emit, merges=True, copies=copies)


TAKES_PLACES = (  # or sizes, among its later inputs
    "GatherND", "ScatterElements", "ScatterND", "Scatter", "Range", "Tile", "Expand", "Reshape", "Pad", "TopK",
    "OneHot", "Resize", "Slice", "Split", "Loop",
)  # fmt: skip


def as_many(ctx: Context, wire: Wire, beside: ir.Value, other: Wire) -> ir.Value:
    """A wire of equal frames, as many of them as another has with all that is folded in front of time."""
    b = ctx.builder
    parts = [b.ints(1)] * wire.layout.rank
    parts[wire.layout.axis] = b.size(beside, other.layout.axis)
    return b.op("Expand", emitted(wire.constant_frame), b.op("Concat", *parts, axis=0))


def beside_wires(ctx: Context, node: Node, wires: Container[int]) -> dict[int, Deferred | None]:
    """Inputs without a time axis, by index. Refuses what is not fixed."""
    return {i: ctx.ask.operand(node, name) for i, name in enumerate(node.inputs) if i not in wires}


def common_length(wires: list[Wire]) -> Length | None:
    return next((w.length for w in wires if w.length is not None), None)


def clone(ctx: Context, node: Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
    """The node itself, on other inputs."""
    if node.op == "Where" and (dtype := ctx.ask.dtype(node.outputs[0])) in CHOSEN_AS:  # written by a rewrite
        condition, x, y = (i for i in inputs if i is not None)
        return (choose(ctx.builder, condition, x, y, dtype),)
    return ctx.builder.ops(node.op, inputs, node.attrs, outputs=len(node.outputs), domain=node.domain, name=node.name)


def static(ctx: Context, node: Node, make: Make | None = None) -> Plan | None:
    """No input has a time axis: the node is copied. What it makes is right at every pulse, or when its inputs are."""
    facts = [_without_time(ctx, node, n) if n else None for n in node.inputs]
    given = [f for f in facts if f is not None]
    waits = tuple(dict.fromkeys(w for f in given for w in f.waits))
    unsafe = _unsafe(ctx, node, facts) if waits else None

    def emit() -> Sequence[ir.Value]:
        inputs = [None if f is None else f.value for f in facts]
        if unsafe is not None:
            inputs[unsafe] = _safe(ctx, node, unsafe, inputs[unsafe])
        return (make or clone)(ctx, node, inputs)

    made = deferred_all(emit, len(node.outputs), *(f.recipe for f in given))
    for output, value in zip(node.outputs, made, strict=True):
        if output:
            ctx.ask.facts[output] = Static(value, waits)
    return None


def _without_time(ctx: Context, node: Node, name: str) -> Static:
    fact = ctx.ask.fact(name)
    if isinstance(fact, Varying):
        return at_end(ctx, name)
    if not isinstance(fact, Static):
        ctx.ask.operand(node, name)  # first frames, or refused
        fact = ctx.ask.fact(name)
    assert isinstance(fact, Static)
    return fact


def _unsafe(ctx: Context, node: Node, facts: list[Static | None]) -> int | None:
    """Which input may be anything until it is right, and must not: a divisor, or a place in a table."""
    at = {"Div": 1, "Mod": 1, "Gather": 1, "GatherElements": 1}.get(node.op)
    if at is None:
        if node.op in TAKES_PLACES and any(f and f.waits for f in facts[1:]):
            ctx.ask.refuse(
                node, "where it reads or writes follows from the stream", "do it in a second model", kind=Kind.DATA
            )
        return None
    fact = facts[at]
    if fact is None or not fact.waits or not ctx.ask.dtype(node.inputs[at]).is_integer():
        return None
    if node.op not in ("Div", "Mod") and ctx.ask.sizes_static(node.inputs[0])[node.attr("axis", 0)] < 0:
        ctx.ask.refuse(node, "it picks among the streams of a batch", ctx.ask.fix_batch(), kind=Kind.BATCH)
    return at


def _safe(ctx: Context, node: Node, at: int, x: ir.Value | None) -> ir.Value:
    """Its value, but no divisor that is zero, and no place outside the table."""
    b, dtype = ctx.builder, ctx.ask.dtype(node.inputs[at])
    if node.op in ("Div", "Mod"):
        return not_zero(b, dtype, x)
    rows = ctx.ask.sizes_static(node.inputs[0])[node.attr("axis", 0)]
    low, high = (b.constant(np.array(v, dtype.numpy()), "int") for v in (-rows, rows - 1))
    return b.op("Min", b.op("Max", x, low), high)
