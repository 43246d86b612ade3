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

from pulsify.analysis.facts import Field, Offsets, Windows, Wire
from pulsify.emit.context import Context, Unclear
from pulsify.frontend.model import Node
from pulsify.rules.pointwise import clone
from pulsify.trace.evaluate import Array, CannotRun, Trace, known

MOST_CELLS = 8_000_000
Moves = tuple[tuple[Node, int], ...]


def skewed(
    ctx: Context, node: Node, origin: Field, moves: Moves, axes: tuple[int, int], windows: Windows, offsets: Offsets
) -> ir.Value:
    """A window of the moved field, whose rows and columns are `axes`."""
    if windows[0].grows or windows[1].grows:
        ctx.refuse(
            node,
            "relative positions are looked up in a table, and the past is unbounded",
            "bound the look-back in the mask",
        )
    row, col = (side.axis for side in origin.sides)
    if origin.product is None or windows[0].p != windows[1].p or col != row + 1 or axes != (row, col):
        ctx.refuse(
            node, "cells are moved about in a way that is no relative shift", "use the usual relative-position shift"
        )
    product, at = origin.product
    rows, cols = windows
    first = cols.start - rows.start - (rows.frames - 1)
    count = rows.frames + cols.frames - 1
    table = _by_offset(ctx, node, origin, moves, (first, count), offsets)
    data = 1 - at
    wire = ctx.wire(product.inputs[data])
    assert isinstance(wire, Wire)
    inputs: list[ir.Value | None] = [None, None]
    inputs[data], inputs[at] = wire.take(rows), ctx.builder.constant(table, product.inputs[at])
    raw = clone(ctx, product, inputs)[0]
    return _skew(ctx, raw, origin.sizes, row, rows.frames, cols.frames)


def _skew(ctx: Context, raw: ir.Value, sizes: tuple[int, ...], axis: int, rows: int, cols: int) -> ir.Value:
    """out[u, v] = raw[u, v - u + rows - 1] on two neighbouring axes."""
    if rows == 1:
        return raw
    b, n = ctx.builder, rows + cols - 1
    lead, rest = ([-1 if s < 0 else s for s in part] for part in (sizes[:axis], sizes[axis + 2 :]))
    flat = b.reshape(raw, [*lead, rows * n, *rest])
    cut = b.slice(flat, axis, rows - 1, rows - 1 + rows * (n - 1))
    back = b.reshape(cut, [*lead, rows, n - 1, *rest])
    return back if n - 1 == cols else b.slice(back, axis + 1, 0, cols)


def _by_offset(
    ctx: Context, node: Node, origin: Field, moves: Moves, wanted: tuple[int, int], offsets: Offsets
) -> Array:
    """The table's rows for offsets wanted[0] ... + wanted[1]; those outside `offsets` are masked: anything will do."""
    assert origin.product is not None
    product, at = origin.product
    name = product.inputs[at]
    axis = ctx.time_axes(name)[0]
    lo, hi = max(offsets[0], wanted[0]), min(offsets[1], wanted[0] + wanted[1] - 1)
    tables = []
    for run in ctx.traces.runs:
        if np.prod(run[origin.name].dims) > MOST_CELLS:
            continue
        try:
            places = _places(ctx, node, origin, moves, run, lo, hi)
        except CannotRun:  # the model's table ends before
            continue
        tables.append(np.take(run[name].array, places, axis=axis))
    if len(tables) < 2:
        raise Unclear(
            "its relative positions are too many to follow", node=node.name, op=node.op, hint="shorten the mask"
        )
    if not all(np.allclose(t, tables[0], rtol=1e-5, atol=1e-6) for t in tables):
        ctx.refuse(node, "its relative positions depend on the length of the stream", "index them by the offset j - i")
    shape = list(tables[-1].shape)
    shape[axis] = wanted[1]
    out = np.zeros(shape, tables[-1].dtype)
    out[(slice(None),) * axis + (slice(lo - wanted[0], hi - wanted[0] + 1),)] = tables[-1]
    return out


def _joined(move: Node, index: int, at: int) -> bool:
    return move.op == "Concat" and index != at


def _places(ctx: Context, node: Node, origin: Field, moves: Moves, run: Trace, lo: int, hi: int) -> Array:
    """For every offset lo ... hi, the table row that all cells (i, i + offset) show."""
    dims = run[origin.name].dims
    moved = np.arange(int(np.prod(dims)), dtype=np.int64).reshape(dims)
    evaluator = ctx.traces.tracer.evaluator
    for move, at in moves:
        inputs = [run[n] if n and i != at else None for i, n in enumerate(move.inputs)]
        inputs[at] = known(moved)
        # other inputs are joined to it (zeros in front): they must have its type, and show as no cell at all
        inputs = [
            known(np.full(v.dims, -1, np.int64)) if _joined(move, i, at) and v else v for i, v in enumerate(inputs)
        ]
        moved = evaluator.run(move, inputs)[0]
    row, col = (side.axis for side in origin.sides)
    first = np.moveaxis(moved, (row, col), (-2, -1)).reshape(-1, moved.shape[row], moved.shape[col])[0]
    size = min(first.shape)
    places = []
    for offset in range(lo, hi + 1):
        if abs(offset) >= size:
            raise Unclear("its relative positions reach further than was looked", node=node.name, op=node.op, hint="")
        diagonal = np.diagonal(first, offset)
        i = np.arange(len(diagonal)) + max(-offset, 0)
        cells = diagonal[: len(i)]
        where = np.unravel_index(np.maximum(cells, 0), dims)
        found = where[col]
        elsewhere = any(where[k].any() for k in range(len(dims)) if k not in (row, col))
        if elsewhere or (cells < 0).any() or not (where[row] == i).all() or not (found == found[0]).all():
            ctx.refuse(
                node,
                "cells are moved about in a way that is no relative shift",
                "use the usual relative-position shift",
            )
        places.append(int(found[0]))
    return np.array(places, np.int64)
