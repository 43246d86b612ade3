"""The sum over one of a field's two time axes (weights times values): windows are chosen, and the field is emitted."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Wire, deferred, emitted
from pulsify.analysis.fields.alike import field_alike
from pulsify.analysis.fields.operand import Operand
from pulsify.analysis.proof.numbers import in_frames, require_as_many, same_series, sizes
from pulsify.core.refusal import Kind
from pulsify.core.roles import VALUES, mark
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.ops.field_template import field_template
from pulsify.ops.field_view import Over, certain, over, read_by_field, seen_rows, shown, trail_of, view_of
from pulsify.ops.first_columns import with_first
from pulsify.ops.growing import all_of
from pulsify.ops.pointwise import clone
from pulsify.plan.boundary import bounded_wire
from pulsify.plan.context import Context, Step

HINT = "sum scores times values only, with a bounded mask on the scores"


def field_sum(ctx: Context, node: Node, operands: list[Operand], summed: list[Operand]) -> None:
    """The sum over one of the two time axes: choose the windows, and emit everything the field is made of.

    What the weights are multiplied with has a frame a column, or is known for every row and column (Shaw's values).
    """
    tables = [o for o in summed if len(o.axes) == 2 and o.fact is None] if len(operands) == 2 else []
    fields = [o for o in operands if len(o.axes) == 2 and o not in tables]
    if len(fields) != 1 or len(summed) > 2 or not traits(node.op, node.domain).multiplies:
        ctx.ask.refuse(
            node, "it sums over time where two matrices of frame against frame meet", HINT, kind=Kind.ATTENTION
        )
    field = fields[0]
    values = [o for o in summed if o is not field and o not in tables]
    if (len(values) != 1 or not isinstance(values[0].fact, Wire)) and not tables:
        ctx.ask.refuse(node, "it sums over time", HINT, kind=Kind.ATTENTION)
    value = values[0].fact if values and isinstance(values[0].fact, Wire) else None
    along = over(ctx, node, field, value)
    for table in tables:
        _check_table(ctx, node, along, table)
    seen = seen_rows(ctx, node, along, lambda found, start: certain(ctx, node, along, found).needed)
    view = view_of(ctx, node, along, seen, alike=field_alike(ctx.ask, field.name))
    given: dict[int, Deferred | None] = {}
    for o in operands:
        if o is field:
            given[o.index] = shown(ctx, node, along, view, 0)
        elif o in tables:
            windows = {-1: view.cols, field.axes[along.row]: view.rows}
            given[o.index] = field_template(ctx, node, o, windows)
        elif o in values and value is not None:
            kept = all_of(ctx, value, view.cols) if view.cols.grows else value
            given[o.index] = with_first(ctx, node, bounded_wire(ctx, kept), view.cols)
        else:
            given[o.index] = ctx.ask.operand(node, o.name)
    name = node.outputs[0]

    def make() -> ir.Value:
        return mark(clone(ctx, node, [emitted(given.get(i)) for i in range(len(node.inputs))])[0], VALUES)

    out = deferred(make, *given.values())
    ctx.trails[name] = trail_of(ctx, along, view, seen, () if value is None else (value.name,))
    stored = ctx.file_wire(name, node.name, out, ctx.ask.layout(node, name), along.rows, view.rows)
    ctx.add(Step(node.name, view.rows, (out,), (stored,), (name,), read_by_field(out)))
    ctx.ask.cells.clear()  # they grow with the square of the length


def _check_table(ctx: Context, node: Node, along: Over, table: Operand) -> None:
    """It has the rows and columns of the weights, and as many: where it has not, batch fails, as does the stream."""
    if not np.isfinite(ctx.ask.traces.longest[table.name].array).all():  # 0 * inf, where the stream has no frame
        ctx.ask.refuse(node, "it sums a table that is not finite at some frames", HINT, kind=Kind.ATTENTION)
    row = along.field.axes[along.row]
    if set(table.axes.values()) != {-1, row}:
        ctx.ask.refuse(node, "it sums over time, with a table of other rows", HINT, kind=Kind.ATTENTION)
    own = sizes(ctx.ask, node, table.name)
    for axis, to in table.axes.items():
        length = along.rows if to == row else along.cols
        if not same_series(own[axis], in_frames(ctx.ask, length)):
            require_as_many(ctx.ask, node, length, own[axis])
