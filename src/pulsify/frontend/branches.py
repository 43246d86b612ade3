"""An If as the nodes of the branch that is taken; or of both and a choice, in a loop whose turns are not alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir

from pulsify.core.constants import CHOSEN_AS
from pulsify.core.traits import traits
from pulsify.frontend.load import plain_node
from pulsify.frontend.model import Node, make_node

BRANCHES = {  # with what docs/operators.md says of them
    "If": "the branch that is taken is written out; that it is taken at every length is proven. In a loop over frames, "
    "branches that no turn can fail in are both computed, and one of them is chosen",
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


def side(node: Node, taken: bool) -> Node:
    """The If under which one branch is written out beside the other: with names of its own for what it makes."""
    name = f"{node.name}/{'then' if taken else 'else'}"
    return replace(node, name=name, outputs=tuple(f"{name}/{i}" for i in range(len(node.outputs))))


def chosen(node: Node, i: int, dtype: ir.DataType, scalar: bool, version: int) -> list[Node]:
    """Output `i` of an If, from what both of its branches make. scalar: the condition has no axes."""
    condition, out, nodes = node.inputs[0], node.outputs[i], list[Node]()

    def op(kind: str, inputs: list[str], output: str, **attrs: int) -> str:
        nodes.append(make_node(kind, inputs, output, version, **attrs))
        return output

    if not scalar:
        condition = op("Squeeze", [condition], f"{out}/condition")
    values, wide = [side(node, taken).outputs[i] for taken in (True, False)], CHOSEN_AS.get(dtype)
    if wide is None:
        op("Where", [condition, *values], out)
        return nodes
    values = [op("Cast", [v], f"{v}/wide", to=int(wide)) for v in values]
    op("Cast", [op("Where", [condition, *values], f"{out}/wide")], out, to=int(dtype))
    return nodes


def may_fail(node: Node, known: Callable[[str], bool], dtype: ir.DataType) -> bool:
    """Does it fail on some numbers? Then it must not be computed where its branch is not taken.

    dtype: of its output.
    """
    kind = traits(node.op, node.domain)
    if node.domain or node.body is not None or kind.random:
        return True
    if kind.axes in ("pick", "points", "elements"):  # a place that is none
        return not known(node.inputs[1])
    if node.op in ("CumSum", "CumProd"):
        return not known(node.inputs[1])
    if node.op in ("Div", "Mod"):  # whole numbers, by zero
        return dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16) and not known(node.inputs[1])
    return not (kind.elementwise or kind.axes or kind.keeps_size or kind.windowed or node.op in ("Shape", "Size"))
