"""Reductions along the columns of a field: sums, norms, the largest cell of a row and where it is, the best of several.

Columns outside the stream count for nothing. Inside, all live cells are looked at, and of constant ones those that
may decide: a sum needs all that are not zero, a maximum as many as it gives out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from pulsify.analysis import mask_cells as cell
from pulsify.analysis.axes import reduced_axes
from pulsify.analysis.facts import Deferred, Field, Window, deferred_all, emitted
from pulsify.analysis.fields.operand import Operand
from pulsify.analysis.mask_cells import Cells
from pulsify.analysis.proof.claims import fixed_value
from pulsify.core.facet import Facet
from pulsify.core.refusal import Kind
from pulsify.emit.carry import per_stream
from pulsify.frontend.model import Node
from pulsify.ops.field_view import Over, certain, over, read_by_field, seen_rows, shown, trail_of, view_of
from pulsify.ops.fold import neutral
from pulsify.ops.pointwise import clone
from pulsify.plan.attention_view import View
from pulsify.plan.context import Context, Step
from pulsify.trace.traced import Array


@dataclass(frozen=True)
class RowReduction:
    """What is made of the cells of a row. best: as many of the largest (or smallest) as are asked for, in order."""

    of: Literal["sum", "mean", "product", "exponentials", "largest", "smallest", "best"]
    gives_places: bool = False

    @property
    def of_all(self) -> bool:
        """Does every cell count, and not only some?"""
        return self.of in ("sum", "product", "exponentials")


ROW_REDUCTIONS = Facet[RowReduction]("row reductions", "what it makes of a row of attention scores")


def _law(node: Node) -> RowReduction:
    law = ROW_REDUCTIONS.of(node)
    assert law is not None
    return law


def field_reduce(ctx: Context, node: Node, field: Operand) -> None:
    """A reduction over one of the two time axes: choose the windows, and emit everything the field is made of."""
    law = _law(node)
    if law.of == "mean":
        ctx.ask.refuse(
            node,
            "it divides by the number of all columns, which is the length of the stream: known only at its end",
            "divide the sum of the columns that a row sees by how many these are",
            kind=Kind.ATTENTION,
        )
    along = over(ctx, node, field)
    count = _count(ctx, node)

    def looked(found: Cells, start: int) -> Array:
        if found.live.shape[1] < count:
            return np.zeros((1, 1), bool)
        return _looked(ctx, node, along, found, count, start)

    seen = seen_rows(ctx, node, along, looked)
    view = view_of(ctx, node, along, seen, ends=not law.of_all)
    if view.cols.first and (law.of == "best" or law.gives_places):
        ctx.ask.refuse(
            node,
            "it takes places, or the best of a row, which looks back to the first frames of the stream",
            "bound the look-back in the mask",
            kind=Kind.LOOK_BACK,
        )
    if law.of == "best":  # batch gives an error
        ctx.ask.ledger.require(node.name, along.cols, at_least=count)
        if not view.cols.grows:
            start = min(view.cols.start, view.cols.end - count)
            view = replace(view, cols=Window(view.cols.p, start, view.cols.end))
        elif count > 1:
            ctx.ask.refuse(
                node,
                "it takes the best of a past that grows, and of fewer at its start",
                "bound the mask",
                kind=Kind.LOOK_BACK,
            )
    if law.of == "exponentials":  # ONNX Runtime takes 0 for the largest where the first number is -inf
        ctx.ask.ledger.taken[f"every row has a score above -87: '{node.name}'"] = None
    x = shown(ctx, node, along, view, _fill(ctx, node))
    beside = [ctx.ask.operand(node, n) for n in node.inputs[1:]]
    made = deferred_all(lambda: _made(ctx, node, view, x.value, beside), len(node.outputs), x, *beside)
    stored = []
    for name, value in zip(node.outputs, made, strict=True):
        if name:
            ctx.trails[name] = trail_of(ctx, along, view, seen)
            stored.append(ctx.file_wire(name, node.name, value, ctx.ask.layout(node, name), along.rows, view.rows))
    outputs = tuple(s.name for s in stored)
    ctx.add(Step(node.name, view.rows, tuple(s.value for s in stored), tuple(stored), outputs, read_by_field(x)))
    ctx.ask.cells.clear()  # they grow with the square of the length


def _count(ctx: Context, node: Node) -> int:
    """How many columns of a row are given out."""
    return int(fixed_value(ctx.ask, node, node.inputs[1], "number").reshape(-1)[0]) if _law(node).of == "best" else 1


def _least(node: Node) -> bool:
    of = _law(node).of
    return of == "smallest" or (of == "best" and not node.attr("largest", 1))


def _fill(ctx: Context, node: Node) -> float:
    """What counts for nothing."""
    of = _law(node).of
    if of == "sum":
        return 0
    if of == "product":
        return 1
    return neutral("Min" if _least(node) else "Max", ctx.ask.dtype(node.inputs[0]))


# ---- what is looked at
def _looked(ctx: Context, node: Node, along: Over, found: Cells, count: int, start: int) -> Array:
    of = _law(node).of
    if of == "sum":
        _check_sum(ctx, node, along, found)
        return certain(ctx, node, along, found).needed
    if of == "product":
        one = certain(ctx, node, along, found)
        return one.live | (one.value != 1) | (one.weighed is not None and one.weighed)
    if _least(node):
        found = cell.combine("Neg", [replace(found, above=-math.inf)], lambda v: -v[0])
    if count > 1:  # that is known of the largest alone
        found = replace(found, above=-math.inf)
    _check_constants(ctx, node, found)
    decided = certain(ctx, node, along, cell.softmax(found, 1))  # what is too low for a softmax is never the largest
    if of == "exponentials":
        return decided.needed
    looked: Array = decided.live & found.live
    if found.weighed is not None:
        looked = looked | found.weighed
    if _gives_places(ctx, node):
        _check_places(ctx, node, found, decided, count)
        return looked
    return looked | _constants(found, decided, count, start)


def _check_constants(ctx: Context, node: Node, found: Cells) -> None:
    """Constants of no use to a window: what the whole stream was normalised by, and what is beyond all data."""
    masked = ~found.live
    if found.weighed is not None and (masked & (found.value != 0) & ~found.weighed.any(1, keepdims=True)).any():
        ctx.ask.refuse(
            node,
            "rows that see no frame are normalised over all frames of the stream, and follow from its length",
            "set such weights to zero behind the softmax, or let every row see itself",
            kind=Kind.ATTENTION,
        )
    if found.weighed is not None and found.hiders and not found.soft:
        ctx.ask.refuse(
            node,
            "where the data hide every key of a row its weights are not a number, which only sums show for sure",
            "set such weights to zero behind the softmax, or let every row see itself",
            kind=Kind.ATTENTION,
        )
    if (masked & ~(found.value < math.inf)).any() or np.isposinf(found.value).any():
        ctx.ask.refuse(
            node,
            "masked frames are infinite or not a number, and so what batch gives out",
            "fill with what is never given out: -inf for the largest, inf for the smallest",
            kind=Kind.ATTENTION,
        )


def _check_sum(ctx: Context, node: Node, along: Over, found: Cells) -> None:
    """A row that is not a number has a frame to show it only if no frame is left out."""
    fact = along.field.fact
    if isinstance(fact, Field) and along.col in fact.bounded:
        return
    if (~found.live & np.isnan(found.value)).any():
        ctx.ask.refuse(
            node,
            "rows that see no frame are not a number, and at the ends of the stream no frame of theirs says so",
            "set such weights to zero behind the softmax, or let every row see itself",
            kind=Kind.ATTENTION,
        )


def _gives_places(ctx: Context, node: Node) -> bool:
    law = _law(node)
    if law.gives_places:
        return True
    read = {i for n in ctx.ask.model.nodes for i in n.reads} | {*ctx.ask.model.outputs}
    return law.of == "best" and len(node.outputs) > 1 and node.outputs[1] in read


def _check_places(ctx: Context, node: Node, found: Cells, decided: Cells, count: int) -> None:
    """Of equal cells batch takes the first: where masked ones are among the best, that is the first of the stream."""
    best = found.live & decided.live
    if found.hidden is not None:
        best = best & ~found.hidden
    others = decided.live & ~found.live & ~(found.value <= found.above)
    if others.any() or (best.sum(1) < count).any():
        some = "no frame" if count == 1 else f"fewer than {count} frames"
        ctx.ask.refuse(
            node,
            f"where a row sees {some} for sure, batch points to one that is masked: the first of the stream",
            "use the values and not their places, or let every row see enough frames, and fill with -inf",
            kind=Kind.ATTENTION,
        )


def _constants(found: Cells, decided: Cells, count: int, start: int) -> Array:
    """Of constant cells that are given out, or may be, those nearest to what a row looks at: the past first."""
    live = found.live & decided.live
    some = live.any(1, keepdims=True)
    first = np.where(some, live.argmax(1)[:, None], start + np.arange(len(live))[:, None])
    value = np.where(found.live, -np.inf, found.value)
    with np.errstate(invalid="ignore"):
        value[np.isnan(value) | (some & (found.value <= found.above))] = -np.inf
    wanted = np.where((decided.live & ~found.live & np.isfinite(value)).any(1), count, count - live.sum(1))
    shown: Array = np.zeros(live.shape, bool)
    rows = np.flatnonzero((wanted > 0) & np.isfinite(value).any(1))
    at = np.arange(live.shape[1])[None]
    for n in range(0, len(rows), 1024):
        r = rows[n : n + 1024]
        far = np.where(at < first[r], first[r] - at, live.shape[1] + at)
        order = np.lexsort((far, -value[r]), axis=1)[:, : int(wanted[r].max())]
        kept = (np.arange(order.shape[1])[None] < wanted[r][:, None]) & np.isfinite(
            np.take_along_axis(value[r], order, 1)
        )
        shown[np.repeat(r, kept.sum(1)), order[kept]] = True
    return shown


# ---- what is emitted
def _made(ctx: Context, node: Node, view: View, x: ir.Value, beside: Sequence[Deferred | None]) -> Sequence[ir.Value]:
    law = _law(node)
    if not law.gives_places and law.of != "best":
        return clone(ctx, node, [x, *map(emitted, beside)])
    if law.of == "best":
        inputs = [x, *map(emitted, beside)]
        values, places = ctx.builder.ops("TopK", inputs, node.attrs, outputs=2, name=node.name)
        return (values, _moved(ctx, node, view, places))[: len(node.outputs)]
    (place,) = ctx.builder.ops(node.op, [x], {**node.attrs, "keepdims": 1}, name=node.name)
    place = _moved(ctx, node, view, place)
    if node.attr("keepdims", 1):
        return (place,)
    return (ctx.builder.op("Squeeze", place, ctx.builder.ints(*reduced_axes(ctx.ask, node))),)


def _moved(ctx: Context, node: Node, view: View, place: ir.Value) -> ir.Value:
    """Places in the window as places in the stream."""
    if not _gives_places(ctx, node):
        return place
    b, cols = ctx.builder, view.cols
    if cols.grows:
        first = b.slice(ctx.clock.positions(cols), 1, 0, 1)
    else:
        first = ctx.clock.positions(Window(cols.p, cols.start, cols.start + 1))
    sizes = ctx.ask.sizes_static(node.inputs[0])
    return b.op("Add", place, per_stream(ctx, b.op("Cast", first, to=int(ir.DataType.INT64)), sizes))
