"""The relative shift, in all its forms: moves are run on an iota, and the map they perform is read off.

A table of relative positions r is multiplied with the queries, raw[i, r], and then pads, reshapes and slices skew it:
out[i, j] = raw[i, f(i, j)]. With windows, j - i spans a fixed range, so only those rows of the table are needed:

    table     g(-5) ... g(0) g(1)             the rows of the table by offset j - i
    raw       row u x offset m                scores by offset
    out       [u, v] = raw[u, v - u + R - 1]  skewed at window size
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.convert.context import Context, Unclear
from pulsify.convert.facts import Field, Offsets, Windows, Wire
from pulsify.convert.known.series import LONGEST, Series, TooFar, Unsure, steady_growth
from pulsify.convert.proof.claims import fixed, kinds, numbers_behind
from pulsify.convert.proof.numbers import Looked, follower, longest, sizes, uncertain
from pulsify.convert.proof.pinned import Settles, pinned
from pulsify.convert.proof.values import known_at
from pulsify.convert.rules.pointwise import clone
from pulsify.core.length import Length
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Array, CannotRun, known

MOST_CELLS = 400_000_000  # looked at, at all lengths together
MOST_KINDS = 2_000  # of lengths
STEADY = 8  # so many lengths at one rate are no coincidence: whether the model ends there is looked at
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
    count = hi - lo + 1
    rows: dict[int, Array] = {}  # by offset
    for s in _lengths(ctx, node, origin, moves, (lo, hi)):
        try:
            places = _places(ctx, node, origin, moves, s, lo, hi)
            table = known_at(ctx, name, s).array
        except CannotRun:  # the model's table ends before
            continue
        for offset, place in places.items():
            row = table.take(place, axis)
            if not np.allclose(row, rows.setdefault(offset, row), rtol=1e-5, atol=1e-6):
                ctx.refuse(
                    node, "its relative positions depend on the length of the stream", "index them by the offset j - i"
                )
    if len(rows) < count:
        raise Unclear("its relative positions reach further than was looked", node=node.name, op=node.op, hint="")
    zero = np.zeros_like(rows[lo])
    return np.stack([rows.get(wanted[0] + n, zero) for n in range(wanted[1])], axis)


def _lengths(ctx: Context, node: Node, origin: Field, moves: Moves, offsets: tuple[int, int]) -> list[int]:
    """Lengths at which every way the moves can go shows, and every kind of row of the table.

    Cells are moved by sums and products of sizes and amounts, each a line of the length past its horizon. What such
    terms compare like is settled where the largest root of the quadratic forms they make up lies behind.
    """
    assert origin.product is not None
    product, at = origin.product
    name = product.inputs[at]
    try:
        given = [n for move, i in moves for k, n in enumerate(move.inputs) if n and k != i and not _joined(move, k, i)]
        numbers = [*numbers_behind(ctx, given), *(s for s in sizes(ctx, node, origin.name) if not s.constant)]
        end = _end(ctx, node, numbers)
        lines = [_line(s, end) for s in numbers]
        far = min(_settled(lines, _amounts(ctx, moves), max(map(abs, offsets))), end)
        places = [_placed(ctx, node, origin, moves, numbers, far, offset) for offset in offsets]
        more = Settles()
        for place in places:
            more |= pinned(follower(ctx), name, ctx.time_axes(name)[0], replace(place, longest=end))
    except Unsure as problem:
        if ctx.proof != "sampled":
            uncertain(ctx, node, name, problem)
        ctx.ledger.sampled[name] = str(problem)
        return list(ctx.traces.lengths)
    further = max(far, min(more.until + 2 * more.period, end))
    ctx.ledger.saw(further, 1)
    lengths, _ = kinds([*numbers, *numbers_behind(ctx, [name])], further)
    if len(lengths) > MOST_KINDS or len(lengths) * _cells(ctx, node, origin, lengths[-1]) > MOST_CELLS:
        uncertain(ctx, node, name, TooFar(further))
    return lengths


@dataclass(frozen=True)
class Line:
    """A number past `horizon` frames: rate * T, and off by no more than `off`; it repeats so after `turn` frames."""

    horizon: int
    turn: int
    rate: Fraction
    off: float


def _line(s: Series, end: int) -> Line:
    rate, horizon = s.rate, s.settled if s.horizon else 0
    if (until := _steady(s)) is not None and until[1] >= end // s.unit:
        rate, horizon = until[0], 0
    first = s.horizon if horizon else 0
    values = s.values[first : max(end // s.unit, 1)].astype(np.float64)
    off = float(np.abs(values - float(rate) * (first + 1 + np.arange(len(values))) * s.unit).max(initial=0))
    return Line(horizon, math.lcm(s.repeats, rate.denominator), rate, off)


def _steady(s: Series) -> tuple[Fraction, int] | None:
    """At which rate a number grows from the start, and for how many lengths."""
    found = steady_growth(s.values)
    return None if found is None or found[1] < STEADY else (found[0] / s.unit, found[1])


def _settled(lines: list[Line], amounts: float, reach: int) -> int:
    """The length from which on nothing that the moves compare changes any more."""
    turn = math.lcm(*(n.turn for n in lines))
    grown = [n for n in lines if n.rate]
    slowest = min((n.rate * turn for n in grown), default=Fraction(1))
    apart = sum(n.off / float(n.rate * turn) for n in grown)
    apart += (sum(n.off for n in lines if not n.rate) + amounts) / float(slowest)
    turns = max((1 + apart) ** 2, reach / float(slowest) + apart + 1)
    return max(n.horizon for n in lines) + turn * (math.ceil(turns) + 3)


def _amounts(ctx: Context, moves: Moves) -> float:
    """The sum of all constant amounts that cells are moved by, or cut at."""
    total = 0.0
    for move, _ in moves:
        for name in move.inputs[1:3] if move.op in ("Pad", "Slice") else ():
            value = ctx.traces.runs[0][name] if name else None
            if value is not None and value.known and value.array.dtype.kind == "i" and fixed(ctx, move, name):
                amounts = np.abs(value.array.astype(np.float64))
                total += float(amounts[amounts < LONGEST].sum())
    return total


def _end(ctx: Context, node: Node, numbers: list[Series]) -> int:
    """The longest stream that matters: past the end of the model's table batch fails, and the stream goes on alone.

    Where batch does not fail there (a slice that wraps around gives it other rows), the stream is turned down.
    """
    unit, end, behind = ctx.traces.tracer.time.step, longest(ctx), set[int]()
    for s in numbers:
        if not s.growth and s.horizon and (steady := _steady(s)) is not None:
            end = min(end, steady[1] * unit)
            behind |= {(n + k) * unit for n in (steady[1], s.horizon) for k in (1, 2, 3)}
    if any(n > end and ctx.traces.tracer.works(n) for n in behind):
        ctx.require(node.name, Length(), at_most=end)
    return end


def _placed(
    ctx: Context, node: Node, origin: Field, moves: Moves, numbers: list[Series], far: int, offset: int
) -> Series:
    """The row of the table that cells at an offset show, as a number of the length."""
    unit = ctx.traces.tracer.time.step
    lengths, which = kinds(numbers, far)
    found = np.full(len(lengths), -1)
    for n, s in enumerate(lengths):
        try:
            found[n] = _places(ctx, node, origin, moves, s, offset, offset).get(offset, -1)
        except CannotRun:
            continue
    values = found[which]
    missing = np.flatnonzero(values < 0)
    if len(missing) == len(values):
        raise Unclear("its relative positions reach further than was looked", node=node.name, op=node.op, hint="")
    turn = math.lcm(*(_line(s, far).turn for s in numbers)) // unit
    horizon = len(values) - 2 * turn
    if horizon < 0 or (missing.size and missing[-1] >= horizon):
        raise Unsure("its relative positions reach further than was looked")
    values = np.where(values < 0, values[missing[-1] + 1] if missing.size else 0, values)
    grown = values[-turn:] - values[-2 * turn : -turn]
    if (grown != grown[0]).any():
        raise Unsure("its relative positions move on unevenly")
    return Series(values[:-turn], horizon, Fraction(int(grown[0])), unit).reduced()


def _cells(ctx: Context, node: Node, origin: Field, length: int) -> int:
    return math.prod(s.at(length) for s in sizes(ctx, node, origin.name))


def _joined(move: Node, index: int, at: int) -> bool:
    return move.op == "Concat" and index != at


def _places(ctx: Context, node: Node, origin: Field, moves: Moves, s: int, lo: int, hi: int) -> dict[int, int]:
    """For every offset lo ... hi that there is, the table row that all cells (i, i + offset) show."""
    run = Looked(ctx, s)
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
    places = {}
    for offset in range(lo, hi + 1):
        cells = np.diagonal(first, offset)
        if not len(cells):
            continue
        where = np.unravel_index(np.maximum(cells, 0), dims)
        i, found = np.arange(len(cells)) + max(-offset, 0), where[col]
        elsewhere = any(where[k].any() for k in range(len(dims)) if k not in (row, col))
        if elsewhere or (cells < 0).any() or not (where[row] == i).all() or not (found == found[0]).all():
            ctx.refuse(
                node,
                "cells are moved about in a way that is no relative shift",
                "use the usual relative-position shift",
            )
        places[offset] = int(found[0])
    return places
