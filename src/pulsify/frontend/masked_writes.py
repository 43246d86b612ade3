"""Writes behind a mask, as a choice: `y[y < 0] = 0`, `y[m] *= 0.1`, `y[m] = z[m]`.

Exporters list the places where the mask holds, look up what is there, and write it back: how many there are depends on
the data. Entry by entry it is the same as a choice:

    places = Transpose(NonZero(m))
    new    = Mul(GatherND(y, places), 0.1)       -->      Where(m, Mul(y, 0.1), y)
    y      = ScatterND(y, places, new)

A mask of whole rows (y[m] = 0 with m of [B, T] and y of [B, T, C]) is spread over them: Expand(Unsqueeze(m), Shape(y)).
What is written is then listed row by row, [n, C], and flattened.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.core.traits import traits
from pulsify.frontend.placing import before, instead

WRITE = "pulsify.write"  # marks a choice that stands for a write: it is as large as its third input
RESHAPES = ("Expand", "Reshape", "Squeeze", "Unsqueeze", "Identity")  # a list of what is written stays that list
PARTS = ("Slice", "Gather", "Transpose", "Shape", "ReduceMean", "ReduceMax", "ReduceSum")  # of which masks are made


@dataclass(frozen=True)
class Masked:
    """Where a write goes: `mask` has an entry for every entry of the data.

    rows: the mask of whole rows that it was spread from, if it was; inner: how many axes a row has.
    """

    mask: ir.Value
    data: ir.Value
    rows: ir.Value | None = None
    inner: int = 0


def choose_by_mask(model: ir.Model) -> None:
    """In place, in the main graph and in bodies."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "ScatterND" or node.domain not in ("", "ai.onnx"):
            continue
        data, places, updates = node.inputs
        mask, replaced = _mask(places), node.attributes.get_string("reduction", "none") == "none"
        if data is None or updates is None or mask is None or not replaced or not _as_large(mask, data):
            continue
        new = _written(node, updates, _masked(mask, data))
        if new is not None:
            mask = _without_expand(mask)
            if mask.dtype != ir.DataType.BOOL:
                mask = before(node, "Cast", [mask], [ir.AttrInt64("to", ir.DataType.BOOL)])
            chosen = before(node, "Where", [mask, new, data])
            chosen.shape = data.shape
            maker = chosen.producer()
            assert maker is not None
            maker.meta[WRITE] = True
            instead(node, chosen)


def _masked(mask: ir.Value, data: ir.Value) -> Masked:
    """The mask, and the rows that it is spread from."""
    spread = _without_expand(mask)
    maker = spread.producer()
    if maker is None or maker.op_type != "Unsqueeze" or len(maker.inputs) < 2 or maker.inputs[1] is None:
        return Masked(mask, data)
    axes = maker.inputs[1].const_value
    last = [] if axes is None else sorted(axes.numpy().reshape(-1).tolist())
    rows = maker.inputs[0]
    ranks_known = rows is not None and rows.shape is not None and data.shape is not None
    fits = not ranks_known or len(rows.shape) + len(last) == len(data.shape)  # type: ignore[union-attr,arg-type]
    if not last or last != list(range(-len(last), 0)) or not fits:
        return Masked(mask, data)
    return Masked(mask, data, rows, len(last))


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
    like = _before_writes(data)
    seen, todo = {x}, [x]
    while todo:
        value = todo.pop()
        if any(value is d or _expanded_to(value, d) or _same_shape(value, d) for d in like):
            continue
        arrays = _arrays(value)  # as large as what it is made of
        if not arrays:
            return False
        todo += arrays - seen
        seen |= arrays
    return True


def _before_writes(data: ir.Value) -> list[ir.Value]:
    """The data, and what it was before earlier writes, which left its shape: exporters turn the axis to the front."""
    found, value, perm = [data], data, tuple[int, ...]()
    while (maker := value.producer()) is not None and maker.inputs[0] is not None:
        if maker.op_type == "Transpose":
            turn = tuple(maker.attributes.get_ints("perm", ()))
            perm = tuple(turn[i] for i in perm) if perm else turn
            if not turn:
                break
        elif WRITE not in maker.meta and maker.op_type not in ("ScatterND", "ScatterElements", "Identity"):
            break
        before_it = maker.inputs[2 if WRITE in maker.meta else 0]
        assert before_it is not None
        value = before_it
        if perm == tuple(range(len(perm))):
            found.append(value)
    return found


def _expanded_to(x: ir.Value, data: ir.Value) -> bool:
    maker = x.producer()
    if maker is None or maker.op_type != "Expand" or maker.inputs[1] is None:
        return False
    shape = maker.inputs[1].producer()
    if shape is None or shape.op_type != "Shape" or shape.inputs[0] is not data:
        return False
    return not shape.attributes.get_int("start", 0) and "end" not in shape.attributes


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


def _written(node: ir.Node, value: ir.Value, to: Masked) -> ir.Value | None:
    """What is written, for all entries. Whatever the list looked like before, it has an entry for every place here."""
    by_row = spread = False
    while (maker := value.producer()) is not None and maker.inputs and maker.inputs[0] is not None:
        cut = maker.op_type == "Slice" and _from_the_first(maker)
        if not cut and maker.op_type not in RESHAPES:
            break
        if cut and spread:
            return None  # one entry for all places
        spread = spread or maker.op_type == "Expand"
        by_row = by_row or (maker.op_type == "Reshape" and to.rows is not None)
        value = maker.inputs[0]
    return _everywhere(node, value, to, by_row)


def _everywhere(node: ir.Node, value: ir.Value, to: Masked, by_row: bool) -> ir.Value | None:
    """Of lists of entries: the same for all entries; None if it is not made one by one. by_row: or lists of rows."""
    if value.const_value is not None:
        array = value.const_value
        return value if array.size == 1 or (by_row and len(array.shape) <= to.inner) else None
    maker = value.producer()
    if maker is None or maker.inputs[0] is None:
        return None
    if maker.op_type == "GatherND":
        return maker.inputs[0] if _looks_up(maker, to, by_row) and _as_large(maker.inputs[0], to.data) else None
    if maker.op_type in RESHAPES:  # an axis more, and it would meet other entries of another list
        same = maker.op_type == "Identity" or _in_a_row(maker) or maker.inputs[0].const_value is not None
        by_row = by_row or (maker.op_type == "Reshape" and to.rows is not None)
        return _everywhere(node, maker.inputs[0], to, by_row) if same else None
    if not traits(maker.op_type, maker.domain).elementwise or len(maker.outputs) != 1:
        return None
    inputs = [_everywhere(node, i, to, by_row) if i is not None else None for i in maker.inputs]
    if any(new is None and old is not None for new, old in zip(inputs, maker.inputs, strict=True)):
        return None
    return before(node, maker.op_type, inputs, list(maker.attributes.values()))


def _looks_up(node: ir.Node, to: Masked, by_row: bool) -> bool:
    """Does a GatherND list the very entries, or rows, that are written?"""
    mask, batched = _mask(node.inputs[1]), node.attributes.get_int("batch_dims", 0)
    if mask is None or batched:
        return False
    if by_row and to.rows is not None and _same(mask, to.rows):
        return True
    return _same(_without_expand(mask), _without_expand(to.mask))


def _same(a: ir.Value | None, b: ir.Value | None, depth: int = 8) -> bool:
    """Are these one value, or made alike? Masks are often computed twice: y[y > 2] = -y[y > 2]."""
    if a is b:
        return True
    if a is None or b is None or not depth:
        return False
    if a.const_value is not None and b.const_value is not None:
        x, y = a.const_value.numpy(), b.const_value.numpy()
        return x.dtype == y.dtype and np.array_equal(x, y)
    first, second = a.producer(), b.producer()
    if first is None or second is None or first.op_identifier() != second.op_identifier():
        return False
    kind = traits(first.op_type, first.domain)
    plain = (kind.elementwise and not kind.random) or first.op_type in (*RESHAPES, *PARTS)
    alike = plain and first.attributes == second.attributes and len(first.inputs) == len(second.inputs)
    return (
        alike
        and a.index() == b.index()
        and all(_same(x, y, depth - 1) for x, y in zip(first.inputs, second.inputs, strict=True))
    )


def _in_a_row(node: ir.Node) -> bool:
    """Does a Reshape leave one axis?"""
    target = node.inputs[1].const_value if node.op_type == "Reshape" and node.inputs[1] is not None else None
    return target is not None and target.numpy().tolist() == [-1]


def _from_the_first(node: ir.Node) -> bool:
    """Does it cut a list behind some entry? As many are written as there are places, so it keeps all of them."""
    start = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return start is not None and not start.numpy().any() and len(node.inputs) < 5
