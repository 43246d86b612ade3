"""Single frames at fixed places from either end, as models write them: x[:, n - 1], x[arange(B), n - 1], x.gather(...).

First and last ones are folds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Layout, Window, Wire, deferred
from pulsify.analysis.proof.batches import each_stream, one_behind_another
from pulsify.analysis.proof.claims import fixed, fixed_value
from pulsify.analysis.proof.numbers import numbers, sizes
from pulsify.core.refusal import Kind
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.lengths.series import constant, multiply, subtract
from pulsify.ops.fold import first_frames, last_frames
from pulsify.ops.slice import not_folded
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan
from pulsify.trace.lengths import BATCHES
from pulsify.trace.traced import Array

EITHER = "take them at fixed places from either end"


def few(ctx: Context, node: Node, wire: Wire, index: str, axis: int) -> Plan:
    """By an index along time alone."""
    places = _from_either_end(ctx, node, index, axis)
    if traits(node.op, node.domain).axes == "points":
        places = places[..., 0]
    return _taken(ctx, node, wire, places, lambda x, inside: _along(ctx, x, inside, axis))


def by_coordinates(ctx: Context, node: Node, wire: Wire) -> Plan:
    """By coordinates along several axes: x[arange(B), n - 1], the last frame of every stream."""
    index, axis = node.inputs[1], wire.layout.axis
    depth = ctx.ask.dims(index)[-1]
    if node.attr("batch_dims", 0) or depth <= axis:
        ctx.ask.refuse(node, "it picks single elements out of the stream", "index one axis at a time (Gather)")
    _known(ctx, node, index)
    not_folded(ctx, node, wire)
    cells = numbers(ctx.ask, node, index)
    across = np.delete(cells, axis, -1)
    if not all(c.constant for c in across.flat):
        ctx.ask.refuse(
            node, "which entries of a frame it takes depends on the length of the stream", EITHER, kind=Kind.LENGTH
        )
    places = _ends(ctx, node, cells[..., axis], axis)
    streams = [a for a in range(depth) if wire.layout.sizes[a] < 0]
    if not streams:
        others = np.array([int(c.item) for c in across.flat], np.int64).reshape(across.shape)

        def picked(x: ir.Value, inside: Array) -> ir.Value:
            coordinates = ctx.builder.constant(np.insert(others, axis, inside, -1), "places")
            return ctx.builder.op("GatherND", x, coordinates, name=node.name)

        return _taken(ctx, node, wire, places, picked)
    own = depth == 2 and ctx.ask.sizes_static(index) == (-1, 2) and wire.layout.sizes[streams[0]] == -1
    if not own or not each_stream(ctx.ask, index, streams[0]):
        ctx.ask.refuse(node, "it picks among the streams of a batch", ctx.ask.fix_batch(), kind=Kind.BATCH)
    return _taken(ctx, node, wire, places[0], lambda x, inside: _along(ctx, x, inside, axis))


def of_each_stream(ctx: Context, node: Node, wire: Wire, index: str) -> Plan:
    """By an index into streams that lie one behind another: x.flatten(0, 1)[n - 1 + n * arange(B)]."""
    ask, layout = ctx.ask, wire.layout
    count, rest = layout.outer[0], layout.sizes[1:]
    own = -1 if layout.outer == BATCHES else count
    plain = layout.axis == 0 and layout.outer in (BATCHES, (count, count)) and wire.length is not None
    frames = ask.dims(node.inputs[0], 0)[0] // count
    plain = plain and all(s > 0 for s in rest) and ask.sizes_static(index) == (own,)
    if not plain or (own < 0 and not one_behind_another(ask, index, frames)):
        not_folded(ctx, node, wire)
    cells, size = numbers(ask, node, index), sizes(ask, node, node.inputs[0])[0]
    times = [constant(n, size.unit) for n in range(count + 1)]
    back = [subtract(multiply(c, times[-1]), multiply(size, times[i + 1])) for i, c in enumerate(cells)]
    places = {Fraction(int(c.item), count) if c.constant else None for c in back}
    place = places.pop()
    if places or place is None or place >= 0 or place.denominator > 1:
        not_folded(ctx, node, wire)
    assert place is not None

    def take(window: Window) -> Deferred:
        x = wire.take(window)
        return deferred(lambda: ctx.builder.reshape(x.value, [own, window.frames, *rest]), x)

    apart = replace(wire, name=f"{wire.name}#streams", layout=Layout((own, 0, *rest), 1), take=take)
    return _taken(ctx, node, apart, np.array(int(place)), lambda x, inside: _along(ctx, x, inside, 1))


def for_every_entry(ctx: Context, node: Node, wire: Wire) -> Plan:
    """By an index for every entry of a frame, all of them at the same place: x.gather(1, (n - 1).expand(...))."""
    index, axis = node.inputs[1], wire.layout.axis
    _known(ctx, node, index)
    not_folded(ctx, node, wire)
    source = index
    while (maker := ctx.ask.model.producers.get(source)) is not None and traits(maker.op).copies:
        source = maker.inputs[0]  # the same numbers, only more of them
    found = ctx.ask.sizes_static(index)
    places = np.unique(_from_either_end(ctx, node, source, axis))
    if len(places) != 1 or any(
        f != s for a, (f, s) in enumerate(zip(found, wire.layout.sizes, strict=True)) if a != axis
    ):
        ctx.ask.refuse(node, "it picks other frames for other entries of a frame, or for some alone", EITHER)
    return _taken(ctx, node, wire, np.repeat(places, found[axis]), lambda x, inside: _along(ctx, x, inside, axis))


def _known(ctx: Context, node: Node, index: str) -> None:
    if ctx.ask.known(index) is None:
        ctx.ask.refuse(node, "which frames it takes depends on the data", "choose frames by position", kind=Kind.DATA)
    if ctx.ask.time_axes(index):
        ctx.ask.refuse(node, "it picks single elements out of the stream", "index one axis at a time (Gather)")


def _along(ctx: Context, x: ir.Value, places: Array, axis: int) -> ir.Value:
    return ctx.builder.op("Gather", x, ctx.builder.constant(places.astype(np.int64), "places"), axis=axis)


def _taken(ctx: Context, node: Node, wire: Wire, places: Array, cut: Callable[[ir.Value, Array], ir.Value]) -> Plan:
    """places: from the start, or below zero from the end. cut: what is made of those frames, and of places in them."""
    if not places.size or (places.min() < 0 <= places.max()):
        ctx.ask.refuse(node, "it takes frames from both ends of the stream at once", "take them one by one")
    first = bool(places.min() >= 0)
    frames = int(places.max()) + 1 if first else -int(places.min())
    inside = places if first else places + frames
    return (first_frames if first else last_frames)(ctx, node, wire, frames, lambda x: cut(x, inside))


def _from_either_end(ctx: Context, node: Node, index: str, axis: int) -> Array:
    """Places as numbers from the start, or below zero from the end, that are the same at every length."""
    if fixed(ctx.ask, node, index):
        return fixed_value(ctx.ask, node, index, "index")
    return _ends(ctx, node, numbers(ctx.ask, node, index), axis)


def _ends(ctx: Context, node: Node, cells: Array, axis: int) -> Array:
    size = sizes(ctx.ask, node, node.inputs[0])[axis]
    back = [c if c.constant else subtract(c, size) for c in cells.flat]  # T - 1, as models write the last frame's place
    if not all(c.constant and (own.constant or c.item < 0) for c, own in zip(back, cells.flat, strict=True)):
        ctx.ask.refuse(
            node, "which single frames it takes depends on the length of the stream", EITHER, kind=Kind.LENGTH
        )
    return np.array([int(c.item) for c in back], np.int64).reshape(cells.shape)
