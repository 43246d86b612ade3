"""Operators of old opsets that ONNX's own converter gives another meaning: they pass it by under another domain.

Upsample 7 to 9, Resize 10     asymmetric places, rounded down     the converter says half_pixel
Hardmax before 13              one maximum of all axes from `axis` on     the converter says one of each column
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.errors import InvalidModel

Array = np.ndarray[Any, Any]
ASIDE = "pulsify.older"
OLDER = ("Upsample", "Resize", "Hardmax")


def set_aside(model: ir.Model) -> None:
    """Out of the converter's sight."""
    version = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
    for node in model.graph.all_nodes():
        if node.domain in ("", "ai.onnx") and node.op_type in OLDER and (node.op_type != "Resize" or version < 11):
            node.domain = ASIDE
            model.opset_imports[ASIDE] = 1


def put_back(model: ir.Model) -> None:
    """As opset 13 writes what they meant."""
    for node in [n for n in model.graph.all_nodes() if n.domain == ASIDE]:
        _hardmax(node) if node.op_type == "Hardmax" else _resize(node)
    model.opset_imports.pop(ASIDE, None)


def _resize(node: ir.Node) -> None:
    """Scales are an input, or before opset 9 an attribute. Nearest rounds down, and up where it shrinks."""
    written = node.attributes.get("scales")
    scales = np.array(written.as_floats(), np.float32) if written is not None else _known(node.inputs[1])
    mode = node.attributes["mode"].as_string() if "mode" in node.attributes else "nearest"
    mode = {"bilinear": "linear"}.get(mode, mode)
    if scales is None and mode == "nearest":
        raise InvalidModel(
            f"{node.op_type} '{node.name}' of an opset before 11 has scales that are no constant; export with opset 17"
        )
    x = node.inputs[0]
    if scales is not None and mode == "nearest" and (scales < 1).any():
        x = _before(node, _resized(node, x, _constant(node, np.minimum(scales, 1)), mode, "ceil"))
        scales = np.maximum(scales, 1)
    kept = node.inputs[1] if scales is None else _constant(node, scales)
    _instead(node, _resized(node, x, kept, mode, "floor"))


def _resized(node: ir.Node, x: ir.Value | None, scales: ir.Value | None, mode: str, nearest: str) -> ir.Node:
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
    attributes = [ir.AttrString(k, v) for k, v in how.items()]
    return ir.Node("", "Resize", [x, None, scales], attributes, name=node.name)


def _known(value: ir.Value | None) -> Array | None:
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    made = value.producer()
    held = made.attributes.get("value") if made is not None and made.op_type == "Constant" else None
    return None if held is None else held.as_tensor().numpy()


def _hardmax(node: ir.Node) -> None:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
    x = node.inputs[0]
    shape = _before(node, ir.Node("", "Shape", [x]))
    flat = _before(node, ir.Node("", "Flatten", [x], [ir.AttrInt64("axis", axis)]))
    found = _before(node, ir.Node("", "Hardmax", [flat], [ir.AttrInt64("axis", -1)], name=node.name))
    _instead(node, ir.Node("", "Reshape", [found, shape]))


def _constant(node: ir.Node, array: Array) -> ir.Value:
    return _before(node, ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))]))


def _before(node: ir.Node, made: ir.Node) -> ir.Value:
    assert isinstance(node.graph, ir.Graph)
    made.name = made.name or f"{node.name or node.op_type}/{made.op_type}"
    node.graph.insert_before(node, made)
    return made.outputs[0]


def _instead(node: ir.Node, made: ir.Node) -> None:
    out, old = _before(node, made), node.outputs[0]
    out.name, old.name = old.name, None
    out.type, out.shape = old.type, old.shape
    old.replace_all_uses_with(out, replace_graph_outputs=True)
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
