"""Writes behind a mask, as a choice: `y[y < 0] = 0`, `y[m] *= 0.1`, `y[m] = z[m]`.

Exporters list the places where the mask holds, look up what is there, and write it back: how many there are depends on
the data. Entry by entry it is the same as a choice:

    places = Transpose(NonZero(m))
    new    = Mul(GatherND(y, places), 0.1)       -->      Where(m, Mul(y, 0.1), y)
    y      = ScatterND(y, places, new)
"""

from __future__ import annotations

import onnx_ir as ir

from pulsify.core.traits import traits
from pulsify.frontend.placing import before, instead

RESHAPES = ("Expand", "Reshape", "Squeeze", "Unsqueeze", "Identity")  # a list of what is written stays that list


def choose_by_mask(model: ir.Model) -> None:
    """In place, in the main graph and in bodies."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "ScatterND" or node.domain not in ("", "ai.onnx") or "reduction" in node.attributes:
            continue
        data, places, updates = node.inputs
        mask = _mask(places)
        if data is None or updates is None or mask is None or not _as_large(mask, data):
            continue
        new = _everywhere(node, updates, _without_expand(mask), data)
        if new is not None:
            if mask.dtype != ir.DataType.BOOL:
                mask = before(node, "Cast", [mask], [ir.AttrInt64("to", ir.DataType.BOOL)])
            instead(node, before(node, "Where", [mask, new, data]))


def _mask(places: ir.Value | None) -> ir.Value | None:
    """The mask whose places these are."""
    listed = places.producer() if places is not None else None
    if listed is None or listed.op_type != "Transpose" or not listed.inputs[0]:
        return None
    maker = listed.inputs[0].producer()
    return maker.inputs[0] if maker is not None and maker.op_type == "NonZero" else None


def _without_expand(mask: ir.Value) -> ir.Value:
    maker = mask.producer()
    inner = maker.inputs[0] if maker is not None and maker.op_type == "Expand" else None
    return mask if inner is None else inner


def _as_large(x: ir.Value, data: ir.Value) -> bool:
    """Has it an entry for every entry of the data, and no others? One that is smaller would name a part of them."""
    seen, todo = {x}, [x]
    while todo:
        value = todo.pop()
        if value is data or _expanded_to(value, data) or _same_shape(value, data):
            continue
        arrays = _arrays(value)  # as large as what it is made of
        if not arrays:
            return False
        todo += arrays - seen
        seen |= arrays
    return True


def _expanded_to(x: ir.Value, data: ir.Value) -> bool:
    maker = x.producer()
    if maker is None or maker.op_type != "Expand" or maker.inputs[1] is None:
        return False
    shape = maker.inputs[1].producer()
    return shape is not None and shape.op_type == "Shape" and shape.inputs[0] is data and not shape.attributes


def _same_shape(a: ir.Value, b: ir.Value) -> bool:
    """As the exporter wrote them down."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    return all(m == n and m != ir.SymbolicDim(None) for m, n in zip(a.shape, b.shape, strict=True))


def _arrays(x: ir.Value) -> set[ir.Value]:
    """What an elementwise operator makes it of, single numbers aside."""
    maker = x.producer()
    if maker is None or not traits(maker.op_type, maker.domain).elementwise:
        return set()
    return {i for i in maker.inputs if i is not None and (i.const_value is None or i.const_value.size != 1)}


def _everywhere(node: ir.Node, value: ir.Value, mask: ir.Value, data: ir.Value) -> ir.Value | None:
    """What is written, for all entries; None if it is not made entry by entry."""
    if value.const_value is not None:
        return value if value.const_value.size == 1 else None
    maker = value.producer()
    if maker is None or maker.inputs[0] is None:
        return None
    if maker.op_type == "GatherND":
        looked_up = _mask(maker.inputs[1])
        batched = maker.attributes.get_int("batch_dims", 0)
        same = looked_up is not None and _without_expand(looked_up) is mask and not batched
        return maker.inputs[0] if same and _as_large(maker.inputs[0], data) else None
    if maker.op_type in RESHAPES or (maker.op_type == "Slice" and _from_the_first(maker)):
        return _everywhere(node, maker.inputs[0], mask, data)
    if not traits(maker.op_type, maker.domain).elementwise or len(maker.outputs) != 1:
        return None
    inputs = [_everywhere(node, i, mask, data) if i is not None else None for i in maker.inputs]
    if any(new is None and old is not None for new, old in zip(inputs, maker.inputs, strict=True)):
        return None
    return before(node, maker.op_type, inputs, list(maker.attributes.values()))


def _from_the_first(node: ir.Node) -> bool:
    """Does it cut a list behind some entry? As many are written as there are places, so it keeps all of them."""
    start = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return start is not None and not start.numpy().any() and len(node.inputs) < 5
