"""A table of relative positions as a formula of the offset, for a past that grows.

The table of a relative shift is made of numbers that go along with its rows (T - 1 - row, say), or of rows of a
constant. Where the shift shows row place(offset, T), these are lines of the offset alone, whatever the length:

    Range     T-1 ... 0 ... 1-T                 by offset: -offset
    Slice     rows of a constant, from m - T on by offset: constant[m - 1 + offset]

All that lies between them and the table is emitted by its own rules, for as many offsets as there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import ALL, Deferred, Layout, Window, Wire, deferred, emitted
from pulsify.analysis.fields.shift import Places, Shown
from pulsify.analysis.proof.numbers import Looked, follower, rows_of
from pulsify.analysis.proof.values import known_at
from pulsify.analysis.values.follow import Fixed
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths.series import Unsure
from pulsify.plan.context import Context
from pulsify.trace.traced import Array, known


@dataclass(frozen=True)
class Line:
    """slope * offset + base."""

    slope: float
    base: float


def line_of(values: Mapping[int, Mapping[int, float]]) -> Line | None:
    """The line that values lie on, by length and offset, whatever the length; None if they do not."""
    points = np.array([(o, v) for found in values.values() for o, v in found.items()], np.float64).reshape(-1, 2)
    if len(points) < 2 or points[:, 0].min() == points[:, 0].max():
        return None
    low, high = points[points[:, 0].argmin()], points[points[:, 0].argmax()]
    slope = (high[1] - low[1]) / (high[0] - low[0])
    line = Line(float(slope), float(low[1] - slope * low[0]))
    exact = np.array_equal(points[:, 0] * line.slope + line.base, points[:, 1])
    return line if exact else None


def by_offset(ctx: Context, node: Node, name: str, shown: Shown, looked: int, offsets: Deferred) -> Deferred:
    """The rows of a table for some offsets, int64 [n]: known when the stream runs. looked: so many were at least."""
    asked, ctx.ask.facts = ctx.ask.facts, dict(ctx.ask.facts)
    try:
        for value in _made_of(ctx, name):
            ctx.ask.facts.pop(value, None)
            if (leaf := _leaf(ctx, node, value, shown, looked)) is not None:
                axis = ctx.ask.time_axes(value)[0]
                layout = Layout(ctx.ask.sizes(value, axis), axis)
                take = _taken(ctx, value, axis, leaf, offsets)
                ctx.ask.facts[value] = Wire(value, layout, ctx.ask.dtype(value), None, None, take)
            else:
                ctx.node_rule(ctx, ctx.ask.model.producers[value])
        made = ctx.ask.facts[name]
    finally:
        ctx.ask.facts = asked
    if not isinstance(made, Wire) or made.end is not None:
        ctx.ask.refuse(
            node,
            f"'{name}' is no formula of the offset between two frames, and the past is unbounded",
            "bound the look-back in the mask",
            kind=Kind.LOOK_BACK,
        )
    return made.take(Window(ctx.pulse, ALL, 0))


def _made_of(ctx: Context, name: str) -> list[str]:
    """The values with a time axis that a table is made of, the first first, down to its leaves."""
    found: dict[str, None] = {}

    def walk(value: str) -> None:
        if value in found or not value or not ctx.ask.time_axes(value):
            return
        producer = ctx.ask.model.producers.get(value)
        if producer is not None and not _straight(ctx, value) and not _of_constant(ctx, producer):
            for read in producer.inputs:
                walk(read)
        found[value] = None

    walk(name)
    return list(found)


def _straight(ctx: Context, name: str) -> bool:
    """Does it lie on a line of its row and the length, exactly?"""
    try:
        value = follower(ctx.ask).value(name)
        if isinstance(value, Fixed):
            return False
        v = follower(ctx.ask).spread(value)
    except Unsure:
        return False
    ctx.ask.ledger.up_to(v.certain, name)
    return len(v.times) == 1 and v.lo == v.hi and v.period == 1 and not v.near


def _of_constant(ctx: Context, node: Node) -> bool:
    """Does it show rows of a constant, one after the other?"""
    kind = traits(node.op, node.domain)
    if not kind.moves or kind.axes not in ("cut", "pick"):
        return False
    if ctx.ask.time_axes(node.inputs[0]) or node.inputs[0] not in _constants(ctx):
        return False
    return kind.axes == "cut" or _straight(ctx, node.inputs[1])


def _constants(ctx: Context) -> Mapping[str, object]:
    return ctx.ask.model.constants


@dataclass(frozen=True, eq=False)
class Leaf:
    """A line of the offset; rows: of a constant."""

    line: Line
    rows: str = ""


def _leaf(ctx: Context, node: Node, name: str, table: Shown, looked: int) -> Leaf | None:
    producer, places = ctx.ask.model.producers.get(name), _looked_at(ctx, name, table, looked)
    axis = ctx.ask.time_axes(name)[0]
    if _straight(ctx, name):
        shown = {s: known_at(ctx.ask, name, s).array for s in places}
    elif producer is not None and _of_constant(ctx, producer):
        shown = {s: _rows_shown(ctx, producer, axis, s) for s in places}
    else:
        return None
    values = {
        s: {o: float(np.moveaxis(shown[s], axis, 0)[place].flat[0]) for o, place in found.items()}
        for s, found in places.items()
    }
    line = line_of(values)
    if line is None:
        ctx.ask.refuse(
            node,
            f"'{name}' depends on the length of the stream, not on the offset alone",
            "index it by the offset j - i",
            kind=Kind.LOOK_BACK,
        )
    if producer is None or _straight(ctx, name):
        return Leaf(line)
    count = ctx.ask.dims(producer.inputs[0])[axis]
    most = line.base / line.slope + 1 if line.slope > 0 else (count - 1 - line.base) / max(-line.slope, 1e-9) + 1
    ctx.ask.ledger.require(node.name, Length(), at_most=int(most))  # batch takes no longer streams either
    return Leaf(line, producer.inputs[0])


def _looked_at(ctx: Context, name: str, table: Shown, looked: int) -> Mapping[int, Places]:
    """Lengths at which a leaf is looked at: one, if its rows are proven to be the same at every length."""
    places = {s: p for s, p in table.places.items() if len(p) > looked}
    if table.place is not None:
        with contextlib.suppress(Unsure):
            row = rows_of(ctx.ask, table.end).pinned(name, ctx.ask.time_axes(name)[0], table.place)
            ctx.ask.ledger.up_to(row.limit, name)
            return {s: places[s] for s in list(places)[:1]}
    return places


def _rows_shown(ctx: Context, node: Node, axis: int, s: int) -> Array:
    """Which row of its constant every row shows."""
    run, dims = Looked(ctx.ask, s), ctx.ask.dims(node.inputs[0])
    index = np.arange(dims[axis]).reshape([-1 if i == axis else 1 for i in range(len(dims))])
    inputs = [known(np.broadcast_to(index, dims)), *(run[i] if i else None for i in node.inputs[1:])]
    return ctx.ask.traces.tracer.evaluator.run(node, inputs)[0]


def _taken(ctx: Context, name: str, axis: int, leaf: Leaf, offsets: Deferred) -> Callable[[Window], Deferred]:
    dims = len(ctx.ask.dims(name))
    table = ctx.ask.operand(ctx.ask.model.producers[name], leaf.rows) if leaf.rows else None

    def make() -> ir.Value:
        b = ctx.builder
        kind = ir.DataType.INT64 if leaf.rows or ctx.ask.dtype(name).is_integer() else ctx.ask.dtype(name)
        x = b.op("Cast", offsets.value, to=int(kind))
        slope, base = (b.constant(np.array(v, kind.numpy()), "line") for v in (leaf.line.slope, leaf.line.base))
        x = b.op("Add", b.op("Mul", x, slope), base)
        if leaf.rows:
            low, high = (b.constant(np.array(v, np.int64), "int") for v in (0, ctx.ask.dims(leaf.rows)[axis] - 1))
            place = b.op("Min", b.op("Max", x, low), high)  # what lies outside is never seen
            return b.op("Gather", emitted(table), place, axis=axis)
        x = b.op("Cast", x, to=int(ctx.ask.dtype(name)))
        others = [i for i in range(dims) if i != axis]
        return b.op("Unsqueeze", x, b.ints(*others)) if others else x

    return lambda window: deferred(make, offsets, table)
