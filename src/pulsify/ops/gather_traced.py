"""Gather, GatherElements and GatherND at one length: which indices they take, and what they make of the length."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pulsify.core.arrays import Array
from pulsify.frontend.model import Node
from pulsify.trace.shapes import CHECK, NO_LARGER, Inputs
from pulsify.trace.traced import CannotRun
from pulsify.trace.usage import ROLE, Count, Derived, Extent, Role, Use, Walk

# ---- roles of inputs


@ROLE("Gather", "GatherElements")
def _picked_along(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    rank = len(walk.traces.runs[0][node.inputs[0]].dims)
    return looked_up(walk, node, own, {int(node.attr("axis", 0)) % max(rank, 1)})


def looked_up(walk: Walk, node: Node, own: Mapping[int, Role], axes: set[int]) -> Role | None:
    """What indices along these axes of a table make of the length."""
    if 0 in own:
        return walk.moved(node, own)
    table, role = node.inputs[0], own[1]
    timed = axes & walk.timed(table)
    if walk.known(node.outputs[0]) and not isinstance(role, Count):
        return role if isinstance(role, Extent) else Derived()
    if isinstance(role, Count) and not timed:
        walk.say(node, Use.OTHER, f"looks up an entry of '{table}', which has no frames of the stream there")
        return None
    walk.say(node, Use.LENGTH if timed else Use.PLAIN, f"looks up a frame of '{table}'")
    return Derived()


@ROLE("GatherND")
def _picked(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    return looked_up(walk, node, own, walk.timed(node.inputs[0]))


# ---- at one length


@CHECK("Gather")
def _index_fits(node: Node, ins: Inputs) -> None:
    table, index = ins[0], ins[1]
    if table is None or index is None or not index.known or not index.array.size:
        return
    axis, rank = node.attr("axis", 0), len(table.dims)
    if not -rank <= axis < rank:
        raise CannotRun(node, f"it takes axis {axis} of {rank} axes")
    _check_index(node, table.dims[axis], index.array)


@CHECK("GatherND")
def _indices_fit(node: Node, ins: Inputs) -> None:
    table, index = ins[0], ins[1]
    if table is None or index is None or not index.known or not index.array.size:
        return
    front, axes, columns = node.attr("batch_dims", 0), len(table.dims), index.array.shape[-1]
    if not 0 <= front <= axes - columns:
        raise CannotRun(node, f"batch_dims={front} and {columns} columns of an index, of {axes} axes")
    for column in range(columns):
        _check_index(node, table.dims[front + column], index.array[..., column])


def _check_index(node: Node, size: int, index: Array) -> None:
    if not -size <= index.min() <= index.max() < size:
        raise CannotRun(node, f"an index is outside of its table of {size}")


@NO_LARGER("Gather")
def _one_index(_: Node, ins: Inputs) -> bool:
    return ins[1] is not None and math.prod(ins[1].dims) <= 1
