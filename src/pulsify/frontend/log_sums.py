"""Running sums of exponentials, as a scan: the maximum over all frames that is taken off in between cancels.

    m = ReduceMax(x)                                       total = -inf
    y = Log(CumSum(Exp(x - m))) + m          -->           every frame: total = log(exp(total) + exp(x))

So `logcumsumexp` is exported by torch's newer exporter (minGRU, scans in log space). The larger one of `total` and the
frame is taken off instead: nothing overflows, and no later frame decides when a sum vanishes.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from pulsify.frontend.placing import before, constant_before, instead

CAST_LIKE = 15  # the first opset that has it


def scan_log_sums(model: ir.Model) -> bool:
    """In place, in the main graph, along axes whose size is free. Were there any?"""
    before_it, version = len(model.graph), model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
    for node in list(model.graph):
        if node.op_type != "Add" or node.domain not in ("", "ai.onnx"):
            continue
        found = _log_sum(node)
        if found is not None and (found[0].dtype is not None or version >= CAST_LIKE):
            instead(node, _scanned(node, *found))
    return len(model.graph) != before_it


def _log_sum(node: ir.Node) -> tuple[ir.Value, int] | None:
    """Of the last addition: what is summed up, and along which axis."""
    for log, top in (node.inputs, reversed(list(node.inputs))):
        total = _maker(_uncast(_input_of(log, "Log")), "CumSum")
        most = _maker(top, "ReduceMax")
        shifted = _maker(_input_of(_uncast(total.inputs[0]), "Exp"), "Sub") if total is not None else None
        if total is None or most is None or shifted is None or shifted.inputs[1] is not top:
            continue
        x, axis = shifted.inputs[0], _axis(total.inputs[1])
        if x is None or x is not most.inputs[0] or axis is None:
            continue
        plain = not any(total.attributes.get_int(name, 0) for name in ("reverse", "exclusive"))
        rank = None if x.shape is None else len(x.shape)
        fixed = x.shape is not None and isinstance(x.shape[axis], int)
        if plain and not fixed and _same(_reduced(most), axis, rank):
            return x, axis
    return None


def _maker(value: ir.Value | None, op: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op and node.domain in ("", "ai.onnx") else None


def _input_of(value: ir.Value | None, op: str) -> ir.Value | None:
    node = _maker(value, op)
    return None if node is None else node.inputs[0]


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """Summed up in double precision, say."""
    return _input_of(value, "Cast") or value


def _axis(value: ir.Value | None) -> int | None:
    numbers = None if value is None or value.const_value is None else value.const_value.numpy().reshape(-1)
    return int(numbers[0]) if numbers is not None and len(numbers) == 1 else None


def _reduced(node: ir.Node) -> int | None:
    """The one axis that it reduces and keeps; an attribute before opset 18."""
    if not node.attributes.get_int("keepdims", 1):
        return None
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
        return axes[0] if len(axes) == 1 else None
    return _axis(node.inputs[1]) if len(node.inputs) > 1 else None


def _same(one: int | None, other: int, rank: int | None) -> bool:
    return one is not None and (one == other or (rank is not None and one % rank == other % rank))


def _scanned(node: ir.Node, x: ir.Value, axis: int) -> ir.Value:
    first = before(node, "Gather", [x, constant_before(node, np.array(0))], [ir.AttrInt64("axis", axis)])
    low, zero = (_like(node, n, x) for n in (-math.inf, 0.0))
    start = before(node, "Expand", [low, before(node, "Shape", [first])])
    attributes = [
        ir.AttrGraph("body", _body(zero)),
        ir.AttrInt64("num_scan_inputs", 1),
        ir.AttrInt64s("scan_input_axes", [axis]),
        ir.AttrInt64s("scan_output_axes", [axis]),
    ]
    scan = ir.Node("", "Scan", [start, x], attributes, num_outputs=2, name=node.name)
    assert isinstance(node.graph, ir.Graph)
    node.graph.insert_before(node, scan)
    return scan.outputs[1]


def _like(node: ir.Node, number: float, x: ir.Value) -> ir.Value:
    """A number of the type of x, which files of the newer exporter need not declare."""
    if x.dtype is not None:
        return constant_before(node, np.array(number, x.dtype.numpy()))
    return before(node, "CastLike", [constant_before(node, np.array(number, np.float32)), x])


def _body(zero: ir.Value) -> ir.Graph:
    """log(exp(total) + exp(frame)), with the larger one taken off; of two that are infinite, it is that."""
    total, frame = (ir.Value(name=name) for name in ("total", "frame"))
    nodes: list[ir.Node] = []

    def op(kind: str, *inputs: ir.Value) -> ir.Value:
        nodes.append(ir.Node("", kind, list(inputs)))
        return nodes[-1].outputs[0]

    high, low = op("Max", total, frame), op("Min", total, frame)
    apart = op("Where", op("Equal", high, low), zero, op("Sub", low, high))
    after = op("Add", high, op("Softplus", apart))
    return ir.Graph([total, frame], [after, op("Identity", after)], nodes=nodes, name="log_sum")
