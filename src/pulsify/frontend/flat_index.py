"""Entries picked by several indices, as the older exporter writes them: by one index into all entries in a row.

    x[i, j]  =  Reshape(Gather(Flatten(x), i * size + j), shape)      -->      GatherND(x, [i, j])

Each index is then seen for itself, and a time axis is not merged with the streams of a batch. Only for indices that are
never negative: one counts from the end of its axis, the other from that of the entry before.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.frontend.placing import before, constant_before, instead

Array = np.ndarray[Any, Any]
MOVES = ("Unsqueeze", "Squeeze", "Expand", "Reshape", "Slice", "Transpose", "Cast", "Identity", "Gather")  # entries
SUMS = ("Add", "Mul", "Concat", "Max")  # of what is not negative


def pick_by_each_index(model: ir.Model) -> None:
    """In place, in the main graph and in bodies."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx"):
            continue
        picked = _picked(node)
        if picked is None:
            continue
        x, flat, indices = picked
        shape = before(node, "Shape", [flat])
        columns = [_column(node, index, shape) for index in indices]
        index = before(node, "Concat", columns, [ir.AttrInt64("axis", -1)])
        instead(node, before(node, "GatherND", [x, index]))


def _column(node: ir.Node, index: ir.Value, shape: ir.Value) -> ir.Value:
    whole = before(node, "Cast", [index], [ir.AttrInt64("to", ir.DataType.INT64)])
    return before(node, "Unsqueeze", [before(node, "Expand", [whole, shape]), constant_before(node, np.array([-1]))])


def _picked(node: ir.Node) -> tuple[ir.Value, ir.Value, list[ir.Value]] | None:
    """What is picked from, the index into all of it, and the indices that this is made of."""
    listed = _maker(node.inputs[0], "Reshape")
    made = _maker(listed.inputs[0], "Gather") if listed is not None and _in_a_row(listed) else None
    if made is None or made.attributes.get_int("axis", 0) != 0:
        return None
    row, flat = _maker(made.inputs[0], "Flatten"), made.inputs[1]
    if row is None or flat is None or not _shape_of(node.inputs[1], flat):
        return None
    x, axes = row.inputs[0], row.attributes.get_int("axis", 1)
    turned = _maker(x, "Transpose")
    if turned is not None and list(turned.attributes.get_ints("perm", ())) == list(range(axes)):
        x = turned.inputs[0]
    sums = _terms(flat, axes)
    if x is None or sums is None:
        return None
    *scaled, last = sums
    indices = [_over(term, x, set(range(i + 1, axes))) for i, term in enumerate(scaled)]
    found = [i for i in indices if i is not None]
    known = len(found) == axes - 1 > 0 and all(_counts(i) for i in [*found, last])
    return (x, flat, [*found, last]) if known else None


def _counts(value: ir.Value | None) -> bool:
    """Is it made of counts from zero, or further on, and so never negative?"""
    if value is None:
        return False
    if value.const_value is not None:
        return bool((value.const_value.numpy() >= 0).all())
    maker = value.producer()
    if maker is None:
        return False
    if maker.op_type == "Range":
        start, _, step = (v.const_value if v is not None else None for v in maker.inputs)
        return start is not None and step is not None and start.numpy().item() >= 0 and step.numpy().item() > 0
    if maker.op_type in SUMS:
        return all(_counts(v) for v in maker.inputs)
    return maker.op_type in MOVES and _counts(maker.inputs[0])


def _in_a_row(node: ir.Node) -> bool:
    """Does a Reshape leave one axis? Then the rows picked are single entries: all axes were picked along."""
    target = node.inputs[1]
    joined = _maker(target, "Concat")
    if joined is not None and len(joined.inputs) == 1:
        target = joined.inputs[0]
    return target is not None and target.const_value is not None and target.const_value.numpy().tolist() == [-1]


def _terms(flat: ir.Value, count: int) -> list[ir.Value] | None:
    """The terms of a sum, the last index first, then the one in front of it, ...: given out from first to last."""
    terms: list[ir.Value] = []
    value: ir.Value | None = flat
    while len(terms) < count - 1:
        total = _maker(value, "Add")
        if total is None or total.inputs[1] is None:
            return None
        terms.append(total.inputs[1])
        value = total.inputs[0]
    return [*terms, value] if value is not None else None


def _over(term: ir.Value, x: ir.Value, axes: set[int]) -> ir.Value | None:
    """The index that is multiplied with the sizes of all these axes of x."""
    scaled = _maker(term, "Mul")
    if scaled is None:
        return None
    index, size = scaled.inputs
    return index if size is not None and _size(size, x) == axes else None


def _size(value: ir.Value, x: ir.Value) -> set[int] | None:
    """Of which axes of x this number is the size."""
    factors = _maker(value, "Mul")
    if factors is not None:
        parts = [_size(v, x) if v is not None else None for v in factors.inputs]
        one, other = parts
        return None if one is None or other is None or one & other else one | other
    if value.const_value is not None:
        return _axes_so_large(value.const_value.numpy(), x)
    entry = _maker(value, "Gather")
    if entry is None or entry.inputs[1] is None or entry.inputs[1].const_value is None:
        return None
    shape = _maker(entry.inputs[0], "Shape")
    axis = entry.inputs[1].const_value.numpy().reshape(-1)
    return {int(axis[0])} if shape is not None and shape.inputs[0] is x and len(axis) == 1 and axis[0] >= 0 else None


def _axes_so_large(number: Array, x: ir.Value) -> set[int] | None:
    """The last axes of x, if they have so many entries."""
    sizes = [d if isinstance(d, int) else None for d in x.shape] if x.shape is not None else []
    for first in range(1, len(sizes)):
        known = [d for d in sizes[first:] if d is not None]
        if len(known) == len(sizes) - first and number.size == 1 and math.prod(known) == number.item():
            return set(range(first, len(sizes)))
    return None


def _shape_of(target: ir.Value | None, flat: ir.Value) -> bool:
    """Is this the shape of the index?"""
    joined = _maker(target, "Concat")
    if joined is not None and len(joined.inputs) == 1:
        target = joined.inputs[0]
    shape = _maker(target, "Shape")
    return shape is not None and shape.inputs[0] is flat and not shape.attributes


def _maker(value: ir.Value | None, *kinds: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in ("Cast", "Identity") and node.op_type not in kinds:
        if node.op_type == "Cast" and node.attributes.get_int("to") not in (ir.DataType.INT64, ir.DataType.INT32):
            return None
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node if node is not None and node.op_type in kinds else None
