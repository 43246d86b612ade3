"""Operators where every frame meets every other: attention, from the scores to the sum over values.

A field is never computed as such. Each operator says what its cells are and how to make a window of it; the operator
that sums over one of the two time axes looks at the cells, chooses the windows, and pulls everything else into being.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from pulsify.analysis import mask_cells as cell
from pulsify.analysis.axes import axis_maps, repeats_one
from pulsify.analysis.facts import (
    Deferred,
    Field,
    Layout,
    Offsets,
    Side,
    Tabled,
    Window,
    Windows,
    Wire,
    deferred,
    deferred_all,
    emitted,
)
from pulsify.analysis.fields.cells import cells_of
from pulsify.analysis.fields.operand import Operand, check_beside, check_shape, operand_of
from pulsify.analysis.mask_cells import CELLS
from pulsify.analysis.questions import Unclear
from pulsify.core.refusal import Kind
from pulsify.core.roles import POSITIONS, SCORES, WEIGHTS, mark
from pulsify.core.traits import traits
from pulsify.emit.frames import aligned
from pulsify.frontend.model import Node
from pulsify.ops.field_reduce import ROW_REDUCTIONS, field_reduce
from pulsify.ops.field_sum import field_sum
from pulsify.ops.field_template import field_template
from pulsify.ops.field_view import inside
from pulsify.ops.first_columns import with_first
from pulsify.ops.growing import all_of
from pulsify.ops.pointwise import clone
from pulsify.plan.boundary import check_aligned
from pulsify.plan.context import Context


def meets(ctx: Context, node: Node) -> bool:
    """Does any value around this node have two time axes?"""
    names = [*(i for i in node.inputs if i), *(o for o in node.outputs if o)]
    return any(len(ctx.ask.time_axes(n)) > 1 for n in names)


def field_rule(ctx: Context, node: Node) -> None:
    """File the output of a node with fields around it: a field again, or the wire that a sum makes of it."""
    maps = axis_maps(ctx.ask, node)
    if maps is None:
        _moved(ctx, node)
        return
    read = 1 if traits(node.op).shapes else len(node.inputs)  # the target shape is worked out anew
    operands = [operand_of(ctx.ask, node, i, name, maps[i]) for i, name in enumerate(node.inputs[:read]) if name]
    summed = [o for o in operands if -1 in o.axes.values()]
    if summed and ROW_REDUCTIONS.of(node) is not None:
        field_reduce(ctx, node, summed[0])
    elif summed:
        field_sum(ctx, node, operands, summed)
    else:
        for output in (o for o in node.outputs if o):
            _file_field(ctx, node, output, operands)
        if traits(node.op).shapes and node.input(1):
            check_shape(ctx.ask, node)
        if traits(node.op).elementwise:
            check_beside(ctx.ask, node, operands)


# ---- fields
def _file_field(ctx: Context, node: Node, name: str, operands: list[Operand]) -> None:
    times = ctx.ask.time_axes(name)
    if len(times) != 2:
        raise Unclear(
            f"its output '{name}' has {len(times)} time axes",
            node=node.name,
            op=node.op,
            hint="keep time on one axis, or on two for attention scores",
            kind=Kind.AXES,
        )
    axes = (times[0], times[1])
    sides = tuple(_side(ctx, operands, a) for a in axes)
    made: dict[tuple[Windows, Offsets], tuple[Deferred, ...]] = {}
    at = node.outputs.index(name)

    def take(windows: Windows, offsets: Offsets) -> Deferred:
        key = (windows, offsets)
        if key not in made:
            made[key] = _planned(ctx, node, operands, dict(zip(axes, windows, strict=True)), offsets)
        return made[key][at]

    ctx.ask.facts[name] = Field(
        name=name,
        sizes=tuple(0 if i in axes else s for i, s in enumerate(ctx.ask.sizes_static(name))),
        sides=(sides[0], sides[1]),
        dtype=ctx.ask.dtype(name),
        cells=cells_of(ctx.ask, node, operands, axes),
        take=take,
        bounded=_bounded(ctx, node, operands, axes),
        product=_product(node, operands),
        raw=_raw(ctx, node, operands, axes),
    )


def _bounded(ctx: Context, node: Node, operands: list[Operand], axes: tuple[int, int]) -> frozenset[int]:
    law = CELLS.of(node)
    if law is None:
        return frozenset()
    if law.kind == "normalises" and not law.logarithm:
        return frozenset({node.attr("axis", -1) % len(ctx.ask.dims(node.outputs[0]))}) & frozenset(axes)
    if law.kind == "moves" or law.same or law.scales:  # a choice of rows without any real key may show what never was
        fields = [o for o in operands if isinstance(o.fact, Field)]
        out = [frozenset(o.axes[a] for a in o.fact.bounded) for o in fields if isinstance(o.fact, Field)]
        beside = frozenset(a for o in operands if isinstance(o.fact, Wire) for a in o.axes.values())  # NaN, perhaps
        return out[0] - beside if len(fields) == 1 else frozenset()
    return frozenset()


def _product(node: Node, operands: list[Operand]) -> tuple[Node, int] | None:
    """The product of data with a known table that grows along the other axis: needed if it is skewed later."""
    if (field := _only_field(node, operands)) is not None:
        return field.product
    tables = [o for o in operands if o.fact is None and len(o.axes) == 1]
    return (node, tables[0].index) if len(tables) == 1 and traits(node.op).multiplies else None


def _only_field(node: Node, operands: list[Operand]) -> Field | None:
    """The field that an operator takes as it stands, cell by cell: scaled, seen in another shape."""
    fields = [o.fact for o in operands if isinstance(o.fact, Field)]
    plain = traits(node.op).elementwise or traits(node.op).regroups
    return fields[0] if plain and len(fields) == 1 and sum(bool(o.axes) for o in operands) == 1 else None


def _raw(
    ctx: Context, node: Node, operands: list[Operand], axes: tuple[int, int]
) -> Callable[[Tabled], Deferred] | None:
    """The same of another table, made by the same nodes."""
    product = _product(node, operands)
    if product is None:
        return None
    inner = _only_field(node, operands)

    def made(t: Tabled) -> Deferred:
        if inner is None or inner.raw is None:
            wire = ctx.ask.wire(node.inputs[1 - product[1]])
            assert wire is not None
            pair = [wire.take(t.rows)] * 2
            pair[product[1]] = t.table
            return deferred(lambda: mark(clone(ctx, node, [v.value for v in pair])[0], POSITIONS), *pair)
        windows = dict(zip(axes, (t.rows, Window(t.rows.p, 0, t.count)), strict=True))
        return _planned(ctx, node, operands, windows, (0, 0), {inner: inner.raw(t)})[0]

    return made


def _side(ctx: Context, operands: list[Operand], axis: int) -> Side:
    lengths, ends, wires, names = [], [], [], list[str]()
    for o in operands:
        for own, out in o.axes.items():
            if out != axis or o.fact is None:
                continue
            source = o.fact if isinstance(o.fact, Wire) else o.fact.side(own)
            lengths.append(source.length)
            ends.append(source.end)
            wires.append(source if isinstance(source, Wire) else source.wire)
            names += source.wires if isinstance(source, Side) else [source.name]
    return Side(
        axis,
        next((n for n in lengths if n is not None), None),
        min((e for e in ends if e is not None), default=None),
        next((w for w in wires if w is not None and w.end is not None), None),
        tuple(dict.fromkeys(names)),
    )


def _planned(
    ctx: Context,
    node: Node,
    operands: list[Operand],
    windows: dict[int, Window],
    offsets: Offsets,
    instead: Mapping[Field, Deferred] | None = None,
) -> tuple[Deferred, ...]:
    """The node on windows of its inputs. instead: what stands for some of them."""
    there = instead or {}
    given = {
        o.index: there[o.fact]
        if isinstance(o.fact, Field) and o.fact in there
        else _take(ctx, node, o, windows, offsets)
        for o in operands
    }
    inputs = [given.get(i) for i in range(len(node.inputs))]
    if node.op in ("Squeeze", "Unsqueeze"):
        inputs = [inputs[0], *(ctx.ask.operand(node, n) for n in node.inputs[1:])]
    within = None
    if node.op in ("Softmax", "LogSoftmax"):
        within = _within(ctx, node, operands[0], windows)
    if node.op == "Tile" and not repeats_one(ctx.ask.dims(node.inputs[0]), ctx.ask.dims(node.outputs[0])):
        _check_tiled(ctx, node)

    def make() -> Sequence[ir.Value]:
        return _emit(ctx, node, operands, windows, [emitted(i) for i in inputs], within)

    return deferred_all(make, len(node.outputs), *inputs, within)


def _emit(
    ctx: Context,
    node: Node,
    operands: list[Operand],
    windows: dict[int, Window],
    inputs: list[ir.Value | None],
    within: Deferred | None,
) -> Sequence[ir.Value]:
    if node.op in ("Reshape", "Flatten"):
        sizes = ctx.ask.sizes_static(node.outputs[0])
        dims = [windows[a].frames if a in windows else max(s, -1) for a, s in enumerate(sizes)]
        assert inputs[0] is not None
        return (_reshaped(ctx, inputs[0], dims, {out: a for a, out in operands[0].axes.items()}),)
    if node.op == "Tile" and not repeats_one(ctx.ask.dims(node.inputs[0]), ctx.ask.dims(node.outputs[0])):
        return (_tiled(ctx, node, inputs[0]),)
    if node.op in ("Expand", "Tile"):
        sizes = ctx.ask.sizes_static(node.outputs[0])
        dims = [windows[a].frames if a in windows else max(s, 1) for a, s in enumerate(sizes)]
        return (ctx.builder.op("Expand", inputs[0], ctx.builder.ints(*dims)),)
    if within is not None:
        inputs[0] = _masked(ctx, operands[0], inputs[0], within)
    made = clone(ctx, node, inputs)
    if node.op == "Softmax":
        mark(made[0], WEIGHTS)
    elif node.op in ("MatMul", "Einsum") and sum(isinstance(o.fact, Wire) for o in operands) == 2:
        mark(made[0], SCORES)
    return made


def _reshaped(ctx: Context, x: ir.Value, dims: list[int], axes: Mapping[int, int]) -> ir.Value:
    """axes: where the time axes come from, which are as long as there; one may grow beside a batch of any size."""
    b = ctx.builder
    if dims.count(-1) < 2:
        return b.reshape(x, dims)
    sizes = [b.size(x, axes[i]) if d < 0 and i in axes else b.ints(d) for i, d in enumerate(dims)]
    return b.op("Reshape", x, b.op("Concat", *sizes, axis=0))


def _check_tiled(ctx: Context, node: Node) -> None:
    if min(ctx.ask.sizes_static(node.outputs[0])) < 0:
        ctx.ask.refuse(node, "it repeats heads as often as there are streams", ctx.ask.fix_batch(), kind=Kind.BATCH)


def _tiled(ctx: Context, node: Node, x: ir.Value | None) -> ir.Value:
    """Heads said again; what is repeated along time is one frame, which is spread already."""
    before, after = ctx.ask.dims(node.inputs[0]), ctx.ask.dims(node.outputs[0])
    times = ctx.ask.time_axes(node.outputs[0])
    return ctx.builder.op(
        "Tile",
        x,
        ctx.builder.ints(*(1 if i in times else n // m for i, (m, n) in enumerate(zip(before, after, strict=True)))),
    )


def _take(ctx: Context, node: Node, o: Operand, windows: dict[int, Window], offsets: Offsets) -> Deferred | None:
    if isinstance(o.fact, Wire):
        (out,) = o.axes.values()
        if o.fact.constant_frame is not None and traits(node.op).elementwise:
            return o.fact.constant_frame
        grows = windows[out].grows and o.fact.end is not None
        kept = all_of(ctx, o.fact, windows[out]) if grows else o.fact
        value = with_first(ctx, node, kept, windows[out])
        if o.fact.layout.folded and traits(node.op).elementwise:
            target = Layout(
                tuple(0 if i == out else s for i, s in enumerate(ctx.ask.sizes_static(node.outputs[0]))), out
            )
            check_aligned(ctx, o.fact, target, windows[out])
            return _beside(ctx, o.fact, value, target, windows[out])
        return value
    if isinstance(o.fact, Field):
        first, second = (windows[o.axes[s.axis]] for s in o.fact.sides)
        turned = o.axes[o.fact.sides[0].axis] > o.axes[o.fact.sides[1].axis]
        return o.fact.take((first, second), (-offsets[1], -offsets[0]) if turned else offsets)
    if len(o.axes) == 2:
        return field_template(ctx, node, o, windows)
    if len(o.axes) == 1:  # a known table over one axis, used as it stands
        fact = ctx.ask.fact(o.name)
        if isinstance(fact, Wire):
            return with_first(ctx, node, fact, windows[next(iter(o.axes.values()))])
    return ctx.ask.operand(node, o.name)


def _beside(ctx: Context, wire: Wire, value: Deferred, target: Layout, window: Window) -> Deferred:
    return deferred(lambda: aligned(ctx, wire, value.value, target, window), value)


def _within(ctx: Context, node: Node, o: Operand, windows: dict[int, Window]) -> Deferred | None:
    """What of a softmax lies inside the stream; None if it does not go along time."""
    axis = node.attr("axis", -1) % len(ctx.ask.dims(node.outputs[0]))
    if axis not in windows:
        return None
    assert isinstance(o.fact, Field)
    return inside(ctx, node, node.outputs[0], windows, axis, o.fact.side(axis).length)


def _masked(ctx: Context, o: Operand, x: ir.Value | None, within: Deferred) -> ir.Value:
    """Scores with what lies outside the stream at -inf, so that a softmax gives it no weight."""
    assert isinstance(o.fact, Field)
    low = ctx.builder.constant(np.array(-np.inf, o.fact.dtype.numpy()), "minus_inf")
    return ctx.builder.op("Where", within.value, x, low)


# ---- moved about: the relative shift
def _moved(ctx: Context, node: Node) -> None:
    """Pads, reshapes, slices and joins that move cells to other places: kept as a list until someone looks."""
    name = node.outputs[0]
    fields = [i for i, n in enumerate(node.inputs) if n and isinstance(ctx.ask.facts.get(n), Field)]
    known_rest = all(
        run[n].known for run in ctx.ask.traces.runs for i, n in enumerate(node.inputs) if n and i not in fields
    )
    if len(fields) != 1 or not known_rest:
        ctx.ask.refuse(
            node,
            f"no streaming rule is known for operator {node.op} where every frame meets every other",
            "see docs/operators.md for what attention may be made of",
            kind=Kind.ATTENTION,
        )
    source = ctx.ask.facts[node.inputs[fields[0]]]
    assert isinstance(source, Field)
    origin = source.origin or source
    moves = (*source.moves, (node, fields[0]))
    times = ctx.ask.time_axes(name)
    axes = (times[0], times[1]) if len(times) == 2 else (source.sides[0].axis, source.sides[1].axis)

    def take(windows: Windows, offsets: Offsets) -> Deferred:
        from pulsify.ops.skew import skewed

        if any(w.first for w in windows):
            ctx.ask.refuse(
                node,
                "every frame looks back to the first ones of the stream, and relative positions go on without end",
                "bound the look-back in the mask",
                kind=Kind.LOOK_BACK,
            )

        return skewed(ctx, node, origin, moves, axes, windows, offsets)

    side = origin.sides[0]
    ctx.ask.facts[name] = Field(
        name=name,
        sizes=tuple(0 if i in axes else s for i, s in enumerate(ctx.ask.sizes_static(name))),
        sides=(Side(axes[0], side.length, side.end, side.wire, side.wires), Side(axes[1], None, None)),
        dtype=ctx.ask.dtype(name),
        cells=lambda part: cell.data(),
        take=take,
        origin=origin,
        moves=moves,
    )
