"""An If as the nodes of the branch that is taken."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from pulsify.frontend.load import plain_node
from pulsify.frontend.model import Node, make_node

BRANCHES = {  # with what docs/operators.md says of them
    "If": "the branch that is taken is written out; that it is taken at every length is proven",
}


def is_branch(node: Node) -> bool:
    return node.op in BRANCHES and not node.domain


def branch(node: Node, taken: bool, opsets: Mapping[str, int]) -> tuple[list[Node], dict[str, ir.TensorProtocol]]:
    """The nodes of one branch, in terms of outer names."""
    graph: ir.Graph = node.attrs["then_branch" if taken else "else_branch"]
    inner = [str(v.name) for n in graph for v in n.outputs if v.name]
    rename = {**node.scope, **{name: f"{node.name}/{name}" for name in inner}}
    passed, given = [], set[str]()
    for value, outer in zip(graph.outputs, node.outputs, strict=True):
        if value.name in inner and value.name not in given:
            rename[str(value.name)] = outer
            given.add(str(value.name))
        else:  # a value from around the branch, or one that is given out twice
            passed.append((rename.get(str(value.name), str(value.name)), outer))
    version = opsets.get("", 0)
    nodes = [plain_node(n, opsets.get(n.domain, version), rename) for n in graph]
    nodes += [make_node("Identity", [a], b, version) for a, b in passed]
    lifted = {str(v.name): v.const_value for v in graph.initializers.values() if v.const_value is not None}
    return nodes, lifted
