"""Values without time that are made of frames: plans that show every frame once, right when the last one has come.

All operators that reduce over time come here: Reduce*, global pools, ArgMax, first and last frames, sums of products.
Whoever reads first frames beside frames of the stream waits until they are there (`plan.execute`); if they come with
the first pulse anyway, nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import FirstFrames, Layout, Static, Window, Wire, emitted
from pulsify.analysis.proof.numbers import measured
from pulsify.analysis.questions import JOINED
from pulsify.core.refusal import Kind
from pulsify.emit.builder import Builder
from pulsify.emit.carry import per_stream
from pulsify.emit.fold import COMPARED_AS, DOUBLE, INT64, SHORT, Fold
from pulsify.emit.state import Sizes
from pulsify.frontend.model import Node
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read, Whole, execute

Make = Callable[[Fold, list[ir.Value]], Sequence[ir.Value]]


def over_all(
    ctx: Context,
    node: Node,
    wires: Sequence[Wire],
    make: Make,
    beside: Sequence[Static] = (),
    first: int | None = None,
) -> Plan:
    """A plan whose results are right when the stream has ended. make: gets each frame of the wires once.

    beside: values that go into the results too, and have to be waited for. first: they are made of so many first frames
    alone, and right when those have come.
    """
    for wire in wires:
        if wire.layout.folded:
            check_joined(ctx, node)
            ctx.ask.refuse(
                node,
                "it reduces over time where time is merged with another axis (B*T, say)",
                "reduce before the reshape, or with time on an axis of its own",
                kind=Kind.AXES,
            )
    known = [measured(ctx.ask, node, w) if w.length is None and w.end is None else w for w in wires]
    length = next(w.length for w in [*(w for w in known if w.end is not None), *known] if w.length is not None)
    if all(w.end is None for w in known):  # any window can be had: the frames of the pulse, those that are sure
        most = min(ctx.frames(length.rate), ctx.latest_end(length))
        known = [replace(w, end=most) for w in known]
    ctx.ask.ledger.require(node.name, length, at_least=first or 1)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return make(Fold(ctx, node, length, window), values)

    reads, whole = tuple(Read(w) for w in known), Whole(first, tuple(beside))
    return Plan(reads, (None,) * len(node.outputs), length, emit, exact=True, merges=True, whole=whole)


def check_joined(ctx: Context, node: Node) -> None:
    """Refuse a result that frames are joined with, whatever else stands in the way of it: nothing else would help."""
    joins = joined_by(ctx, node)
    if joins is not None:
        ctx.ask.refuse(
            node,
            f"it reduces over the whole stream, and {joins.op} '{joins.name}' joins the result with frames: it is "
            "known only when the stream has ended",
            JOINED,
            kind=Kind.WHOLE_STREAM,
        )


def joined_by(ctx: Context, node: Node) -> Node | None:
    """The first node behind it that makes frames of its result."""
    reached = set(node.outputs)
    for other in ctx.ask.model.nodes:
        if reached.intersection(other.reads):
            if any(o and ctx.ask.time_axes(o) for o in other.outputs):
                return other
            reached.update(other.outputs)
    return None


def sizes_of(layout: Layout, axes: set[int], frames: int = 1) -> Sizes:
    """Of what is left when these axes, time among them, have a single entry."""
    return tuple(frames if i == layout.axis else 1 if i in axes else s for i, s in enumerate(layout.sizes))


def check_axes(ctx: Context, node: Node, wire: Wire, axes: set[int]) -> None:
    if any(wire.layout.sizes[a] < 0 for a in axes):
        check_joined(ctx, node)
        ctx.ask.refuse(node, "it reduces over the streams of a batch too", ctx.ask.fix_batch(), kind=Kind.BATCH)


def finished(ctx: Context, node: Node, x: ir.Value, dtype: ir.DataType, axes: set[int], keep: bool) -> ir.Value:
    """A result with axes of one entry, as the node gives it out."""
    b, to = ctx.builder, ctx.ask.dtype(node.outputs[0])
    x = x if dtype == to else b.op("Cast", x, to=int(to))
    return x if keep else b.op("Squeeze", x, b.ints(*sorted(axes)))


# ---- Reduce*
BEFORE: dict[str, Callable[[ir.Value], tuple[str, tuple[ir.Value, ...]]]] = {
    "ReduceL1": lambda x: ("Abs", (x,)),
    "ReduceL2": lambda x: ("Mul", (x, x)),
    "ReduceSumSquare": lambda x: ("Mul", (x, x)),
}


AFTER = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}


def reduced(ctx: Context, node: Node, wire: Wire, axes: set[int], keep: bool, op: str = "") -> Plan:
    """A Reduce operator (or a pool of all frames) over time, and perhaps other axes. op: what it is, if not its own."""
    op = op or node.op
    check_axes(ctx, node, wire, axes)
    floats = wire.dtype.is_floating_point()
    if not floats and op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
        ctx.ask.refuse(node, "it takes roots or logarithms of whole numbers", "cast them to floats first")
    sizes = sizes_of(wire.layout, axes)

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        dtype = SHORT.get(wire.dtype, wire.dtype)
        x = fold.cast(values[0], wire.dtype, dtype)
        if op in ("ReduceMax", "ReduceMin"):
            how = op.removeprefix("Reduce")
            part = fold.reduced(op, fold.only(x, wire.layout, dtype, neutral(how, dtype)), axes)
            return (finished(ctx, node, extreme(fold, how, part, dtype, sizes)[1], _compared(dtype), axes, keep),)
        held = DOUBLE if floats else INT64
        if op == "ReduceLogSumExp":
            found = scores(fold, x, wire.layout, dtype, axes)
            total = fold.total("sum", fold.reduced("ReduceSum", found.weights, axes), dtype, sizes, found.worth)
            top = fold.cast(found.top, dtype, DOUBLE)
            value = ctx.builder.op("Add", ctx.builder.op("Log", total), top)
        elif op == "ReduceProd":
            part = fold.reduced(op, fold.only(x, wire.layout, dtype, 1), axes)
            value = fold.product("product", part, dtype, sizes)
        else:
            value = _summed(ctx, fold, op, x, wire.layout, dtype, axes)
        return (finished(ctx, node, value, held, axes, keep),)

    return over_all(ctx, node, (wire,), make)


def _compared(dtype: ir.DataType) -> ir.DataType:
    return COMPARED_AS.get(dtype, dtype)


def _summed(
    ctx: Context, fold: Fold, op: str, x: ir.Value, layout: Layout, dtype: ir.DataType, axes: set[int]
) -> ir.Value:
    b, sizes = ctx.builder, sizes_of(layout, axes)
    if op in BEFORE:
        entry, inputs = BEFORE[op](x)
        x = b.op(entry, *inputs)
    part = fold.reduced("ReduceSum", fold.only(x, layout, dtype, 0), axes)
    total = fold.total("sum", part, dtype, sizes)
    if op == "ReduceMean":
        each = math.prod(layout.sizes[a] for a in axes if a != layout.axis)
        count = b.op("Mul", fold.count(sizes), b.constant(np.array(each, np.float64), "each"))
        count = count if dtype.is_floating_point() else b.op("Cast", count, to=int(INT64))
        return b.op("Div", total, _some(b, count, dtype))
    return b.op(AFTER[op], total) if op in AFTER else total


def _some(b: Builder, count: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Before the first frame nothing has been counted, and dividing whole numbers by nothing ends the process."""
    return count if dtype.is_floating_point() else b.op("Max", count, b.constant(np.array(1, np.int64), "one"))


@dataclass(frozen=True, eq=False)
class Scores:
    """exp(x - top) of a pulse's frames, top being the largest of all so far; what was summed before is worth less now.

    worth: exp(top before - top now), in double precision.
    moved: top now - top before, and zero as long as there was none.
    """

    weights: ir.Value
    top: ir.Value
    worth: ir.Value
    moved: ir.Value


def scores(fold: Fold, x: ir.Value, layout: Layout, dtype: ir.DataType, axes: set[int]) -> Scores:
    b, sizes = fold.ctx.builder, sizes_of(layout, axes)
    x = fold.only(x, layout, dtype, -np.inf)
    before, now = extreme(fold, "Max", fold.reduced("ReduceMax", x, axes), dtype, sizes)
    far, zero = (b.constant(np.array(v, dtype.numpy()), "far") for v in (np.inf, 0))
    top = b.op("Where", b.op("Equal", b.op("Abs", now), far), zero, now)  # infinite: its exponential is zero, or that
    worth = b.op("Exp", b.op("Sub", before, top))
    moved = b.op("Where", b.op("Equal", b.op("Abs", before), far), zero, b.op("Sub", top, before))
    return Scores(b.op("Exp", b.op("Sub", x, top)), top, fold.cast(worth, dtype, DOUBLE), moved)


# ---- places
def arg_extreme(ctx: Context, node: Node, wire: Wire) -> Plan:
    """ArgMax and ArgMin over time: the best so far, and where it was."""
    how = node.op.removeprefix("Arg")
    axes, last = {wire.layout.axis}, bool(node.attr("select_last_index", 0))
    sizes = sizes_of(wire.layout, axes)

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        b, dtype = ctx.builder, COMPARED_AS.get(wire.dtype, wire.dtype)
        x = fold.only(fold.cast(values[0], wire.dtype, dtype), wire.layout, dtype, neutral(how, dtype))
        here = fold.reduced(f"Reduce{how}", x, axes)
        best, _ = extreme(fold, how, here, dtype, sizes)
        inside = b.op(node.op, x, axis=wire.layout.axis, keepdims=1, select_last_index=int(last))
        first = ctx.clock.positions(Window(fold.window.p, fold.window.start, fold.window.start + 1))
        at = b.op("Add", inside, per_stream(ctx, b.op("Cast", first, to=int(INT64)), sizes))
        end = b.op("Sub", ctx.clock.end(fold.length), b.constant(np.array(1, np.int32), "int"))
        at = b.op("Min", at, per_stream(ctx, b.op("Cast", end, to=int(INT64)), sizes))
        where = fold.running("where", INT64, sizes)
        better = b.op(("Greater" if how == "Max" else "Less") + ("OrEqual" if last else ""), here, best)
        after = b.op("Where", better, at, where.value)
        where.keep(after)
        return (finished(ctx, node, after, INT64, axes, bool(node.attr("keepdims", 1))),)

    return over_all(ctx, node, (wire,), make)


def last_frames(ctx: Context, node: Node, wire: Wire, frames: int, cut: Cut = lambda x: x) -> Plan:
    """The last frames of a wire as a value. Streams that have fewer are rejected. cut: what is taken of them."""

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        return (cut(fold.last(values[0], wire.layout, wire.dtype, frames)),)

    plan = over_all(ctx, node, (wire,), make)
    assert plan.length is not None
    ctx.ask.ledger.require(node.name, plan.length, at_least=frames)
    return plan


# ---- products
def contracted(ctx: Context, node: Node, wires: dict[int, Wire]) -> Plan:
    """A product that sums over time: what a pulse adds to it is the same product of the pulse's frames."""
    sizes = ctx.ask.sizes_static(node.outputs[0])
    dtype = ctx.ask.dtype(node.outputs[0])
    beside = {i: ctx.ask.operand(node, n) for i, n in enumerate(node.inputs) if i not in wires}

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        given = {
            i: fold.only(v, w.layout, w.dtype, 0) for (i, w), v in zip(wires.items(), values, strict=True)
        }  # nothing times NaN is NaN: both sides
        inputs = [given[i] if i in given else emitted(beside[i]) for i in range(len(node.inputs))]
        part = ctx.builder.ops(node.op, inputs, node.attrs, domain=node.domain, name=node.name)[0]
        return (finished(ctx, node, _kept(ctx, fold, part, dtype, sizes), _held(dtype), set(), True),)

    return over_all(ctx, node, tuple(wires.values()), make)


def _held(dtype: ir.DataType) -> ir.DataType:
    return DOUBLE if dtype.is_floating_point() else INT64


def _kept(ctx: Context, fold: Fold, part: ir.Value, dtype: ir.DataType, sizes: Sizes) -> ir.Value:
    """The sum so far; a plain number is kept with an axis."""
    b = ctx.builder
    bare = sizes in ((), (-1,))
    part = b.op("Unsqueeze", part, b.ints(-1)) if bare else part
    total = fold.total("sum", part, dtype, (*sizes, 1) if bare else sizes)
    return b.op("Squeeze", total, b.ints(-1)) if bare else total


Cut = Callable[[ir.Value], ir.Value]


def neutral(op: str, dtype: ir.DataType) -> float:
    """What no value is larger than (op Min), or smaller (Max)."""
    kind = dtype.numpy()
    if kind.kind in "iu":
        return np.iinfo(kind).min if op == "Max" else np.iinfo(kind).max
    if kind.kind == "b":
        return op == "Min"
    return -np.inf if op == "Max" else np.inf


def extreme(fold: Fold, op: str, part: ir.Value, dtype: ir.DataType, sizes: Sizes) -> tuple[ir.Value, ir.Value]:
    """`Fold.extreme`, from what no value is larger than, or smaller."""
    return fold.extreme(op, part, dtype, sizes, neutral(op, _compared(dtype)))


def as_value(ctx: Context, name: str) -> Static:
    """The first frames of a wire, filed as such so far, as a value."""
    fact, node = ctx.ask.facts[name], ctx.ask.model.producers[name]
    assert isinstance(fact, FirstFrames)
    axis, part = fact.wire.layout.axis, replace(node, outputs=(name,))

    def cut(x: ir.Value) -> ir.Value:
        return ctx.builder.op("Squeeze", x, ctx.builder.ints(axis)) if fact.bare else x

    execute(ctx, part, first_frames(ctx, part, fact.wire, fact.count, cut))
    value = ctx.ask.facts[name]
    assert isinstance(value, Static)
    return value


def first_frames(ctx: Context, node: Node, wire: Wire, frames: int, cut: Cut) -> Plan:
    """The first frames of a wire as a value. Streams that have fewer are rejected. cut: what is taken of them."""
    if wire.layout.folded or wire.end is None or wire.length is None:
        ctx.ask.refuse(
            node,
            "the first frames are used as a value of their own where time is merged with another axis (B*T, say), "
            "or of no data",
            "cut before the reshape, or feed them as a separate input without a time axis",
            kind=Kind.AXES,
        )

    def make(fold: Fold, values: list[ir.Value]) -> Sequence[ir.Value]:
        return (cut(fold.first(values[0], wire.layout, wire.dtype, frames)),)

    return over_all(ctx, node, (wire,), make, first=frames)
