"""LinearAttention as a scan: the state is a matrix of every head, [B, H, keys, values].

    S  = exp(decay) * S + k * update        update = v, or beta * (v - k @ (exp(decay) * S)) by the delta rule
    o  = scale * q @ S

Heads of queries that share keys and values are rows of one product.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.frontend.placing import before, constant_before, drop, is_read, replace_output

SHORT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)  # whose state is kept in float32
GATED = ("gated", "gated_delta")
DELTA = ("delta", "gated_delta")


def write_linear_attention(node: ir.Node) -> None:
    """In place; left as it is where an input is missing."""
    query, key, value, past, decay, beta = (*node.inputs, None, None, None)[:6]
    rule = node.attributes.get_string("update_rule", "gated_delta")
    assert query is not None and key is not None and value is not None
    if (rule in GATED and decay is None) or (rule in DELTA and beta is None) or query.dtype is None:
        return
    dtype = query.dtype
    wide = ir.DataType.FLOAT if dtype in SHORT else dtype
    heads, shared = node.attributes["kv_num_heads"].as_int(), node.attributes["q_num_heads"].as_int()

    def by_head(x: ir.Value, *sizes: int) -> ir.Value:
        x = x if wide == dtype else before(node, "Cast", [x], [ir.AttrInt64("to", int(wide))])
        return before(node, "Reshape", [x, constant_before(node, np.array([0, 0, *sizes]))])

    q, k, v = by_head(query, heads, shared // heads, -1), by_head(key, heads, 1, -1), by_head(value, heads, 1, -1)
    scanned = {"q": before(node, "Mul", [q, _scale(node, q, wide)]), "k": k, "v": v}
    if rule in GATED and decay is not None:
        scanned["g"] = before(node, "Exp", [by_head(decay, heads, -1, 1)])
    if rule in DELTA and beta is not None:
        scanned["b"] = by_head(beta, -1, 1, 1)
    start = _zeros(node, k, v, wide) if past is None else past
    if past is not None and wide != dtype:
        start = before(node, "Cast", [past], [ir.AttrInt64("to", int(wide))])
    attributes = [
        ir.AttrGraph("body", _body(rule, list(scanned))),
        ir.AttrInt64("num_scan_inputs", len(scanned)),
        ir.AttrInt64s("scan_input_axes", [1] * len(scanned)),
        ir.AttrInt64s("scan_output_axes", [1]),
    ]
    scan = ir.Node("", "Scan", [start, *scanned.values()], attributes, num_outputs=2, name=node.name)
    assert isinstance(node.graph, ir.Graph)
    node.graph.insert_before(node, scan)
    state, frames = scan.outputs
    out = before(node, "Reshape", [frames, constant_before(node, np.array([0, 0, -1]))])
    for i, made in ((0, out), (1, state)):
        if is_read(node, i):
            replace_output(
                node, i, made if wide == dtype else before(node, "Cast", [made], [ir.AttrInt64("to", int(dtype))])
            )
    drop(node)


def _scale(node: ir.Node, q: ir.Value, dtype: ir.DataType) -> ir.Value:
    """As it is given, or one over the root of the keys' size."""
    if given := node.attributes.get_float("scale", 0.0):
        return constant_before(node, np.array(given, dtype.numpy()))
    size = before(node, "Shape", [q], [ir.AttrInt64("start", 4), ir.AttrInt64("end", 5)])
    size = before(node, "Cast", [size], [ir.AttrInt64("to", int(dtype))])
    return before(node, "Reciprocal", [before(node, "Sqrt", [size])])


def _zeros(node: ir.Node, k: ir.Value, v: ir.Value, dtype: ir.DataType) -> ir.Value:
    """[B, heads, keys, values]; k and v are [B, T, heads, 1, ...]."""

    def size(x: ir.Value, axis: int) -> ir.Value:
        return before(node, "Shape", [x], [ir.AttrInt64("start", axis), ir.AttrInt64("end", axis + 1)])

    sizes = before(node, "Concat", [size(k, 0), size(k, 2), size(k, 4), size(v, 4)], [ir.AttrInt64("axis", 0)])
    return before(node, "Expand", [constant_before(node, np.array(0, dtype.numpy())), sizes])


def _body(rule: str, names: list[str]) -> ir.Graph:
    """One frame: q [B, H, shared, keys], k [B, H, 1, keys], v [B, H, 1, values], g [B, H, keys, 1], b [B, H, 1, 1]."""
    state, frame = ir.Value(name="state"), {n: ir.Value(name=n) for n in names}
    nodes: list[ir.Node] = []

    def op(kind: str, *inputs: ir.Value) -> ir.Value:
        attributes = [ir.AttrInt64s("perm", [0, 1, 3, 2])] if kind == "Transpose" else []
        nodes.append(ir.Node("", kind, list(inputs), attributes))
        return nodes[-1].outputs[0]

    kept = op("Mul", frame["g"], state) if rule in GATED else state
    update = frame["v"]
    if rule in DELTA:
        update = op("Mul", frame["b"], op("Sub", update, op("MatMul", frame["k"], kept)))
    after = op("Add", kept, op("Mul", op("Transpose", frame["k"]), update))
    out = op("MatMul", frame["q"], after)
    return ir.Graph([state, *frame.values()], [after, out], nodes=nodes, name="linear_attention")
