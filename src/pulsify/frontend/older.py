"""Operators of old opsets that ONNX's own converter gives another meaning: they pass it by under another domain.

Upsample 7 to 9, Resize 10     asymmetric places, rounded down (up where it shrinks)     the converter says half_pixel
Hardmax before 13              one maximum of all axes from `axis` on     the converter says one of each column
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.core.errors import InvalidModel
from pulsify.frontend.placing import Array, before, constant_before, instead

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
        x = _resized(node, x, constant_before(node, np.minimum(scales, 1)), mode, "ceil")
        scales = np.maximum(scales, 1)
    kept = node.inputs[1] if scales is None else constant_before(node, scales)
    _declared(node, _resized(node, x, kept, mode, "floor"))


def _resized(node: ir.Node, x: ir.Value | None, scales: ir.Value | None, mode: str, nearest: str) -> ir.Value:
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
    return before(node, "Resize", [x, None, scales], [ir.AttrString(k, v) for k, v in how.items()], str(node.name))


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
    shape = before(node, "Shape", node.inputs)
    flat = before(node, "Flatten", node.inputs, [ir.AttrInt64("axis", axis)])
    found = before(node, "Hardmax", [flat], [ir.AttrInt64("axis", -1)], str(node.name))
    _declared(node, before(node, "Reshape", [found, shape]))


def _declared(node: ir.Node, made: ir.Value) -> None:
    """In its place, with the type and sizes that were declared for it."""
    made.type, made.shape = node.outputs[0].type, node.outputs[0].shape
    instead(node, made)
