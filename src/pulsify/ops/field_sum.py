"""The sum over one of a field's two time axes (weights times values): windows are chosen, and the field is emitted."""

from __future__ import annotations

import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Wire, deferred, emitted
from pulsify.analysis.fields.alike import field_alike
from pulsify.analysis.fields.operand import Operand
from pulsify.core.refusal import Kind
from pulsify.core.roles import VALUES, mark
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.ops.field_view import certain, over, read_by_field, seen_rows, shown, trail_of, view_of
from pulsify.ops.growing import all_of
from pulsify.ops.pointwise import clone
from pulsify.plan.boundary import bounded_wire
from pulsify.plan.context import Context, Step

HINT = "sum scores times values only, with a bounded mask on the scores"


def field_sum(ctx: Context, node: Node, operands: list[Operand], summed: list[Operand]) -> None:
    """The sum over one of the two time axes: choose the windows, and emit everything the field is made of."""
    fields = [o for o in operands if len(o.axes) == 2]
    if len(fields) != 1 or len(summed) > 2 or not traits(node.op, node.domain).multiplies:
        ctx.ask.refuse(
            node, "it sums over time where two matrices of frame against frame meet", HINT, kind=Kind.ATTENTION
        )
    field = fields[0]
    values = [o for o in summed if o is not field]
    if len(values) != 1 or not isinstance(values[0].fact, Wire):
        ctx.ask.refuse(node, "it sums over time", HINT, kind=Kind.ATTENTION)
    value = values[0].fact
    along = over(ctx, node, field, value)
    seen = seen_rows(ctx, node, along, lambda found, start: certain(ctx, node, along, found).needed)
    view = view_of(ctx, node, along, seen, alike=field_alike(ctx.ask, field.name))
    given: dict[int, Deferred | None] = {}
    for o in operands:
        if o is field:
            given[o.index] = shown(ctx, node, along, view, 0)
        elif o is values[0]:
            kept = all_of(ctx, value, view.cols) if view.cols.grows else value
            given[o.index] = bounded_wire(ctx, kept).take(view.cols)
        else:
            given[o.index] = ctx.ask.operand(node, o.name)
    name = node.outputs[0]

    def make() -> ir.Value:
        return mark(clone(ctx, node, [emitted(given.get(i)) for i in range(len(node.inputs))])[0], VALUES)

    out = deferred(make, *given.values())
    ctx.trails[name] = trail_of(ctx, along, view, seen, (value.name,))
    stored = ctx.file_wire(name, node.name, out, ctx.ask.layout(node, name), along.rows, view.rows)
    ctx.add(Step(node.name, view.rows, (out,), (stored,), (name,), read_by_field(out)))
    ctx.ask.cells.clear()  # they grow with the square of the length
