"""Reshape and its relatives: time kept, merged with what lies behind it, or split.

Read row by row, a tensor is a stream of elements: `outer` streams, each of L * inner elements. A reshape regroups
the elements into frames of another size:

    [B, T, 4, C] -> [B, 4T, C]       frames of 4C elements become frames of C: four times the rate
    [B, 4T, C]   -> [B, T, 4C]       frame stacking: a quarter of the rate
    [B, T, C]    -> [B*T, C]         the batch folded in front of time on one axis
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from pulsify.analysis.facts import BEHIND, Deferred, FirstFrames, Layout, Outer, Window, Wire, emitted
from pulsify.analysis.proof.batches import BATCH, Batch
from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import check_target, measured, numbers, parts_where_batch_fails, sizes
from pulsify.analysis.values.follow import VALUES, Few, Follower, Value
from pulsify.analysis.values.moves import axes_of, carried, few_moved, numbers_in
from pulsify.analysis.values.sizes import SIZES, stand_ins
from pulsify.core.length import Length
from pulsify.core.reach import Reach
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.indexing import moved_axes
from pulsify.lengths.regrouping import regrouped
from pulsify.lengths.series import Series, constant, divide, multiply
from pulsify.lengths.sizes import Sizes, as_target, product
from pulsify.ops.pointwise import clone, static
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read
from pulsify.trace.lengths import BATCHES
from pulsify.trace.shapes import INFERRED, Dims, Inputs
from pulsify.trace.traced import CannotRun, Empty
from pulsify.trace.usage import ROLE, SIZED, Sized, Walk


@rule(
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    says="time kept, merged into or split from other axes, folded into batch",
)
def reshape(ctx: Context, node: Node) -> Plan | None:
    fact, name = ctx.ask.fact(node.inputs[0]), node.outputs[0]
    if isinstance(fact, FirstFrames) and fact.bare and ctx.ask.sizes_static(name) == _one_frame(fact.wire.layout):
        ctx.ask.facts[name] = FirstFrames(fact.wire, 1)  # the first frame has its axis back
        return None
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    if node.op in ("Squeeze", "Unsqueeze") and node.input(1):
        fixed_value(ctx.ask, node, node.input(1), "axes")
    elif node.op == "Squeeze" and not node.attr("axes"):  # a single frame would be squeezed too
        own = measured(ctx.ask, node, wire).length
        assert own is not None
        ctx.ask.ledger.require(node.name, own, at_least=2)
    axis = _time_axis(ctx, node)
    if ctx.ask.traces.other_batch is not None and (turned := _behind(ctx, node, wire, name, axis)) is not None:
        return turned
    inner_in, inner_out = _inner(ctx, wire.name, wire.layout.axis), _inner(ctx, name, axis)
    _check_inner_batch(ctx, node, wire, name, axis)
    outer = _outer(ctx, node, wire, name, axis)
    layout = Layout(ctx.ask.sizes(name, axis), axis, outer)
    g = math.gcd(inner_in, inner_out)
    num, den = inner_out // g, inner_in // g
    reach = Reach(num, den, 0, num - 1)
    length = None
    if wire.length is not None:
        length = wire.length.then(den, 0, num)
        if num > 1:
            ctx.ask.ledger.require(node.name, wire.length, multiple=num // math.gcd(num, den))

    if length is not None:
        _check_frames(ctx, node, layout, length)
    if node.op == "Reshape":
        _check_shape(ctx, node, wire, layout, den, num)

    # a Reshape can leave one size open, not two; an axis of one more or less needs no size
    beside: list[Deferred | None] = []
    if node.op in ("Squeeze", "Unsqueeze") and num == den:
        beside = [ctx.ask.operand(node, n) for n in node.inputs[1:]]

    def check(window: Window) -> None:
        if layout.shape(window.frames).count(-1) > 1 and (node.op not in ("Squeeze", "Unsqueeze") or num != den):
            ctx.ask.refuse(
                node, f"time and batch are merged in this {node.op}, and the batch size is open",
                "export with a fixed batch of 1, or keep streams and time on axes of their own", kind=Kind.BATCH
            )  # fmt: skip

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        lo, hi = reach.span(window.start, window.end)
        have, want = (lo * den, hi * den), (window.start * num, window.end * num)
        if layout.shape(window.frames).count(-1) > 1:
            return clone(ctx, node, [values[0], *map(emitted, beside)])
        return (_regroup(ctx, values[0], layout, have, want, g, window.frames),)

    return Plan((Read(wire, reach),), (layout,), length, emit, regroups=True, copies=wire.copies, check=check)


def _check_frames(ctx: Context, node: Node, layout: Layout, length: Length) -> None:
    """Rows of elements must hold whole frames: [C, T] read as [T, C] puts frames of all channels into each row."""
    name = node.outputs[0]
    for run in ctx.ask.traces.runs:
        want, got = layout.outer[0] * length.at(run.length), run[name].dims[layout.axis]
        if want != got:
            ctx.ask.refuse(
                node,
                f"it scrambles time: at {run.length} frames {list(run[node.inputs[0]].dims)} is read as "
                f"{list(run[name].dims)}, so that which frames a row holds depends on the length",
                "transpose first, so that axes keep their order",
                kind=Kind.AXES,
            )


def _check_shape(ctx: Context, node: Node, wire: Wire, layout: Layout, den: int, num: int) -> None:
    """The shape it is given is what it looks like, at every length."""
    own, unit = sizes(ctx.ask, node, node.inputs[0])[wire.layout.axis], ctx.ask.traces.tracer.time.step
    elements = multiply(own, constant(den * _folded(ctx, node.outputs[0], layout), unit))
    _check_sizes(ctx, node, layout, divide(elements, constant(num * _folded(ctx, wire.name, wire.layout), unit)))


def _folded(ctx: Context, name: str, layout: Layout) -> int:
    """How many rows of frames batch has on the time axis: positions have one for all streams, where a wire has many."""
    other, (here, there, *_) = ctx.ask.traces.other_batch, layout.outer
    if here != there and other is not None:
        return 1 if other[name].dims[layout.axis] == ctx.ask.dims(name, 0)[layout.axis] else here
    return here


def _one_frame(layout: Layout) -> tuple[int, ...]:
    return tuple(1 if i == layout.axis else s for i, s in enumerate(layout.sizes))


def _check_inner_batch(ctx: Context, node: Node, wire: Wire, name: str, axis: int) -> None:
    """Merged behind time, a free batch would make the rate depend on how many streams there are."""
    other = ctx.ask.traces.other_batch
    if other is None:
        return
    here = [(math.prod(run[wire.name].dims[wire.layout.axis + 1 :]), math.prod(run[name].dims[axis + 1 :]))
            for run in (ctx.ask.traces.runs[0], other)]  # fmt: skip
    if here[0][0] * here[1][1] != here[1][0] * here[0][1]:
        ctx.ask.refuse(
            node,
            f"time and batch are merged (T*B) in this {node.op}",
            ctx.ask.fix_batch(),
            kind=Kind.BATCH,
        )


def _inner(ctx: Context, name: str, axis: int) -> int:
    """Elements behind the time axis."""
    return math.prod(ctx.ask.dims(name)[axis + 1 :])


def _outer(ctx: Context, node: Node, wire: Wire, name: str, axis: int) -> Outer:
    """What is folded in front of time on the output's time axis, at both batch sizes."""
    out = []
    runs = [ctx.ask.traces.runs[0], ctx.ask.traces.other_batch or ctx.ask.traces.runs[0]]
    for run, folded in zip(runs, wire.layout.outer[:2], strict=True):
        ahead = math.prod(_held(wire, run[wire.name].dims)[: wire.layout.axis]) * folded
        kept = math.prod(run[name].dims[:axis])
        if kept == 0 or ahead % kept:
            ctx.ask.refuse(
                node,
                f"this {node.op} splits the time axis so that neighbouring frames part: where they go depends on how "
                "long the stream is",
                "split it so that the frames of a part follow each other: [T, C] to [T/n, n, C], not to [n, T/n, C]",
                kind=Kind.AXES,
            )
        out.append(ahead // kept)
    apart = _inner(ctx, wire.name, wire.layout.axis) != _inner(ctx, name, axis) or tuple(out) != wire.layout.outer[:2]
    if wire.layout.behind and apart:
        ctx.ask.refuse(
            node,
            f"time and batch were merged (T*B), and this {node.op} splits them in another way",
            "undo the merge as it was made: [T*B, C] to [T, B, C]",
            kind=Kind.BATCH,
        )
    return (out[0], out[1], *wire.layout.outer[2:])


def _held(wire: Wire, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes as the wire has them: a known value is held once for all streams, or once a stream along time."""
    if wire.end is not None:
        return dims
    return tuple(1 if s == 1 else d for s, d in zip(wire.layout.sizes, dims, strict=True))


def _behind(ctx: Context, node: Node, wire: Wire, name: str, axis: int) -> Plan | None:
    """Streams folded behind time, [T, B, C] -> [T*B, C], or unfolded again: they are folded in front of it instead.

    batch     t0b0 t0b1 t1b0 t1b1      each frame of all streams, then the next
    here      b0t0 b0t1 b1t0 b1t1      rows of one stream are neighbours, as everywhere else
    """
    own, other = wire.layout, ctx.ask.traces.other_batch
    assert other is not None
    sizes = [(run[wire.name].dims, run[name].dims) for run in (ctx.ask.traces.runs[0], other)]
    ahead = all(math.prod(x[: own.axis]) == math.prod(y[:axis]) for x, y in sizes)
    next_to = not own.folded and own.rank > own.axis + 1 and own.sizes[own.axis + 1] < 0 and wire.end is not None
    counts = [y[axis] // x[own.axis] for x, y in sizes]
    whole = all(y[axis] == x[own.axis] * n for (x, y), n in zip(sizes, counts, strict=True))
    if ahead and next_to and whole and counts[0] * BATCHES[1] == counts[1] * BATCHES[0]:
        return _folding(ctx, node, wire, Layout(ctx.ask.sizes(name, axis), axis, (*counts, BEHIND)))
    if ahead and own.behind and all(y[axis] * n == x[own.axis] for (x, y), n in zip(sizes, own.outer, strict=False)):
        return _unfolding(ctx, node, wire, Layout(ctx.ask.sizes(name, axis), axis))
    return None


def _folding(ctx: Context, node: Node, wire: Wire, layout: Layout) -> Plan:
    return _turned(ctx, node, wire, layout, folded=layout, unfolds=False)


def _unfolding(ctx: Context, node: Node, wire: Wire, layout: Layout) -> Plan:
    return _turned(ctx, node, wire, layout, folded=wire.layout, unfolds=True)


def _turned(ctx: Context, node: Node, wire: Wire, layout: Layout, folded: Layout, unfolds: bool) -> Plan:
    """Frames and what is folded with them change places. folded: the layout, of both, that has them on one axis."""
    own, unit = wire.layout, ctx.ask.traces.tracer.time.step
    frames, count = sizes(ctx.ask, node, node.inputs[0])[own.axis], constant(folded.outer[0], unit)
    _check_sizes(ctx, node, layout, divide(frames, count) if unfolds else multiply(frames, count))
    ahead, behind = own.sizes[: own.axis], math.prod(folded.sizes[folded.axis + 1 :])
    perm = [*range(len(ahead)), len(ahead) + 1, len(ahead), len(ahead) + 2]

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b = ctx.builder
        middle = [-1, window.frames] if unfolds else [window.frames, -1]
        apart = b.reshape(values[0], [*ahead, *middle, behind])
        return (b.reshape(b.op("Transpose", apart, perm=perm), layout.shape(window.frames)),)

    return Plan((Read(wire),), (layout,), wire.length, emit)


def _check_sizes(ctx: Context, node: Node, layout: Layout, time: Series) -> None:
    """The shape it is given is what it looks like, at every length; time: how long its time axis is."""
    if node.op != "Reshape":
        return
    unit, dims = ctx.ask.traces.tracer.time.step, ctx.ask.dims(node.outputs[0])
    expected = {a: constant(d, unit) for a, d in enumerate(dims) if a != layout.axis}
    given = numbers(ctx.ask, node, node.inputs[1]).reshape(-1)
    if not any(s.constant and s.item in (-1, 0) for s in given):  # all sizes are given: it fails, if they do not fit
        by = constant(_folded(ctx, node.outputs[0], layout), unit)
        if parts_where_batch_fails(ctx.ask, node, divide(given[layout.axis], by), divide(time, by)):
            expected[layout.axis] = given[layout.axis]
    check_target(ctx.ask, node, node.inputs[1], {layout.axis: time, **expected})


def _regroup(
    ctx: Context, x: ir.Value, layout: Layout, have: tuple[int, int], want: tuple[int, int], unit: int, frames: int
) -> ir.Value:
    """Reshape one window; have and want are in units of `unit` elements and differ only if frames do not line up."""
    b = ctx.builder
    if have != want and layout.batch is not None and layout.batch > layout.axis:  # streams lie inside of a unit
        rows = b.reshape(x, [math.prod(layout.sizes[: layout.axis]), have[1] - have[0], -1])
        x = b.slice(rows, 1, want[0] - have[0], want[1] - have[0])
    elif have != want:
        rows = b.reshape(x, [-1, (have[1] - have[0]) * unit])
        x = b.slice(rows, 1, (want[0] - have[0]) * unit, (want[1] - have[0]) * unit)
    return b.reshape(x, layout.shape(frames))


@rule("DepthToSpace", says="blocks unfolded into time")
def depth_to_space(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    return _blocks(ctx, node, wire, Reach(1, node.attr("blocksize")))


@rule("SpaceToDepth", says="blocks of frames folded into channels")
def space_to_depth(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    size = node.attr("blocksize")
    if wire.length is not None and wire.layout.axis > 1:
        ctx.ask.ledger.require(node.name, wire.length, multiple=size)
    return _blocks(ctx, node, wire, Reach(size, 1, 0, size - 1))


def _blocks(ctx: Context, node: Node, wire: Wire, reach: Reach) -> Plan:
    if wire.layout.axis == 1:
        ctx.ask.refuse(node, "time is its channel axis", "put time on a spatial axis", kind=Kind.AXES)
    if wire.layout.axis == 0:
        reach = Reach()
    length = wire.length.then(reach.den, 0, reach.num) if wire.length is not None else None

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        out = ctx.builder.ops(node.op, values, node.attrs, name=node.name)[0]
        skip = window.start - reach.first(window.start) * reach.den if reach.den > 1 else 0
        made = (
            (reach.last(window.end - 1) + 1 - reach.first(window.start)) * reach.den if reach.den > 1 else window.frames
        )
        if (skip, made) == (0, window.frames):
            return (out,)
        return (ctx.builder.slice(out, wire.layout.axis, skip, skip + window.frames),)

    return Plan((Read(wire, reach),), (ctx.ask.layout(node, node.outputs[0]),), length, emit)


# ---- roles of inputs
SIZED.add({"Reshape": Sized((1,), "all")})


ROLE.add(dict.fromkeys(("DepthToSpace", "SpaceToDepth"), Walk.moved))


# ---- at one length
@INFERRED("Reshape")
def _as_many_entries(node: Node, ins: Inputs, dims: Dims) -> Dims:
    x = ins[0]
    if x is not None and min(dims, default=0) >= 0 and math.prod(dims) != math.prod(x.dims):
        if 0 in dims:
            raise Empty(node, dims)
        raise CannotRun(node, f"its input of shape {list(x.dims)} has no shape {list(dims)}")
    return dims


# ---- values by length
def reshaped_sizes(f: Follower, node: Node, own: Sizes, ins: Sequence[Value | None]) -> Sizes:
    zeros = bool(node.attr("allowzero", 0))
    return as_target(numbers_in(f, ins[1]), own, f.unit, zeros)


def flattened_sizes(f: Follower, node: Node, own: Sizes, ins: Sequence[Value | None]) -> Sizes:
    axis = node.attr("axis", 1) % (len(own) + 1)
    return product(own[:axis], f.unit), product(own[axis:], f.unit)


def squeezed_sizes(f: Follower, node: Node, own: Sizes, ins: Sequence[Value | None]) -> Sizes:
    axes = axes_of(f, node, ins, len(own)) or {a for a, s in enumerate(own) if s.constant and s.item == 1}
    return tuple(s for a, s in enumerate(own) if a not in axes)


def unsqueezed_sizes(f: Follower, node: Node, own: Sizes, ins: Sequence[Value | None]) -> Sizes:
    axes = axes_of(f, node, ins, len(own), more=True)
    rest = iter(own)
    return tuple(constant(1, f.unit) if a in axes else next(rest) for a in range(len(own) + len(axes)))


REGROUPED = {
    "Reshape": reshaped_sizes,
    "Flatten": flattened_sizes,
    "Squeeze": squeezed_sizes,
    "Unsqueeze": unsqueezed_sizes,
}


@VALUES(*REGROUPED)
def regrouped_values(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if (few := few_moved(f, node, ins)) is not None:
        return few
    v = f.spread(ins[0])
    return regrouped(v, REGROUPED[node.op](f, node, v.sizes, ins))


@SIZES(*REGROUPED)
def regrouped_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    return REGROUPED[node.op](f, node, sizes[0], stand_ins(f, node, sizes))


@VALUES("Transpose")
def transposed_values(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    if isinstance(ins[0], Few):
        return carried(f, node, ins[0], [])
    v = f.spread(ins[0])
    perm = node.attr("perm") or tuple(reversed(range(v.rank)))
    return moved_axes(v, {a: perm.index(a) for a in range(v.rank)}, tuple(v.sizes[p] for p in perm))


@SIZES("Transpose")
def transposed_sizes(f: Follower, node: Node, sizes: list[Sizes]) -> Sizes:
    perm = node.attr("perm") or tuple(reversed(range(len(sizes[0]))))
    return tuple(sizes[0][p] for p in perm)


# ---- any number of streams
BATCH.add({"Squeeze": Batch(removes=lambda node: not node.input(1) and not node.attr("axes"))})


def _time_axis(ctx: Context, node: Node) -> int:
    axes = ctx.ask.time_axes(node.outputs[0])
    if len(axes) != 1:
        ctx.ask.refuse(
            node,
            "time cannot be followed through this reshape: "
            + ("no axis" if not axes else "more than one axis")
            + " of its output grows with the stream",
            "keep time on one axis",
            kind=Kind.AXES,
        )
    return axes[0]
