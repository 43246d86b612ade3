"""Nodes to calls of kernels, one after the other, into the scope of the step (or the body) that they are part of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import onnx_ir as ir

from pulsify.backends.native.fuse import copy, groups, write_chain
from pulsify.backends.native.scope import Scope, Site, axis_of
from pulsify.backends.native.table import expression, op, operators
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered
from pulsify.core.boundary import processing
from pulsify.core.errors import NotSupported

STILL = (
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Transpose",
    "Expand",
    "Slice",
    "Split",
    "Identity",
    "Dropout",
    "Gather",
    "Pad",
    "DepthToSpace",
    "SpaceToDepth",
    "Resize",
    "Upsample",
)  # fmt: skip  they may give out the memory of what they read


def write(graph: ir.Graph, scope: Scope) -> None:
    """All nodes of a graph but its constants; NotSupported names the one there is no C for."""
    nodes = [n for n in graph if not all(o in scope.constants for o in n.outputs)]
    try:
        scope.joins.update(_joins(nodes, scope))
        inside = groups(nodes, scope)
    except Uncovered as reason:
        _refuse(next(n for n in nodes if any(o.shape is None or not o.shape.is_static() for o in n.outputs)), reason)
    members: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        if node in inside:
            members.setdefault(inside[node], []).append(node)
    scope.inlined.update(inside)
    for node in nodes:
        if node in inside:
            continue
        chain = [*members.get(node, ()), node]
        scope.comment = _comment(chain, scope)
        try:
            _one(node, chain, scope)
        except Uncovered as reason:
            _refuse(node, reason)


def _refuse(node: ir.Node, reason: Uncovered) -> NoReturn:
    known = node.op_type in operators()
    raise NotSupported(
        f"there is no C for this form of it: {reason}" if known else f"there is no C for it: {reason}",
        node=str(node.name), op=node.op_type, target="C",
        hint="take backend='ort' for this model; docs/native.md lists the operators that there is C for",
    ) from reason  # fmt: skip


def _joins(nodes: Sequence[ir.Node], scope: Scope) -> dict[ir.Value, tuple[ir.Node, int]]:
    """Values that can be written right where a Concat wants them: made by a kernel, and by nobody twice."""
    found: dict[ir.Value, tuple[ir.Node, int]] = {}
    kernels = {o for n in nodes if n.op_type not in STILL for o in n.outputs}
    for node in nodes:
        if node.op_type != "Concat":
            continue
        axis, at = axis_of(node, len(scope.shape(node.outputs[0]))), 0
        for value in node.inputs:
            assert value is not None
            if value in kernels and value not in found and not value.is_graph_output():
                found[value] = node, at
            at += scope.shape(value)[axis]
    return found


def _one(node: ir.Node, chain: Sequence[ir.Node], scope: Scope) -> None:
    name = node.op_type
    if node.domain not in ("", "ai.onnx"):
        raise Uncovered(f"it is of the domain {node.domain}")
    if name in expression.table():
        write_chain(scope, node, chain)
    elif name in op.table():
        scope.members = chain[:-1]
        with processing(node):
            op.table()[name](Site(node, scope))
        for made, wanted in scope.pending:
            copy(scope, made, wanted, "put")
        scope.pending.clear()
    else:
        raise Uncovered("the operator is not known")


def _comment(chain: Sequence[ir.Node], scope: Scope) -> str:
    """The nodes by name, and the shapes of what goes in and what comes out."""
    node = chain[-1]
    ops = " ".join(dict.fromkeys(n.op_type for n in chain))

    def shown(v: ir.Value) -> str:
        return "x".join(map(str, v.shape)) if v.shape is not None and len(v.shape) else "1"

    ins = ", ".join(shown(v) for v in chain[0].inputs if v is not None and v not in scope.constants)
    outs = ", ".join(shown(v) for v in node.outputs)
    return f"{ops} {node.name or node.outputs[0].name}: {ins} -> {outs}"


def constants_of(graph: ir.Graph) -> dict[ir.Value, Array]:
    ports = set(graph.inputs)
    found = {
        v: v.const_value.numpy() for v in graph.initializers.values() if v.const_value is not None and v not in ports
    }
    for node in graph:
        if node.op_type == "Constant" and "value" in node.attributes:
            found[node.outputs[0]] = node.attributes["value"].as_tensor().numpy()
    return found
