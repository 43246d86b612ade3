"""Operators of opset 27 and 28, of which ONNX Runtime has some as its own, as operators of opset 26.

ONNX Runtime opens no models of opset 27 and later. Whatever else is in them has the same meaning in opset 26, or they
are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from pulsify.core.errors import InvalidModel
from pulsify.frontend.linear_attention import write_linear_attention
from pulsify.frontend.placing import before, constant_before, drop, instead, is_read, replace_output

LATEST = 26  # the newest opset of ONNX Runtime
NEWER = {  # with what docs/operators.md says of them; the first two also in the domain com.microsoft
    "CausalConvWithState": "written out: a Conv behind its state, or behind zeros",
    "LinearAttention": "written out: a Scan over frames whose state is its matrix",
    "SwiGLU": "written out: a Swish and a product",
    "TensorScatter": "where its places are constants: the parts it writes and leaves, joined",
}
MICROSOFT = "com.microsoft"


def write_newer(model: ir.Model) -> None:
    """In place, in the main graph, in bodies and in functions."""
    writers: dict[str, Callable[[ir.Node], None]] = {
        "CausalConvWithState": _conv,
        "LinearAttention": write_linear_attention,
        "SwiGLU": _swiglu,
        "TensorScatter": _write_cache,
    }
    for graph in [model.graph, *(f.graph for f in model.functions.values())]:
        for node in list(graph.all_nodes()):
            own = node.domain in ("", "ai.onnx") or (
                node.domain == MICROSOFT and node.op_type in ("CausalConvWithState", "LinearAttention")
            )
            if own and node.op_type in writers:
                writers[node.op_type](node)
    _lower_opset(model)


def is_newer(model: ir.Model) -> bool:
    """Is it beyond ONNX Runtime?"""
    return LATEST < _version(model) <= onnx.defs.onnx_opset_version()


def _version(model: ir.Model) -> int:
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))


def _lower_opset(model: ir.Model) -> None:
    """What is left in the model means the same in the newest opset that ONNX Runtime takes."""
    version = _version(model)
    if version <= LATEST or version > onnx.defs.onnx_opset_version():  # what nobody knows is rejected as it is
        return
    for node in model.graph.all_nodes():
        if node.domain in ("", "ai.onnx") and not _is_older(node, version):
            raise InvalidModel(
                f"{node.op_type} node '{node.name}' is of opset {version}, and ONNX Runtime has opsets up to {LATEST}; "
                f"export the model with opset {LATEST} or lower"
            )
    for name in [n for n in ("", "ai.onnx") if n in model.opset_imports]:
        model.opset_imports[name] = LATEST


def _is_older(node: ir.Node, version: int) -> bool:
    """Later versions of operators take more types and attributes, and are the same otherwise."""
    if not onnx.defs.has(node.op_type):
        return True  # said where it is needed
    if onnx.defs.get_schema(node.op_type, version).since_version <= LATEST:
        return True
    try:
        before_it = onnx.defs.get_schema(node.op_type, LATEST)
    except onnx.defs.SchemaError:
        return False
    return node.attributes.keys() <= before_it.attributes.keys()


def _swiglu(node: ir.Node) -> None:
    gate, value = node.inputs
    scaled = gate
    if (alpha := node.attributes.get_float("alpha", 1.0)) != 1:
        factor = before(node, "CastLike", [constant_before(node, np.array(alpha, np.float32)), gate])
        scaled = before(node, "Mul", [gate, factor])
    swish = before(node, "Mul", [gate, before(node, "Sigmoid", [scaled])])
    instead(node, before(node, "Mul", [swish, value]))


def _conv(node: ir.Node) -> None:
    """Depthwise, over what is in front of the frames and the frames."""
    x, weight, *rest = node.inputs
    bias, past = (*rest, None, None)[:2]
    shape = None if weight is None or weight.shape is None else list(weight.shape)
    if shape is None or not all(isinstance(n, int) for n in shape):
        return
    channels, _, kernel = (int(n) for n in shape if isinstance(n, int))
    name = node.name or node.op_type
    if past is not None:
        x = before(node, "Concat", [past, x], [ir.AttrInt64("axis", 2)])
    pads = ir.AttrInt64s("pads", [0 if past is not None else kernel - 1, 0])
    out = before(node, "Conv", [x, weight, bias], [ir.AttrInt64("group", channels), pads], name=name)
    if node.attributes.get_string("activation", "none") in ("silu", "swish"):
        out = before(node, "Mul", [out, before(node, "Sigmoid", [out])])
    if is_read(node, 1):
        if past is None:
            around = constant_before(node, np.array([0, 0, kernel - 1, 0, 0, 0]))
            x = before(node, "Pad", [x, around])
        size = before(node, "Shape", [x], [ir.AttrInt64("start", 2), ir.AttrInt64("end", 3)])
        start = before(node, "Sub", [size, constant_before(node, np.array([kernel - 1]))])
        replace_output(node, 1, before(node, "Slice", [x, start, size, constant_before(node, np.array([2]))]))
    replace_output(node, 0, out)
    drop(node)


def _write_cache(node: ir.Node) -> None:
    """Constant places that are the same for all rows; where they are data, the node stays, and is refused."""
    cache, update, *places = node.inputs
    start = 0
    if places and places[0] is not None:
        known = places[0].const_value
        if known is None or len(set(known.numpy().reshape(-1).tolist())) != 1:
            return
        start = int(known.numpy().reshape(-1)[0])
    axis = node.attributes.get_int("axis", -2)
    size, most = (None if v is None or v.shape is None else v.shape[axis] for v in (update, cache))
    if not isinstance(size, int) or not isinstance(most, int) or start + size > most:
        return

    def part(first: int, end: int) -> ir.Value:
        cuts = [constant_before(node, np.array([n])) for n in (first, end, axis)]
        return before(node, "Slice", [cache, *cuts])

    parts: list[ir.Value | None] = [update]
    if start:
        parts.insert(0, part(0, start))
    if start + size < most:
        parts.append(part(start + size, most))
    instead(node, before(node, "Concat", parts, [ir.AttrInt64("axis", axis)]))
