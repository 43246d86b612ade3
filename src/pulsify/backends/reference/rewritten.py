"""What onnx's evaluator takes in one form only is put in that form, in the evaluator's own copy of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from pulsify.core.errors import NotSupported

FIRST = -(1 << 62)  # where a slice backwards ends


def rewrite(model: ir.Model) -> None:
    """Scans along the first axis, forwards; running sums along an axis that is a single number.

    Raises NotSupported if that takes a rank that nothing in the model says.
    """
    if any(n.op_type == "Scan" for n in model.graph):
        ShapeInferencePass()(model)
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type == "Scan" and node.domain == "":
                _scan_forwards(graph, node)
            elif node.op_type == "CumSum" and node.domain == "":
                axis = node.inputs[1]
                assert axis is not None
                node.replace_input_with(1, _before(graph, node, "Reshape", [axis, _ints(graph, node, [])]))


def _scan_forwards(graph: ir.Graph, node: ir.Node) -> None:
    count = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - count
    for i, value in enumerate(node.inputs[states:]):
        axis, backwards = _of(node, "input", i)
        if value is None or not (axis or backwards):
            continue
        if backwards:
            value = _before(graph, node, "Slice", _backwards(graph, node, value, axis))
        if axis:
            value = _before(graph, node, "Transpose", [value], perm=_to_front(node, node.inputs[states + i], axis))
        node.replace_input_with(states + i, value)
    for i, out in enumerate(list(node.outputs[states:])):
        axis, backwards = _of(node, "output", i)
        if axis or backwards:
            _settle_output(graph, node, out, axis, bool(backwards))
    for side in ("input", "output"):
        for kind in ("axes", "directions"):
            node.attributes.pop(f"scan_{side}_{kind}", None)


def _settle_output(graph: ir.Graph, node: ir.Node, out: ir.Value, axis: int, backwards: bool) -> None:
    """What is collected along the first axis, forwards, is turned and moved; that takes over the output's name."""
    perm = _to_front(node, out, axis)
    last = ir.Node("", "Transpose", [out], [ir.AttrInt64s("perm", [perm.index(a) for a in range(len(perm))])])
    result = last.outputs[0]
    out.replace_all_uses_with(result, replace_graph_outputs=True)
    last.replace_input_with(0, out)
    graph.insert_after(node, last)
    result.name, result.shape, result.type = out.name, out.shape, out.type
    out.name, out.shape = f"{out.name}/collected", None
    if backwards:
        last.replace_input_with(0, _before(graph, last, "Slice", _backwards(graph, last, out, 0)))


def _of(node: ir.Node, side: str, i: int) -> tuple[int, int]:
    """Axis and direction of a scanned value."""
    found = []
    for kind in ("axes", "directions"):
        listed = node.attributes.get(f"scan_{side}_{kind}")
        found.append(int(listed.as_ints()[i]) if listed is not None and i < len(listed.as_ints()) else 0)
    return found[0], found[1]


def _to_front(node: ir.Node, value: ir.Value | None, axis: int) -> list[int]:
    if value is None or value.shape is None:
        raise NotSupported(
            "onnx's evaluator scans along the first axis only, and the rank of what it scans is unknown",
            node=str(node.name), op=node.op_type, target="reference", hint="take backend='ort' or 'torch'",
        )  # fmt: skip
    rank = len(value.shape)
    return [axis % rank, *(a for a in range(rank) if a != axis % rank)]


def _backwards(graph: ir.Graph, before: ir.Node, value: ir.Value, axis: int) -> list[ir.Value]:
    return [value, *(_ints(graph, before, [n]) for n in (-1, FIRST, axis, -1))]


def _ints(graph: ir.Graph, before: ir.Node, numbers: Sequence[int]) -> ir.Value:
    made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.array(numbers, np.int64)))])
    graph.insert_before(before, made)
    return made.outputs[0]


def _before(graph: ir.Graph, before: ir.Node, op: str, inputs: Sequence[ir.Value], **attrs: list[int]) -> ir.Value:
    made = ir.Node("", op, inputs, [ir.AttrInt64s(k, v) for k, v in attrs.items()])
    graph.insert_before(before, made)
    return made.outputs[0]
