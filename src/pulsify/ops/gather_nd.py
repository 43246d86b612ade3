"""GatherND: along time as Gather does; over other axes every frame by itself (diagonals, pairs of channels)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Static, Wire
from pulsify.analysis.proof.failing import LOOKS_UP
from pulsify.analysis.values.extremes import always_below
from pulsify.analysis.values.follow import VALUES, Follower, Value
from pulsify.analysis.values.moves import COLUMNS, numbers_of, taken
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.indexing import moved_axes
from pulsify.lengths.series import Unsure, constant
from pulsify.ops.gather import frames_by_index
from pulsify.ops.pointwise import clone, pointwise
from pulsify.ops.registry import rule
from pulsify.ops.single import by_coordinates
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan
from pulsify.trace.traced import Array


@rule(
    "GatherND",
    says="over any axes but time; frames by an index table, single ones at the end (x[arange(B), n - 1]), as exporters "
    "write them",
)
def gather_nd(ctx: Context, node: Node) -> Plan | None:
    """The axes from `batch_dims` on are picked from, as many as there are coordinates; those before go along."""
    data, index = ctx.ask.fact(node.inputs[0]), node.inputs[1]
    shared, depth = node.attr("batch_dims", 0), ctx.ask.dims(index)[-1]
    if isinstance(data, Wire) and shared <= data.layout.axis < shared + depth:
        if shared or depth != 1:
            return by_coordinates(ctx, node, data)
        return frames_by_index(ctx, node, data, index, 0)
    wire = ctx.ask.wire(index)
    if isinstance(data, Wire) and shared:
        alike = _one_for_all(ctx, index, shared)
        if alike is not None:
            return pointwise(ctx, node, lambda c, n, inputs: _by_one_index(c, n, inputs[0], alike))
        if ctx.ask.known(index) is None:
            _check_inside(ctx, node)
        return pointwise(ctx, node, _row_by_row)
    if wire is not None and ctx.ask.known(index) is None:
        _check_inside(ctx, node)
        return pointwise(ctx, node, lambda c, n, inputs: clone(c, n, [inputs[0], _inside(c, n, inputs[1])]))
    return pointwise(ctx, node)


def _row_by_row(ctx: Context, node: Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    """With axes that data and index share."""
    x, places = inputs
    assert x is not None and places is not None
    b, index, shared = ctx.builder, node.inputs[1], node.attr("batch_dims", 0)
    if ctx.ask.known(index) is None:
        places = _inside(ctx, node, places)
    front = b.op("Slice", b.op("Shape", x), b.ints(0), b.ints(shared))
    behind = b.ints(*ctx.ask.dims(index)[shared:])
    places = b.op("Expand", places, b.op("Concat", front, behind, axis=0))
    return b.ops(node.op, [x, places], node.attrs, outputs=1, name=node.name)


def _one_for_all(ctx: Context, index: str, shared: int) -> Array | None:
    """An index that is the same in every frame and every stream, and along all other axes it shares with the data."""
    fact, known = ctx.ask.fact(index), ctx.ask.known(index)
    if known is None or not (isinstance(fact, Static) or (isinstance(fact, Wire) and fact.constant_frame is not None)):
        return None
    rows = known[0].reshape(-1, *known[0].shape[shared:])
    return rows[0] if len(rows) and (rows == rows[0]).all() else None


def _by_one_index(ctx: Context, node: Node, x: ir.Value | None, index: Array) -> Sequence[ir.Value]:
    """A plain Gather; with several coordinates the axes they go along are put first, and those shared behind them."""
    b, shared, depth = ctx.builder, node.attr("batch_dims", 0), index.shape[-1]
    if depth == 1:
        return (b.op("Gather", x, b.constant(index[..., 0], "places"), axis=shared, name=node.name),)
    rank, rows = len(ctx.ask.dims(node.inputs[0])), index.ndim - 1
    there = [*range(shared, shared + depth), *range(shared), *range(shared + depth, rank)]
    back = [*range(rows, rows + shared), *range(rows), *range(rows + shared, rows + rank - depth)]
    taken = b.op("GatherND", b.op("Transpose", x, perm=there), b.constant(index, "places"), name=node.name)
    return (b.op("Transpose", taken, perm=back),)


def _picked(ctx: Context, node: Node) -> Array:
    """The sizes of the axes that are picked from."""
    shared, depth = node.attr("batch_dims", 0), ctx.ask.dims(node.inputs[1])[-1]
    return np.array(ctx.ask.sizes_static(node.inputs[0])[shared : shared + depth])


def _check_inside(ctx: Context, node: Node) -> None:
    if (_picked(ctx, node) < 0).any():
        ctx.ask.refuse(node, "it picks among the streams of a batch", ctx.ask.fix_batch(), kind=Kind.BATCH)


def _inside(ctx: Context, node: Node, places: ir.Value | None) -> ir.Value:
    """Places that data choose: those of frames that are not real are held inside."""
    assert places is not None
    sizes = _picked(ctx, node)
    dtype = ctx.ask.dtype(node.inputs[1]).numpy()
    low, high = (ctx.builder.constant(v.astype(dtype), "int") for v in (-sizes, sizes - 1))
    return ctx.builder.op("Min", ctx.builder.op("Max", places, low), high)


# ---- values by length
@VALUES("GatherND")
def gather_nd_values(f: Follower, node: Node, ins: list[Value]) -> Value | list[Value]:
    index = f.spread(ins[1])
    if (entry := _same_entry(f, node, ins, index)) is not None:
        return entry
    if node.attr("batch_dims", 0) or not index.sizes[-1].constant or index.sizes[-1].item != 1:
        raise Unsure("it picks single entries")
    v = f.spread(ins[0])
    if index.rank - 1 in index.uses:
        raise Unsure("it picks single entries")
    places = moved_axes(index, {c: c for c in range(index.rank - 1)}, (*index.sizes[:-1], *v.sizes[1:]))
    to = {c: c + index.rank - 2 for c in range(1, v.rank)}
    return numbers_of(f, node, taken(f, ins[0], v, 0, places, to, wraps=True))


def _same_entry(f: Follower, node: Node, ins: list[Value], index: Spread) -> Spread | None:
    """Entries that are the same wherever they are picked from, at places that exist at every length."""
    v = f.spread(ins[0])
    if v.slope or v.uses or v.near or node.attr("batch_dims", 0) or not index.sizes[-1].constant:
        return None
    axes = int(index.sizes[-1].item)
    source = f.model.producers.get(node.inputs[1])
    columns = COLUMNS.of(source) if source is not None else None
    names = columns(source, index.rank) if source is not None and columns is not None else None
    parts = [f.value(i) for i in names] if names is not None else [ins[1]] * axes
    if len(parts) != axes:
        return None
    zero = constant(0, f.unit)
    for axis, part in enumerate(parts):
        moves = axis not in v.times and v.lo != v.hi and (f.spread(part).slope or f.spread(part).uses)
        inside = always_below(f, part, v.sizes[axis]) and always_below(f, zero, part, strictly=False)
        if moves or not inside:
            return None
    return replace(v, sizes=(*index.sizes[:-1], *v.sizes[axes:]), limit=min(v.limit, index.limit))


@LOOKS_UP("GatherND")
def rows_named(f: Follower, node: Node) -> int | None:
    """The first axis, if one number names an entry."""
    columns = f.sizes_of(node.inputs[1])[-1]
    return None if node.attr("batch_dims", 0) or not (columns.constant and columns.item == 1) else 0
