"""The sum over one of a field's two time axes (weights times values): windows are chosen, and the field is emitted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.convert import mask_cells as cell
from pulsify.convert.attention_view import View, choose_view
from pulsify.convert.context import Context
from pulsify.convert.facts import Field, Layout, Offsets, Side, Window, Wire
from pulsify.convert.mask_cells import Cells
from pulsify.convert.primitives.boundary import along, bounded_wire, real_frames
from pulsify.convert.proof.claims import prove
from pulsify.convert.proof.numbers import Looked
from pulsify.convert.rules.field_operand import Operand, parts
from pulsify.convert.rules.field_template import field_template
from pulsify.convert.rules.growing import grow, horizon
from pulsify.convert.rules.pointwise import clone
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.roles import VALUES, mark
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Array, Trace

REPEATS, FAR = 4, 1 << 18  # periods of the length at whose ends rows are looked at, if one is no longer than so many
MOST_CELLS = 400_000_000  # looked at there, in all


def field_sum(ctx: Context, node: Node, operands: list[Operand], summed: list[Operand]) -> None:
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
    p = ctx.frames(length.rate), ctx.frames(value.length.rate)
    ends = (_least(sides[row].end, length.latest_end(ctx.pulse)), _least(sides[col].end, value.end))

    def needed(run: Trace) -> Array:
        return _needed(ctx, node, field, run, row, col)

    try:
        view = choose_view(ctx, node, needed, p, ends, length)
    except NotStreamable as problem:
        raise ("ahead" in problem.reason and _by_data(ctx, field.name)) or problem from None
    if not view.cols.grows and view.whole:
        sight = Sight(needed, view, float(value.length.rate / length.rate))
        reach = max(abs(view.offsets[0]), abs(view.offsets[1])) * ctx.pulse / view.rows.p
        near = {"start": float(ctx.pulse + reach), "pair": float(reach)}
        prove(ctx.ask, node, "how far attention looks", sight.holds, near=near, period=ctx.pulse, hidden=True)
        _check_last_rows(ctx, node, (length, value.length), sight)
    windows = {row: view.rows, col: view.cols}
    if view.cols.grows:
        grow(ctx, node, value, view, needed)
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
    out = mark(clone(ctx, node, [given.get(i) for i in range(len(node.inputs))])[0], VALUES)
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


def _cells(ctx: Context, node: Node, o: Operand, run: Trace, row: int, col: int) -> Cells:
    """The field's cells, rows first."""
    fact = o.fact
    if not isinstance(fact, Field) and not run[o.name].known:  # it never repeats: what it is made of may tell
        fact = parts(ctx, node, o.name)
    if not isinstance(fact, Field):
        return cell.constants(run[o.name].array, (row, col))
    found = fact.cells(run)
    return found if fact.sides[0].axis == row else found.turned


def _needed(ctx: Context, node: Node, o: Operand, run: Trace, row: int, col: int) -> Array:
    """The cells that a row looks at; refused where data decide that, or what other rows there are."""
    found = _cells(ctx, node, o, run, row, col)
    if found.soft:
        ctx.ask.refuse(
            node,
            "where the data hide every key of a row with a finite score, batch looks at the whole stream",
            "fill with -inf, or set the weights to zero behind the softmax",
        )
    if found.across is not None:
        ctx.ask.refuse(
            node,
            f"'{o.name}' was normalised along the other time axis than the one it is summed over: over all rows",
            "sum over the axis that the softmax goes along",
        )
    if math.isfinite(found.margin):
        ctx.ask.ledger.assume(o.name, found.margin)
    dims = run[o.name].dims
    return np.broadcast_to(found.needed, (dims[row], dims[col]))


@dataclass(eq=False)
class Sight:
    """Do rows look at no more than their view shows? slack: by how much the first column that any row looks at lies
    before the column that comes with that row (`pace` columns come with every row), at the least."""

    looked: Callable[[Trace], Array]
    view: View
    pace: float
    slack: float = math.inf

    def holds(self, run: Trace) -> bool:
        p, rows, cols = self.view.rows.p, self.view.rows, self.view.cols
        needed = self.looked(run)
        i = np.flatnonzero(needed.any(1))
        first, last = needed[i].argmax(1), needed.shape[1] - 1 - needed[i, ::-1].argmax(1)
        earliest = np.maximum(-(-(i + 1 - rows.end) // p), 0)
        latest = (i - rows.start) // p
        self.slack = min(self.slack, float((i * self.pace - first).min(initial=math.inf)))
        return bool((first >= latest * cols.p + cols.start).all() and (last < earliest * cols.p + cols.end).all())


def _check_last_rows(ctx: Context, node: Node, sides: tuple[Length, Length], sight: Sight) -> None:
    """Where keys end before rows do, the last rows of some lengths see no key at all: look there what batch does."""
    (rows, cols), unit = sides, ctx.ask.traces.tracer.time.step
    turn = math.lcm(rows.period, cols.period, ctx.pulse, unit)
    settled = max(ctx.ask.traces.lengths[-1], rows.settled, cols.settled)
    lengths = np.arange(unit, settled + turn * (REPEATS if turn < FAR else 1), unit)
    r, c = rows.each(lengths), cols.each(lengths)
    blind = np.flatnonzero((r > 0) & ((r - 1) * sight.pace - sight.slack >= c))
    kinds: dict[tuple[float, int], list[int]] = {}  # by what is missing, and where in a pulse the last row lies
    traced = int(np.searchsorted(lengths, ctx.ask.traces.lengths[-1] + turn)) if turn < FAR else 0
    for i in (int(n) for n in blind if n >= traced):
        kinds.setdefault((float(r[i] * sight.pace - c[i]), int(r[i]) % sight.view.rows.p), []).append(i)
    chosen = [*(int(n) for n in blind if n < traced), *sorted(i for found in kinds.values() for i in found[:2])]
    for s, cells in zip(lengths[chosen], (r * c)[chosen].cumsum(), strict=True):
        if not ctx.ask.traces.tracer.works(int(s)):
            continue
        if cells > MOST_CELLS or not sight.holds(Looked(ctx.ask, int(s))):
            ctx.ask.refuse(node, *_blind(int(s)))


def _blind(s: int) -> tuple[str, str]:
    """Reason and hint."""
    return (
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
        x = field_template(ctx, node, Operand(o.index, o.name, None, {a: a for a in windows}), windows)
    if windows[col].grows:
        shown = horizon(ctx, node, windows, col, value.length, len(ctx.ask.dims(o.name)))
        zero = ctx.builder.constant(np.array(0, ctx.ask.dtype(o.name).numpy()), "zero")
        return ctx.builder.op("Where", shown, x, zero)
    valid = real_frames(ctx, windows[col], value.length, starts=True)
    sizes = tuple(0 if i == col else s for i, s in enumerate(ctx.ask.sizes_static(o.name)))
    zero = ctx.builder.constant(np.array(0, ctx.ask.dtype(o.name).numpy()), "zero")
    return ctx.builder.op("Where", along(ctx, valid, Layout(sizes, col), windows[col].frames), x, zero)
