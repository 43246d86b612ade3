"""Operators where every frame meets every other: attention, from the scores to the sum over values.

A field is never computed as such. Each operator says what its cells are and how to make a window of it; the operator
that sums over one of the two time axes looks at the cells, chooses the windows, and pulls everything else into being.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.convert import mask_cells as cell
from pulsify.convert.attention_view import choose_view
from pulsify.convert.context import Context
from pulsify.convert.facts import Field, Layout, Offsets, Prefix, Side, Varying, Window, Windows, Wire
from pulsify.convert.known.series import Unsure, constant
from pulsify.convert.known.spread import T
from pulsify.convert.mask_cells import Cells
from pulsify.convert.primitives.boundary import along, bounded_wire, real_frames
from pulsify.convert.proof.claims import Claim, holds_everywhere, prove
from pulsify.convert.proof.numbers import (
    SHORT,
    Looked,
    as_expected,
    follower,
    in_frames,
    require_as_many,
    same_series,
    sizes_by_operator,
    uncertain,
)
from pulsify.convert.proof.values import known_at
from pulsify.convert.questions import Unclear
from pulsify.convert.rules.axismap import AxisMap, axis_maps
from pulsify.convert.rules.growing import grow, growing_template, horizon
from pulsify.convert.rules.pointwise import aligned, clone
from pulsify.convert.template import Template, find
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Array, Trace, known, same

FOLDED_HEADS = "a mask or bias that differs by head or by phase has no room for the batch on the first axis"


def meets(ctx: Context, node: Node) -> bool:
    """Does any value around this node have two time axes?"""
    names = [*(i for i in node.inputs if i), *(o for o in node.outputs if o)]
    return any(len(ctx.ask.time_axes(n)) > 1 for n in names)


@dataclass(frozen=True, eq=False)
class Operand:
    """An input of a field operator, whatever it is: where its time axes go, what its cells are, how to get a window."""

    index: int
    name: str
    fact: Wire | Field | None  # None: known over two axes, or without time
    axes: dict[int, int]  # its time axes -> axes of the output (or -1: summed over)


def field_rule(ctx: Context, node: Node) -> None:
    """File the output of a node with fields around it: a field again, or the wire that a sum makes of it."""
    maps = axis_maps(ctx, node)
    if maps is None:
        _moved(ctx, node)
        return
    read = 1 if traits(node.op).shapes else len(node.inputs)  # the target shape is worked out anew
    operands = [_operand(ctx, node, i, name, maps[i]) for i, name in enumerate(node.inputs[:read]) if name]
    summed = [o for o in operands if -1 in o.axes.values()]
    if summed or node.op.startswith("Reduce"):
        _sum(ctx, node, operands, summed)
    else:
        for output in node.outputs:
            _file_field(ctx, node, output, operands)
        if node.op in ("Reshape", "Expand", "Tile"):
            _check_shape(ctx, node)
        if traits(node.op).elementwise:
            _check_beside(ctx, node, operands)


def _check_beside(ctx: Context, node: Node, operands: list[Operand]) -> None:
    """A known value has as many rows and columns as what it meets: where it has not, batch fails, and so do we."""
    fact = ctx.ask.facts[node.outputs[0]]
    if not isinstance(fact, Field):
        return
    for o in operands:
        try:
            own = follower(ctx.ask).sizes_of(o.name) if ctx.ask.known(o.name) is not None else ()
        except Unsure:
            continue
        for axis, side in ((a, s) for a, out in o.axes.items() for s in fact.sides if s.axis == out and own):
            if (
                side.length is not None
                and own[axis].growth
                and not same_series(own[axis], in_frames(ctx.ask, side.length))
            ):
                require_as_many(ctx.ask, node, side.length, own[axis])


def _check_shape(ctx: Context, node: Node) -> None:
    """The shape that a field is given must be what it was taken for, at every length."""
    name = node.outputs[0]
    fact, unit = ctx.ask.facts[name], ctx.ask.traces.tracer.time.step
    try:
        made = sizes_by_operator(ctx.ask, name)
    except Unsure as problem:
        if node.op == "Reshape":
            return  # it keeps as many entries, so that no other shape of these axes is possible
        uncertain(ctx.ask, node, node.inputs[1], problem)
    for axis, (size, d) in enumerate(zip(made, ctx.ask.dims(name, 0), strict=True)):
        side = next((s for s in fact.sides if s.axis == axis), None) if isinstance(fact, Field) else None
        if side is None and axis not in ctx.ask.time_axes(name):
            as_expected(ctx.ask, node, name, axis, size, constant(d, unit))
        elif side is not None and side.length is not None:
            as_expected(ctx.ask, node, name, axis, size, in_frames(ctx.ask, side.length))


def _operand(ctx: Context, node: Node, index: int, name: str, mapped: AxisMap) -> Operand:
    times = ctx.ask.time_axes(name)
    axes = {a: mapped.get(a, -1) for a in times}
    if len(times) > 2:
        ctx.ask.refuse(node, f"'{name}' has {len(times)} time axes", "two are the most a stream can have")
    if times and traits(node.op).elementwise and ctx.ask.known(name) is not None:
        _check_alone(ctx, node, name, times)
    if ctx.ask.known(name) is not None and (len(times) == 2 or _is_table(ctx, node, name, times)):
        constant = len(times) == 1 or _same_at_all_lengths(ctx, name)
        return Operand(index, name, None if constant else _parts(ctx, node, name), axes)
    fact = ctx.ask.fact(name)
    if isinstance(fact, (Prefix, Varying)):
        ctx.ask.operand(node, name)  # refuses
    return Operand(index, name, fact if isinstance(fact, (Wire, Field)) else None, axes)


def _check_alone(ctx: Context, node: Node, name: str, times: list[int]) -> None:
    """A known value that has a single row or column at some length would be spread over all there."""
    try:
        own = follower(ctx.ask).sizes_of(name)
    except Unsure:
        return
    for size in (own[a] for a in times):
        seen = size.look(size.horizon + size.period)
        more = np.maximum.accumulate(seen) > 1  # one frame is all there is of a stream that is short
        alone = np.flatnonzero((seen == 1) & more)
        lengths = [(int(n) + 1) * size.unit for n in alone if (n + 1) * size.unit > SHORT]
        if len(lengths) > SHORT or any(ctx.ask.traces.tracer.works(s) for s in lengths):
            ctx.ask.refuse(
                node,
                f"'{name}' has a single frame at length {lengths[0]}, which meets every other",
                "give it as many frames as the stream has",
            )


def _same_at_all_lengths(ctx: Context, name: str) -> bool:
    """Is cell (i, j) the same whatever the length? A mask may hide the last frame at some lengths only."""
    if name not in ctx.ask.same_cells:
        ctx.ask.same_cells[name] = _by_place_alone(ctx, name)
    return ctx.ask.same_cells[name]


def _by_place_alone(ctx: Context, name: str) -> bool:
    try:
        v = follower(ctx.ask).spread(follower(ctx.ask).value(name))
        if T not in v.uses:
            ctx.ask.ledger.up_to(v.certain, name)
            return True
    except Unsure:  # its parts may be certain, if it is not
        return ctx.ask.proof == "sampled"
    full: Array = known_at(ctx.ask, name, 2 * ctx.ask.traces.longest.length).array

    def agrees(run: Trace) -> bool:
        value = run[name].array
        both = tuple(slice(0, min(n, m)) for n, m in zip(value.shape, full.shape, strict=True))
        return same(value[both], full[both])

    try:
        return holds_everywhere(ctx.ask, Claim(None, f"'{name}' being the same at every length", agrees))
    except NotStreamable:
        return False


def _parts(ctx: Context, node: Node, name: str) -> Field:
    """A known value as the field its own operator makes of its inputs: what of it depends on the end waits for that."""
    with contextlib.suppress(NotStreamable):
        if isinstance(fact := ctx.ask.fact(name), Field):
            return fact
    ctx.ask.refuse(
        node,
        f"'{name}' shows or hides some frames at some lengths of the stream only, in a way no rule is known for",
        "make it of comparisons with the length, joined by And, Or, Not, Where",
    )


def _is_table(ctx: Context, node: Node, name: str, times: list[int]) -> bool:
    """A known value over one time axis that is multiplied with data: rows of relative positions."""
    return len(times) == 1 and node.op in ("MatMul", "Einsum")


# ---- cells


def _cells_of(ctx: Context, operand: Operand, run: Trace, axes: tuple[int, int]) -> Cells:
    """The operand's cells over the output's two time axes."""
    own = {out: a for a, out in operand.axes.items()}
    if isinstance(operand.fact, Field):
        found = operand.fact.cells(run)
        first = operand.axes[operand.fact.sides[0].axis]
        return found if first == axes[0] else found.turned
    if run[operand.name].known:  # (what never repeats may be taken for data)
        return cell.constants(run[operand.name].array, (own.get(axes[0]), own.get(axes[1])))
    return cell.data()


def _cells(ctx: Context, node: Node, operands: list[Operand], axes: tuple[int, int]) -> Callable[[Trace], Cells]:
    def at(run: Trace) -> Cells:
        key = (node.outputs[0], run.length)
        if key not in ctx.ask.cells:
            ctx.ask.cells[key] = _compute_cells(ctx, node, operands, axes, run)
        return ctx.ask.cells[key]

    return at


def _compute_cells(ctx: Context, node: Node, operands: list[Operand], axes: tuple[int, int], run: Trace) -> Cells:
    if not traits(node.op).elementwise and not traits(node.op).keeps_cells:
        return cell.data()
    inputs = [_cells_of(ctx, o, run, axes) for o in operands]
    if node.op in ("Softmax", "LogSoftmax"):
        axis = node.attr("axis", -1) % len(ctx.ask.dims(node.outputs[0]))
        if axis not in axes:
            return inputs[0]
        full = tuple(run[node.outputs[0]].dims[a] for a in axes)
        given = inputs[0]
        spread = Cells(np.broadcast_to(given.live, full), np.broadcast_to(given.value, full), None, given.soft)
        return cell.softmax(spread, axes.index(axis))
    if not traits(node.op).elementwise:
        return inputs[0]

    def compute(values: list[Array]) -> Array:
        if not any(np.size(v) for v in values):
            return values[0]
        given = [known(v.astype(ctx.ask.dtype(o.name).numpy())) for v, o in zip(values, operands, strict=True)]
        placed = dict(zip([o.index for o in operands], given, strict=True))
        full = [placed.get(i) for i in range(len(node.inputs))]
        return np.asarray(ctx.ask.traces.tracer.evaluator.run(node, full)[0], np.float32)

    return cell.combine(node.op, inputs, compute)


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
        cells=_cells(ctx, node, operands, axes),
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
    if node.op == "Softmax":
        inputs[0] = _masked(ctx, node, operands[0], inputs[0], windows)
    return clone(ctx, node, inputs)


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
        return _template(ctx, node, o, windows)
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


def _template(ctx: Context, node: Node, o: Operand, windows: dict[int, Window]) -> ir.Value:
    """A known array over both axes, cut out at the windows; by phase, if pulses differ."""
    a, b = o.axes
    if any(windows[o.axes[x]].grows for x in (a, b)):
        return growing_template(ctx, node, o.name, {x: windows[o.axes[x]] for x in (a, b)})
    pair = (windows[o.axes[a]], windows[o.axes[b]])

    def array(run: Trace) -> Array:
        out: Array = run[o.name].array
        for i, s in enumerate(ctx.ask.sizes_static(o.name)):
            if s < 0:  # known values do not differ from stream to stream
                one = out[(slice(None),) * i + (slice(0, 1),)]
                if not np.array_equal(np.broadcast_to(one, out.shape), out):
                    ctx.ask.refuse(node, FOLDED_HEADS, 'fix the batch size: set={"B": 1}')
                out = one
        return out

    template = find(array(ctx.ask.traces.longest), (a, b), pair)
    if template is None:
        raise Unclear(
            f"'{o.name}' (a mask, a bias) does not move on with time in a regular way",
            node=node.name, op=node.op,
            hint="masks and biases must depend on the distance of two frames or on chunks; it helps if the pulse "
            "shares a factor with the chunk",
        )  # fmt: skip
    found = template
    prove(ctx.ask, node, f"'{o.name}' moving on with time", lambda run: found.fits(array(run)), **_windowed(ctx, found))
    if len(template.phases) == 1:
        return ctx.builder.constant(template.phases[0], o.name)
    return _by_phase(ctx, node, np.stack(template.phases), o.name)


def _windowed(ctx: Context, template: Template) -> dict[str, Any]:
    """What a template looks at, in frames of the stream: no pair further apart than its windows, phase by phase."""
    rows, cols = template.windows
    stream = ctx.pulse / rows.p, ctx.pulse / cols.p
    apart = max(abs(rows.end * stream[0] - cols.start * stream[1]), abs(cols.end * stream[1] - rows.start * stream[0]))
    start = max(-rows.start * stream[0], -cols.start * stream[1], rows.end * stream[0], cols.end * stream[1], 0)
    near = {"within": float(apart), "pair": float(apart), "start": float(start)}
    return {"near": near, "period": len(template.phases) * ctx.pulse}


def _by_phase(ctx: Context, node: Node, stack: Array, name: str) -> ir.Value:
    b, count = ctx.builder, len(stack)
    phase = ctx.clock.phase(count)
    table = b.constant(stack, name)
    if ctx.clock.batch is None:
        return b.op("Gather", table, b.reshape(phase, []), axis=0)
    rank, dims = len(ctx.ask.dims(node.outputs[0])), stack.shape[1:]
    full = (1,) * (rank - len(dims)) + dims
    if full[0] != 1 or ctx.ask.sizes_static(node.outputs[0])[0] != -1:
        ctx.ask.refuse(
            node, FOLDED_HEADS, 'fix the batch size: set={"B": 1}, or use a pulse that is a multiple of the chunk'
        )
    return b.reshape(b.op("Gather", table, b.reshape(phase, [-1]), axis=0), [-1, *full[1:]])


# ---- sums


def _sum(ctx: Context, node: Node, operands: list[Operand], summed: list[Operand]) -> None:
    """The sum over one of the two time axes: choose the windows, and emit everything the field is made of."""
    name = node.outputs[0]
    fields = [o for o in operands if len(o.axes) == 2]
    if len(fields) != 1 or len(summed) > 2 or node.op not in ("MatMul", "Einsum"):
        ctx.ask.refuse(
            node, "it sums over time where two fields of frames meet",
            "sum scores times values only, with a bounded mask on the scores",
        )  # fmt: skip
    field = fields[0]
    (col,) = (a for a, out in field.axes.items() if out == -1)
    (row,) = (a for a, out in field.axes.items() if out != -1)
    values = [o for o in summed if o is not field]
    if len(values) != 1 or not isinstance(values[0].fact, Wire):
        ctx.ask.refuse(node, "it sums over time", "sum scores times values only, with a bounded mask on the scores")
    value = values[0].fact
    sides = _field_sides(ctx, node, field)
    length = sides[row].length or value.length
    if length is None or value.length is None:
        ctx.ask.refuse(node, "it sums over time, and nothing says how fast rows and columns advance", "sum over data")
    if isinstance(field.fact, Field) and field.fact.cells(ctx.ask.traces.longest).soft:
        ctx.ask.refuse(
            node,
            "where the data hide every key of a row with a finite score, batch looks at the whole stream",
            "fill with -inf, or set the weights to zero behind the softmax",
        )
    p = ctx.frames(length.rate), ctx.frames(value.length.rate)
    ends = (_least(sides[row].end, length.latest_end(ctx.pulse)), _least(sides[col].end, value.end))
    try:
        view = choose_view(ctx, node, lambda run: _needed(ctx, field, run, row, col), p, ends, length)
    except NotStreamable as problem:
        raise ("ahead" in problem.reason and _by_data(ctx, field.name)) or problem from None
    if not view.cols.grows and view.whole:
        looks = _looks(ctx, field, row, col, view)
        reach = max(abs(view.offsets[0]), abs(view.offsets[1])) * ctx.pulse / view.rows.p
        near = {"start": float(ctx.pulse + reach), "pair": float(reach)}
        prove(ctx.ask, node, "how far attention looks", looks, near=near, period=ctx.pulse, hidden=True)
        _check_last_rows(
            ctx, node, _needed(ctx, field, ctx.ask.traces.longest, row, col), (length, value.length), looks
        )
    windows = {row: view.rows, col: view.cols}
    if view.cols.grows:
        grow(ctx, node, value, view, lambda run: _needed(ctx, field, run, row, col))
    given: dict[int, ir.Value | None] = {}
    for o in operands:
        if o is field:
            given[o.index] = _scores(
                ctx,
                node,
                field,
                windows,
                view.offsets if row < col else (-view.offsets[1], -view.offsets[0]),
                col,
                value,
            )
        elif o is values[0]:
            given[o.index] = bounded_wire(ctx, value).take(view.cols)
        else:
            given[o.index] = ctx.ask.operand(node, o.name)
    out = clone(ctx, node, [given.get(i) for i in range(len(node.inputs))])[0]
    ctx.emitted(name, node.name, out, ctx.ask.layout(node, name), length, view.rows)
    ctx.ask.cells.clear()  # they grow with the square of the length


def _by_data(ctx: Context, name: str) -> NotStreamable | None:
    """If a mask made of data alone is what should have bounded a sum: say so, at that mask."""
    todo, seen = [name], {name}
    while todo:
        node = ctx.ask.model.producers.get(todo.pop())
        if node is None:
            continue
        run = ctx.ask.traces.longest
        if node.op == "Where" and not run[node.inputs[0]].known:
            return NotStreamable(
                f"its mask '{node.inputs[0]}' depends on the data, so nothing bounds how far attention looks",
                node=node.name, op=node.op,
                hint="mask a window of positions as well (a chunk, so many frames back and ahead)",
            )  # fmt: skip
        fields = [i for i in node.inputs if i and i not in seen and len(ctx.ask.time_axes(i)) > 1 and not run[i].known]
        seen.update(fields)
        todo.extend(fields)
    return None


def _least(*ends: int | None) -> int:
    return min(e for e in ends if e is not None)


def _field_sides(ctx: Context, node: Node, o: Operand) -> dict[int, Side]:
    if isinstance(o.fact, Field):
        return {s.axis: s for s in o.fact.sides}
    return {a: Side(a, None, None) for a in o.axes}


def _needed(ctx: Context, o: Operand, run: Trace, row: int, col: int) -> Array:
    if isinstance(o.fact, Field):
        found = o.fact.cells(run)
        needed = (found if o.fact.sides[0].axis == row else found.turned).needed
    else:
        needed = cell.constants(run[o.name].array, (row, col)).needed
    dims = run[o.name].dims
    return np.broadcast_to(needed, (dims[row], dims[col]))


def _looks(ctx: Context, o: Operand, row: int, col: int, view: object) -> Callable[[Trace], bool]:
    from pulsify.convert.attention_view import View

    assert isinstance(view, View)
    p, rows, cols = view.rows.p, view.rows, view.cols

    def holds(run: Trace) -> bool:
        needed = _needed(ctx, o, run, row, col)
        i = np.flatnonzero(needed.any(1))
        first, last = needed[i].argmax(1), needed.shape[1] - 1 - needed[i, ::-1].argmax(1)
        earliest = np.maximum(-(-(i + 1 - rows.end) // p), 0)
        latest = (i - rows.start) // p
        return bool((first >= latest * cols.p + cols.start).all() and (last < earliest * cols.p + cols.end).all())

    return holds


def _check_last_rows(
    ctx: Context, node: Node, needed: Array, sides: tuple[Length, Length], looks: Callable[[Trace], bool]
) -> None:
    """Where keys end before rows do, the last rows of some lengths see no key at all: look there what batch does."""
    (rows, cols), unit = sides, ctx.ask.traces.tracer.time.step
    first = np.maximum.accumulate(np.where(needed.any(1), needed.argmax(1), 0))
    turn = math.lcm(rows.period, cols.period, ctx.pulse, unit)
    lengths = np.arange(unit, max(ctx.ask.traces.lengths[-1], rows.settled, cols.settled) + turn, unit)
    r, c = rows.each(lengths), cols.each(lengths)
    within = (r > 0) & (r <= len(first))
    blind = np.flatnonzero(within & (first[np.where(within, r, 1) - 1] >= c))
    kinds = {(int(r[i]), int(c[i])): int(lengths[i]) for i in blind}
    for s in sorted(kinds.values()):
        if ctx.ask.traces.tracer.works(s) and not looks(Looked(ctx.ask, s)):
            ctx.ask.refuse(
                node,
                f"the last rows of some streams (of {s} frames, say) see no key, and batch then looks at all of them",
                "fill with -inf, set such weights to zero behind the softmax, or let there be as many keys as rows",
            )


def _scores(
    ctx: Context, node: Node, o: Operand, windows: dict[int, Window], offsets: Offsets, col: int, value: Wire
) -> ir.Value:
    """The field at the windows, with columns outside the stream at zero."""
    if isinstance(o.fact, Field):
        first, second = (windows[s.axis] for s in o.fact.sides)
        x = o.fact.take((first, second), offsets)
        if col in o.fact.bounded:
            return x
    else:
        x = _template(ctx, node, Operand(o.index, o.name, None, {a: a for a in windows}), windows)
    if windows[col].grows:
        shown = horizon(ctx, node, windows, col, value.length, len(ctx.ask.dims(o.name)))
        zero = ctx.builder.constant(np.array(0, ctx.ask.dtype(o.name).numpy()), "zero")
        return ctx.builder.op("Where", shown, x, zero)
    valid = real_frames(ctx, windows[col], value.length, starts=True)
    sizes = tuple(0 if i == col else s for i, s in enumerate(ctx.ask.sizes_static(o.name)))
    zero = ctx.builder.constant(np.array(0, ctx.ask.dtype(o.name).numpy()), "zero")
    return ctx.builder.op("Where", along(ctx, valid, Layout(sizes, col), windows[col].frames), x, zero)


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
