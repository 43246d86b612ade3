"""GatherND: along time as Gather does; over other axes every frame by itself (diagonals, pairs of channels)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Static, Wire
from pulsify.analysis.proof.failing import LOOKS_UP
from pulsify.analysis.values.extremes import always_below
from pulsify.analysis.values.follow import VALUES, Fixed, Follower, Value
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
    """One axis of the data after the other is picked along; what it shares with the index is picked along at itself."""
    v, index = f.spread(ins[0]), f.spread(ins[1])
    if not index.sizes[-1].constant:
        raise Unsure("how many axes it picks along changes with the length")
    shared, depth = node.attr("batch_dims", 0), int(index.sizes[-1].item)
    columns = [f.spread(c) for c in _columns(f, node, ins[1], index, depth)]
    front, rank = index.rank - 1, v.rank
    sizes = (*index.sizes[:-1], *v.sizes)
    v = moved_axes(v, {a: a + front for a in range(rank)}, sizes)
    for a in range(shared + depth):  # the axis picked along is always the first behind those of the index
        sizes = (*sizes[:front], *sizes[front + 1 :])
        column = Spread(sizes, {a: Fraction(1)}, uses=frozenset({a})) if a < shared else columns[a - shared]
        places = moved_axes(column, {c: c for c in range(front)}, sizes)
        v = _picked_along(f, ins[0], v, front, places)
    return numbers_of(f, node, v)


def _columns(f: Follower, node: Node, value: Value, index: Spread, count: int) -> list[Value]:
    """The index column by column; what holds for all of it holds for each."""
    if isinstance(value, Fixed):
        array = value.array()
        return [replace(value, dims=array.shape[:-1], array=partial(np.take, array, i, -1)) for i in range(count)]
    maker = f.model.producers.get(node.inputs[1])
    columns = COLUMNS.of(maker) if maker is not None else None
    names = columns(maker, index.rank) if maker is not None and columns is not None else None
    parts = [f.value(n) for n in names or ()]
    return parts if len(parts) == count else [value] * count


def _picked_along(f: Follower, value: Value, v: Spread, axis: int, places: Spread) -> Spread:
    """Entries of v along an axis, which is gone then."""
    to = {c: c - (c > axis) for c in range(v.rank) if c != axis}
    alike = axis in v.times or v.lo == v.hi or not (places.slope or places.uses)
    if axis in v.uses or axis in v.slope or not alike:
        return taken(f, value, v, axis, places, to, wraps=True)
    # the same wherever it is picked from, at places that exist at every length
    if not always_below(f, places, v.sizes[axis]) or not always_below(f, constant(0, f.unit), places, strictly=False):
        raise Unsure("it picks entries that may not be there")
    out = moved_axes(v, to, places.sizes)
    return replace(out, limit=min(v.limit, places.limit), until=min(v.until, places.until))


@LOOKS_UP("GatherND")
def rows_named(f: Follower, node: Node) -> int | None:
    """The first axis, if one number names an entry."""
    columns = f.sizes_of(node.inputs[1])[-1]
    return None if node.attr("batch_dims", 0) or not (columns.constant and columns.item == 1) else 0
