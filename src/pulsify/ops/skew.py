"""The relative shift, in all its forms: moves are run on an iota, and the map they perform is read off.

A table of relative positions r is multiplied with the queries, raw[i, r], and then pads, reshapes and slices skew it:
out[i, j] = raw[i, f(i, j)]. With windows, j - i spans a fixed range, so only those rows of the table are needed:

    table     g(-5) ... g(0) g(1)             the rows of the table by offset j - i
    raw       row u x offset m                scores by offset
    out       [u, v] = raw[u, v - u + R - 1]  skewed at window size
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Field, Offsets, Tabled, Window, Windows, deferred, never
from pulsify.analysis.fields.shift import Moves, everywhere, rows_shown
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.questions import Unclear
from pulsify.core.refusal import Kind
from pulsify.core.roles import SHIFTED, mark
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.ops.field_template import folded_streams
from pulsify.ops.offsets import by_offset
from pulsify.plan.context import Context
from pulsify.plan.known_facts import constant_value
from pulsify.trace.traced import Array

LOOKED = 24  # frames back at which offsets are looked at, of a past that grows


def skewed(
    ctx: Context, node: Node, origin: Field, moves: Moves, axes: tuple[int, int], windows: Windows, offsets: Offsets
) -> Deferred:
    """A window of the moved field, whose rows and columns are `axes`."""
    row, col = (side.axis for side in origin.sides)
    if origin.product is None or windows[0].p != windows[1].p or col != row + 1 or axes != (row, col):
        ctx.ask.refuse(
            node,
            "attention scores are moved about in a way that is no relative-position shift",
            "use the usual relative-position shift",
            kind=Kind.ATTENTION,
        )
    assert origin.raw is not None
    name = origin.product[0].inputs[origin.product[1]]
    rows, cols = windows
    if ctx.ask.left_open():
        return origin.raw(Tabled(never(), rows, rows.frames + cols.frames - 1))
    if cols.grows:
        return _grown(ctx, node, origin, moves, windows, offsets[1])
    first = cols.start - rows.start - (rows.frames - 1)
    count = rows.frames + cols.frames - 1
    table = _by_offset(ctx, node, origin, moves, (first, count), offsets)
    folded = folded_streams(ctx, name)
    if folded is not None:
        table = folded.once(ctx, node, table)
    value = constant_value(ctx, name, table)
    if folded is not None:
        value = folded.spread(ctx, value, table.shape, merged=traits(origin.product[0].op).axes == "einsum")
    raw = origin.raw(Tabled(value, rows, count))
    return deferred(lambda: _skew(ctx, raw.value, origin.sizes, row, rows.frames, cols.frames), raw)


def _grown(ctx: Context, node: Node, origin: Field, moves: Moves, windows: Windows, ahead: int) -> Deferred:
    """As many columns as there are by now: the table is made for their offsets. ahead: the largest that is seen."""
    assert origin.product is not None and origin.raw is not None
    if min(origin.sizes[origin.sides[1].axis + 1 :], default=1) < 0:
        ctx.ask.refuse(
            node,
            "all of the past is kept, and it is not laid out for that (batch first)",
            "put the batch first",
            kind=Kind.LOOK_BACK,
        )
    rows, cols = windows
    name = origin.product[0].inputs[origin.product[1]]
    shown = rows_shown(ctx.ask, node, origin, moves, (-LOOKED, ahead))
    everywhere(ctx.ask, node, origin, moves, (-LOOKED, ahead), shown.places)
    offsets = Deferred(lambda: _offsets(ctx, rows, cols))
    raw = origin.raw(Tabled(by_offset(ctx, node, name, shown, LOOKED, offsets), rows, -1))
    return deferred(lambda: _skew_grown(ctx, raw.value, origin, rows.frames), raw)


def _offsets(ctx: Context, rows: Window, cols: Window) -> ir.Value:
    """Of all columns there are by now to the rows of a pulse, int64 [n]."""
    b = ctx.builder
    count = b.op("Add", ctx.clock.grown[cols], b.ints(rows.frames - 1))
    up = b.op("Range", *(b.reshape(v, []) for v in (b.ints(0), count, b.ints(1))))
    return b.op("Add", b.op("Sub", up, count), b.ints(cols.end - rows.start))


def _skew_grown(ctx: Context, raw: ir.Value, origin: Field, rows: int) -> ir.Value:
    if rows == 1:
        return raw
    b, axis = ctx.builder, origin.sides[0].axis
    lead, rest = [0] * axis, list(origin.sizes[axis + 2 :])
    flat = b.reshape(raw, [*lead, -1, *rest])
    back = b.reshape(b.slice(flat, axis, rows - 1, -1), [*lead, rows, -1, *rest])
    return mark(back if rows == 2 else b.slice(back, axis + 1, 0, 2 - rows), SHIFTED)


def _skew(ctx: Context, raw: ir.Value, sizes: tuple[int, ...], axis: int, rows: int, cols: int) -> ir.Value:
    """out[u, v] = raw[u, v - u + rows - 1] on two neighbouring axes."""
    if rows == 1:
        return raw
    b, n = ctx.builder, rows + cols - 1
    lead, rest = ([-1 if s < 0 else s for s in part] for part in (sizes[:axis], sizes[axis + 2 :]))
    flat = b.reshape(raw, [*lead, rows * n, *rest])
    cut = b.slice(flat, axis, rows - 1, rows - 1 + rows * (n - 1))
    back = b.reshape(cut, [*lead, rows, n - 1, *rest])
    return mark(back if n - 1 == cols else b.slice(back, axis + 1, 0, cols), SHIFTED)


def _by_offset(
    ctx: Context, node: Node, origin: Field, moves: Moves, wanted: tuple[int, int], offsets: Offsets
) -> Array:
    """The table's rows for offsets wanted[0] ... + wanted[1]; those outside `offsets` are masked: anything will do."""
    assert origin.product is not None
    product, at = origin.product
    name = product.inputs[at]
    axis = ctx.ask.time_axes(name)[0]
    lo, hi = max(offsets[0], wanted[0]), min(offsets[1], wanted[0] + wanted[1] - 1)
    rows: dict[int, Array] = {}  # by offset
    shown = rows_shown(ctx.ask, node, origin, moves, (lo, hi))
    for s, places in sorted(shown.places.items(), key=lambda item: -len(item[1])):
        if len(rows) == hi - lo + 1:
            break  # they are the same at every length
        table = known_at(ctx.ask, name, s).array if places else np.zeros(0)
        rows = {offset: np.asarray(table.take(place, axis)) for offset, place in places.items()} | rows
    if len(rows) < hi - lo + 1:
        raise Unclear(
            "its relative positions reach further than was looked",
            node=node.name,
            op=node.op,
            hint="",
            kind=Kind.ATTENTION,
        )
    zero = np.zeros_like(rows[lo])
    return np.stack([rows.get(wanted[0] + n, zero) for n in range(wanted[1])], axis)
