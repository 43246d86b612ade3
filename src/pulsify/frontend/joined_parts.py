"""Reads of one part of what a write joined: the read takes that part as it is.

A tensor that several layers keep their context in is written and read piece by piece. What one layer wrote, known only
when the stream has ended, is not part of what the next one reads:

    buffer   [ a a b b ]                 buffer[..., 0:2] = new      Concat(new, buffer[..., 2:])
                   ^ ^                   buffer[..., 2:4]            Slice(buffer, 2:4)
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from pulsify.frontend.model import Decision, Node
from pulsify.frontend.write_joins import Rewrite, Value, Writer


def reads_a_part(node: Node) -> bool:
    return node.op == "Slice" and not node.domain


def part_read(
    node: Node, values: Mapping[str, Value], makers: Mapping[str, Node], written: Container[str]
) -> Rewrite | None:
    """A Slice of what a write joined as a Slice of a single part; None if it reads more than that.

    written: names of values that writes are replaced by, along axes that do not go with the length.
    """
    if not reads_a_part(node) or not all(values[i].known for i in node.inputs[1:] if i):
        return None
    rank = len(values[node.inputs[0]].dims)
    numbers = [values[i].array.reshape(-1).tolist() if i else None for i in node.inputs[1:]]
    starts, stops, axes, steps = [*numbers, None, None][:4]
    axis = 0 if axes is None else int(axes[0]) % rank
    if starts is None or stops is None or len(starts) != 1 or (steps or [1]) != [1]:
        return None
    name, between, at = node.inputs[0], list[Node](), axis
    while (maker := makers.get(name)) is not None and _leaves_apart(maker, at, values):
        between += [maker] if maker.op != "Identity" else []
        at = _axis_before(maker, at, rank)
        name = maker.inputs[0]
    if maker is None or maker.op != "Concat" or name not in written or maker.attr("axis") % rank != at:
        return None
    size = values[node.inputs[0]].dims[axis]
    first, last = (slice(int(starts[0]), int(stops[0])).indices(size))[:2]
    sizes = [values[part].dims[at] for part in maker.inputs]
    ends = np.cumsum(sizes).tolist()
    which = next((n for n, end in enumerate(ends) if end - sizes[n] <= first < last <= end), None)
    if which is None:
        return None
    part, begin = maker.inputs[which], ends[which] - sizes[which]
    decisions = [Decision(node.name, node.op, p, at, n) for p, n in zip(maker.inputs, sizes, strict=True)]
    write = Writer(node, rank, 0)
    x = write.slice(part, at, write.ints(first - begin), write.ints(last - begin))
    for passed in reversed(between):
        x = write.op(passed.op, x, *passed.inputs[1:], **passed.attrs)
    write.rewrite.decisions.extend(decisions)
    for number, taken in ((node.inputs[1], starts[0]), (node.inputs[2], stops[0])):
        write.require(number, int(taken))
    return write.finish(x)


def _leaves_apart(node: Node, axis: int, values: Mapping[str, Value]) -> bool:
    """Does it only move whole entries of this axis, or cut other axes?"""
    if node.op == "Slice":
        rank = len(values[node.inputs[0]].dims)
        axes = values[node.inputs[3]] if node.input(3) else None
        return axes is not None and axes.known and axis not in (axes.array % rank)
    return node.op in ("Transpose", "Identity")


def _axis_before(node: Node, axis: int, rank: int) -> int:
    if node.op != "Transpose":
        return axis
    return int(tuple(node.attr("perm") or reversed(range(rank)))[axis])
