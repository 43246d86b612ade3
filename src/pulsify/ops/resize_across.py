"""The node of a Resize on one window: sizes as the runtime makes them, and frames that do not touch each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.frontend.model import Node
from pulsify.plan.context import Context

Scales = Sequence[float]


@dataclass(frozen=True)
class Given:
    """What is resized: sizes (-1: free), the axis of time (-1: none), and what batch makes of the others."""

    dims: tuple[int, ...]
    axis: int
    made: tuple[int, ...]


Part = tuple[Given, Scales, bool]  # what is resized, by how much, and whether by size


def resized(
    ctx: Context, node: Node, x: ir.Value, given: Given, scales: Scales, attrs: Mapping[str, object]
) -> ir.Value:
    """By scales. Axes whose size these do not say (it is worked out in float32 or in double) are told it, and first."""
    for part, by, by_size in parts_of(ctx, node, given, scales):
        x = _apart(ctx, node, x, part, by, attrs, by_size)
    return x


def parts_of(ctx: Context, node: Node, given: Given, scales: Scales) -> list[Part]:
    """The nodes it takes. Refuses what is resized otherwise from place to place."""
    if all(s == 1 or (i != given.axis and given.made[i] == given.dims[i]) for i, s in enumerate(scales)):
        return []  # where all sizes stay the runtime copies, whatever the scales are
    told = [i for i, s in enumerate(scales) if i != given.axis and s != 1 and not _says(given, i, s)]
    if not told:
        return [_checked(ctx, node, (given, scales, False))]
    for i in told:
        if np.float32(given.made[i] / given.dims[i]) != np.float32(scales[i]):
            ctx.ask.refuse(
                node,
                f"the size of axis {i}, {given.dims[i]} times {scales[i]}, is rounded otherwise from place to place",
                "give it sizes instead of scales, or a factor by which the size is whole",
            )
    parts = [_checked(ctx, node, (given, [s if i in told else 1.0 for i, s in enumerate(scales)], True))]
    rest = [1.0 if i in told else s for i, s in enumerate(scales)]
    dims = tuple(given.made[i] if i in told else d for i, d in enumerate(given.dims))
    if set(rest) != {1.0}:
        parts.append(_checked(ctx, node, (Given(dims, given.axis, given.made), rest, False)))
    return parts


def _checked(ctx: Context, node: Node, part: Part) -> Part:
    given, scales, _ = part
    over = [i for i, s in enumerate(scales) if s != 1]
    if over and all(i != given.axis and given.made[i] == given.dims[i] for i in over):
        ctx.ask.refuse(node, f"it moves entries along axis {over[0]}, whose size stays", "give that axis the factor 1")
    return part


def _says(given: Given, axis: int, scale: float) -> bool:
    """Is the size the same in float32, as the runtime has it, and in double, as everybody else has it?"""
    size, factor = given.dims[axis], np.float32(scale)
    return int(np.float32(size) * factor) == math.floor(size * float(factor)) == given.made[axis]


def _apart(
    ctx: Context, node: Node, x: ir.Value, given: Given, scales: Scales, attrs: Mapping[str, object], by_size: bool
) -> ir.Value:
    """Frames lie where nothing is interpolated: the runtime sums over the last axes, and nothing times NaN is NaN.

    [B, C, T, F] -> [1, B*C*T, 1, F] -> [1, B*C*T, 1, G] -> [B, C, T, G]
    """
    b, rank = ctx.builder, len(given.dims)
    over = [i for i, s in enumerate(scales) if s != 1]
    outer = rank == 4 and given.axis < 2 <= min(over, default=2)  # as it is
    if node.attr("mode", "nearest") == "nearest" or not over or given.axis in over or outer or given.dims.count(-1) > 1:
        return _node(ctx, node, x, given, scales, attrs, by_size)
    kept = [i for i in range(rank) if i not in over]
    order = [*kept, *over]
    turned = order != list(range(rank))
    x = b.op("Transpose", x, perm=order) if turned else x
    rows = math.prod(given.dims[i] for i in kept)
    lead = [1, max(rows, -1), *([1] if len(over) == 1 else [])]
    flat = Given((*lead, *(given.dims[i] for i in over)), 1, (*lead, *(given.made[i] for i in over)))
    x = b.reshape(x, flat.dims)
    x = _node(ctx, node, x, flat, [*([1.0] * len(lead)), *(scales[i] for i in over)], attrs, by_size)
    x = b.reshape(x, [*(given.dims[i] for i in kept), *(given.made[i] for i in over)])
    return b.op("Transpose", x, perm=[order.index(i) for i in range(rank)]) if turned else x


def _node(
    ctx: Context, node: Node, x: ir.Value, given: Given, scales: Scales, attrs: Mapping[str, object], by_size: bool
) -> ir.Value:
    b = ctx.builder
    if not by_size:
        table = b.constant(np.array(scales, np.float32), "scales")
        return b.op("Resize", x, None, table, name=node.name, **attrs)
    dims = [given.made[i] if s != 1 else given.dims[i] for i, s in enumerate(scales)]
    sizes = b.ints(*dims)
    if min(dims) < 0:
        sizes = b.op("Concat", *(b.size(x, i) if d < 0 else b.ints(d) for i, d in enumerate(dims)), axis=0)
    return b.op("Resize", x, None, None, sizes, name=node.name, **attrs)
