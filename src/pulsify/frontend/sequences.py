"""Lists of tensors of which each is picked by its place: the tensors themselves, or slices of what was split.

    pieces = SplitToSequence(x, axis=1)              -->
    y = SequenceAt(pieces, t)                              y = Gather(x, t, axis=1)
    count = SequenceLength(pieces)                         count = Gather(Shape(x), 1)

As ONNX Runtime has it, `keepdims=0` holds with sizes of the pieces, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import onnx_ir as ir

READERS = ("SequenceAt", "SequenceLength")


def pick_pieces(model: ir.Model) -> None:
    """In place, in the main graph and in bodies. A list that is used otherwise stays a list."""
    numbers = count()
    for node in list(model.graph.all_nodes()):
        if node.op_type not in ("SplitToSequence", "SequenceConstruct") or node.outputs[0].is_graph_output():
            continue
        users = [use.node for use in node.outputs[0].uses()]
        written = {user: _Written(user.name or user.op_type, numbers) for user in users if user.op_type in READERS}
        values = {user: _picked(node, user, each) for user, each in written.items()}
        if len(values) < len(users) or any(value is None for value in values.values()):
            continue
        for user, value in values.items():
            assert value is not None and user.graph is not None
            for new in value.nodes:
                user.graph.insert_before(user, new)
            old, new_value = user.outputs[0], value.value
            new_value.name, old.name = old.name, None  # an output of the model keeps its name
            new_value.shape, new_value.type = old.shape, old.type
            old.replace_all_uses_with(new_value, replace_graph_outputs=True)
            user.graph.remove(user, safe=True)
        assert node.graph is not None
        node.graph.remove(node, safe=True)


class _Written:
    """A value, and the nodes that make it, in order."""

    def __init__(self, name: str, numbers: Iterator[int]) -> None:
        self.name, self.numbers = name, numbers
        self.nodes: list[ir.Node] = []
        self.value: ir.Value

    def op(self, kind: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        attrs = [ir.AttrInt64(k, v) for k, v in attributes.items()]
        self.value = self._made(ir.Node("", kind, list(inputs), attrs, name=f"{self.name}/{kind}"))
        return self.value

    def number(self, value: int, scalar: bool = False) -> ir.Value:
        tensor = ir.tensor(np.array(value if scalar else [value], np.int64))
        return self._made(ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)]))

    def _made(self, node: ir.Node) -> ir.Value:
        node.outputs[0].name = f"{self.name}/piece_{next(self.numbers)}"  # no other has it, in whichever body
        self.nodes.append(node)
        return node.outputs[0]


def _picked(node: ir.Node, user: ir.Node, written: _Written) -> _Written | None:
    """What stands for the piece, or for the number of pieces; None if that is not certain."""
    place = number_of(user.inputs[1]) if user.op_type == "SequenceAt" else None
    if node.op_type == "SequenceConstruct":
        if user.op_type == "SequenceLength":
            written.value = written.number(len(node.inputs), scalar=True)
        elif place is None or not -len(node.inputs) <= place < len(node.inputs):
            return None
        else:
            piece = node.inputs[place]
            assert piece is not None
            written.op("Identity", piece)
        return written
    return _piece(node, user, place, written)


def _piece(node: ir.Node, user: ir.Node, place: int | None, written: _Written) -> _Written | None:
    """Of what was split."""
    whole, sizes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert whole is not None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    kept = node.attributes["keepdims"].as_int() if "keepdims" in node.attributes else 1
    size = 1 if sizes is None or not kept else number_of(sizes) if _is_scalar(sizes) else None
    if user.op_type == "SequenceLength":
        if size != 1:
            return None
        written.op("Gather", written.op("Shape", whole), written.number(axis, scalar=True), axis=0)
    elif size == 1:
        index = user.inputs[1]
        assert index is not None
        value = written.op("Gather", whole, index, axis=axis)
        if kept:
            written.op("Unsqueeze", value, written.number(axis))
    elif place is None or place < 0:
        return None
    elif size is not None:
        ends = written.number(place * size), written.number((place + 1) * size)
        written.op("Slice", whole, *ends, written.number(axis))
    else:
        assert sizes is not None
        first, here, behind = (written.number(n) for n in (0, place, place + 1))
        start = written.op("ReduceSum", written.op("Slice", sizes, first, here), keepdims=1) if place else first
        end = written.op("ReduceSum", written.op("Slice", sizes, first, behind), keepdims=1)
        written.op("Slice", whole, start, end, written.number(axis))
    return written


def _is_scalar(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.shape.rank() == 0


def number_of(value: ir.Value | None) -> int | None:
    """A constant of one number."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return int(value.const_value.numpy().reshape(()))
