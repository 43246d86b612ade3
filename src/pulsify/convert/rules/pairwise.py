"""Operators where every frame meets every other: attention, from the scores to the sum over values.

A field is never computed as such. Each operator says what its cells are and how to make a window of it; the operator
that sums over one of the two time axes looks at the cells, chooses the windows, and pulls everything else into being.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from pulsify.convert import mask_cells as cell
from pulsify.convert.context import Context
from pulsify.convert.facts import Field, Layout, Offsets, Side, Window, Windows, Wire
from pulsify.convert.primitives.boundary import aligned, along, real_frames
from pulsify.convert.questions import Unclear
from pulsify.convert.rules.axismap import axis_maps
from pulsify.convert.rules.field_cells import cells_of
from pulsify.convert.rules.field_operand import Operand, check_beside, check_shape, operand_of
from pulsify.convert.rules.field_sum import field_sum
from pulsify.convert.rules.field_template import field_template
from pulsify.convert.rules.growing import horizon
from pulsify.convert.rules.pointwise import clone
from pulsify.core.roles import SCORES, WEIGHTS, mark
from pulsify.core.traits import traits
from pulsify.frontend.model import Node


def meets(ctx: Context, node: Node) -> bool:
    """Does any value around this node have two time axes?"""
    names = [*(i for i in node.inputs if i), *(o for o in node.outputs if o)]
    return any(len(ctx.ask.time_axes(n)) > 1 for n in names)


def field_rule(ctx: Context, node: Node) -> None:
    """File the output of a node with fields around it: a field again, or the wire that a sum makes of it."""
    maps = axis_maps(ctx, node)
    if maps is None:
        _moved(ctx, node)
        return
    read = 1 if traits(node.op).shapes else len(node.inputs)  # the target shape is worked out anew
    operands = [operand_of(ctx, node, i, name, maps[i]) for i, name in enumerate(node.inputs[:read]) if name]
    summed = [o for o in operands if -1 in o.axes.values()]
    if summed or node.op.startswith("Reduce"):
        field_sum(ctx, node, operands, summed)
    else:
        for output in node.outputs:
            _file_field(ctx, node, output, operands)
        if node.op in ("Reshape", "Expand", "Tile"):
            check_shape(ctx, node)
        if traits(node.op).elementwise:
            check_beside(ctx, node, operands)


# ---- fields


def _file_field(ctx: Context, node: Node, name: str, operands: list[Operand]) -> None:
    times = ctx.ask.time_axes(name)
    if len(times) != 2:
        raise Unclear(
            f"its output '{name}' has {len(times)} time axes", node=node.name, op=node.op, hint="see docs/design.md"
        )
    axes = (times[0], times[1])
    sides = tuple(_side(ctx, operands, a) for a in axes)
    made: dict[tuple[Windows, Offsets], Sequence[ir.Value]] = {}
    at = node.outputs.index(name)

    def take(windows: Windows, offsets: Offsets) -> ir.Value:
        key = (windows, offsets)
        if key not in made:
            made[key] = _emit(ctx, node, operands, dict(zip(axes, windows, strict=True)), offsets)
        return made[key][at]

    ctx.ask.facts[name] = Field(
        name=name,
        sizes=tuple(0 if i in axes else s for i, s in enumerate(ctx.ask.sizes_static(name))),
        sides=(sides[0], sides[1]),
        dtype=ctx.ask.dtype(name),
        cells=cells_of(ctx, node, operands, axes),
        take=take,
        bounded=_bounded(ctx, node, operands, axes),
        product=_product(node, operands),
    )


def _bounded(ctx: Context, node: Node, operands: list[Operand], axes: tuple[int, int]) -> frozenset[int]:
    if node.op == "Softmax":
        return frozenset({node.attr("axis", -1) % len(ctx.ask.dims(node.outputs[0]))}) & frozenset(axes)
    if node.op in (  # not Where: rows without any real key are NaN, and it may show what was never there
        "Mul",
        "Identity",
        "Cast",
        "Dropout",
        "Transpose",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
        "Expand",
    ):
        fields = [o for o in operands if isinstance(o.fact, Field)]
        out = [frozenset(o.axes[a] for a in o.fact.bounded) for o in fields if isinstance(o.fact, Field)]
        return frozenset.union(*out) if out and (node.op == "Mul" or len(fields) == 1) else frozenset()
    return frozenset()


def _product(node: Node, operands: list[Operand]) -> tuple[Node, int] | None:
    """The product of data with a known table that grows along the other axis: needed if it is skewed later."""
    tables = [o for o in operands if o.fact is None and len(o.axes) == 1]
    return (node, tables[0].index) if len(tables) == 1 and node.op in ("MatMul", "Einsum") else None


def _side(ctx: Context, operands: list[Operand], axis: int) -> Side:
    lengths, ends = [], []
    for o in operands:
        for own, out in o.axes.items():
            if out != axis or o.fact is None:
                continue
            source = o.fact if isinstance(o.fact, Wire) else o.fact.side(own)
            lengths.append(source.length)
            ends.append(source.end)
    return Side(
        axis, next((n for n in lengths if n is not None), None), min((e for e in ends if e is not None), default=None)
    )


def _emit(
    ctx: Context, node: Node, operands: list[Operand], windows: dict[int, Window], offsets: Offsets
) -> Sequence[ir.Value]:
    """The node on windows of its inputs."""
    given = {o.index: _take(ctx, node, o, windows, offsets) for o in operands}
    inputs = [given.get(i) for i in range(len(node.inputs))]
    if node.op in ("Squeeze", "Unsqueeze"):
        return clone(ctx, node, [inputs[0], *(ctx.ask.operand(node, n) for n in node.inputs[1:])])
    if node.op in ("Reshape", "Flatten"):
        sizes = ctx.ask.sizes_static(node.outputs[0])
        dims = [windows[a].frames if a in windows else max(s, -1) for a, s in enumerate(sizes)]
        assert inputs[0] is not None
        return (ctx.builder.reshape(inputs[0], dims),)
    if node.op in ("Expand", "Tile"):
        sizes = ctx.ask.sizes_static(node.outputs[0])
        dims = [windows[a].frames if a in windows else max(s, 1) for a, s in enumerate(sizes)]
        return (ctx.builder.op("Expand", inputs[0], ctx.builder.ints(*dims)),)
    if node.op in ("Softmax", "LogSoftmax"):
        inputs[0] = _masked(ctx, node, operands[0], inputs[0], windows)
    made = clone(ctx, node, inputs)
    if node.op == "Softmax":
        mark(made[0], WEIGHTS)
    elif node.op in ("MatMul", "Einsum") and sum(isinstance(o.fact, Wire) for o in operands) == 2:
        mark(made[0], SCORES)
    return made


def _take(ctx: Context, node: Node, o: Operand, windows: dict[int, Window], offsets: Offsets) -> ir.Value | None:
    if isinstance(o.fact, Wire):
        (out,) = o.axes.values()
        if o.fact.constant_frame is not None and traits(node.op).elementwise:
            return o.fact.constant_frame
        value = o.fact.take(windows[out])
        if o.fact.layout.folded and traits(node.op).elementwise:
            target = Layout(
                tuple(0 if i == out else s for i, s in enumerate(ctx.ask.sizes_static(node.outputs[0]))), out
            )
            value = aligned(ctx, o.fact, value, target, windows[out])
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
            return fact.take(windows[next(iter(o.axes.values()))])
    return ctx.ask.operand(node, o.name)


def _masked(ctx: Context, node: Node, o: Operand, x: ir.Value | None, windows: dict[int, Window]) -> ir.Value:
    """Scores with what lies outside the stream at -inf, so that a softmax gives it no weight."""
    assert x is not None
    rank = len(ctx.ask.dims(node.outputs[0]))
    axis = node.attr("axis", -1) % rank
    if axis not in windows:
        return x
    assert isinstance(o.fact, Field)
    length = o.fact.side(axis).length
    if windows[axis].grows:
        shown = horizon(ctx, node, windows, axis, length, rank)
        low = ctx.builder.constant(np.array(-np.inf, o.fact.dtype.numpy()), "minus_inf")
        return ctx.builder.op("Where", shown, x, low)
    valid = real_frames(ctx, windows[axis], length, starts=True)
    sizes = tuple(0 if i == axis else s for i, s in enumerate(ctx.ask.sizes_static(node.outputs[0])))
    shown = along(ctx, valid, Layout(sizes, axis), windows[axis].frames)
    low = ctx.builder.constant(np.array(-np.inf, o.fact.dtype.numpy()), "minus_inf")
    return ctx.builder.op("Where", shown, x, low)


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
        )
    source = ctx.ask.facts[node.inputs[fields[0]]]
    assert isinstance(source, Field)
    origin = source.origin or source
    moves = (*source.moves, (node, fields[0]))
    times = ctx.ask.time_axes(name)
    axes = (times[0], times[1]) if len(times) == 2 else (source.sides[0].axis, source.sides[1].axis)

    def take(windows: Windows, offsets: Offsets) -> ir.Value:
        from pulsify.convert.rules.skew import skewed

        return skewed(ctx, node, origin, moves, axes, windows, offsets)

    side = origin.sides[0]
    ctx.ask.facts[name] = Field(
        name=name,
        sizes=tuple(0 if i in axes else s for i, s in enumerate(ctx.ask.sizes_static(name))),
        sides=(Side(axes[0], side.length, side.end), Side(axes[1], None, None)),
        dtype=ctx.ask.dtype(name),
        cells=lambda run: cell.data(),
        take=take,
        origin=origin,
        moves=moves,
    )
