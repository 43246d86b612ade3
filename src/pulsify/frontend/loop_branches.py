"""Branches in the body of a loop: what they read of the loop's own frame is read in front of them.

    if t % 3 == 0:                x_t = x[:, t]
        h = x[:, t]       -->     if t % 3 == 0:
                                      h = x_t

Only what cannot fail is moved, so it does not matter which branch is taken. See `frontend/branches.py` for what
becomes of the branches themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

Test = Callable[[ir.Node], bool]
NEVER_FAIL = ("Constant", "Identity", "Unsqueeze", "Cast", "Slice", "Shape")


def lift_reads(body: ir.Graph, is_frame: Test, is_number: Test) -> None:
    """is_frame: does a node pick the frame of the iteration? is_number: is it arithmetic on the iteration's number?"""

    def movable(node: ir.Node) -> bool:
        return node.op_type in NEVER_FAIL or is_number(node) or is_frame(node)

    for node in [n for n in body if n.op_type == "If" and n.domain in ("", "ai.onnx")]:
        for graph in _graphs(node):
            _lift(body, node, graph, set(), movable)


def _graphs(node: ir.Node) -> list[ir.Graph]:
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def _lift(body: ir.Graph, branching: ir.Node, graph: ir.Graph, around: set[ir.Value], movable: Test) -> None:
    """Out of a branch, and of those inside it, in front of `branching`. around: values of the branches around it."""
    own = {*around, *graph.inputs, *(v for n in graph for v in n.outputs)}
    for node in list(graph):
        for inner in _graphs(node):
            _lift(body, branching, inner, own, movable)
        if any(v in own for v in node.inputs if v is not None) or not movable(node):
            continue
        for i, value in enumerate(graph.outputs):
            if value in node.outputs:
                passed = ir.Node("", "Identity", [value])
                graph.append(passed)
                graph.outputs[i] = passed.outputs[0]
        graph.remove(node)
        body.insert_before(branching, node)
        own -= set(node.outputs)


def append_behind(body: ir.Graph) -> None:
    """Where both branches append one value to a list, they make the value, and it is appended behind them."""
    for node in [n for n in body if n.op_type == "If" and n.domain in ("", "ai.onnx")]:
        graphs = _graphs(node)
        for i, out in enumerate(node.outputs):
            inserts = [graph.outputs[i].producer() for graph in graphs]
            if len(inserts) != 2 or not all(_appends(n, g) for n, g in zip(inserts, graphs, strict=True)):
                continue
            one, other = inserts
            assert one is not None and other is not None
            if one.inputs[0] is not other.inputs[0]:
                continue
            added = ir.Node("", "SequenceInsert", [one.inputs[0], out], name=f"{node.name}/SequenceInsert")
            out.replace_all_uses_with(added.outputs[0], replace_graph_outputs=True)
            added.replace_input_with(1, out)
            body.insert_after(node, added)
            out.type = out.shape = None
            for insert, graph in zip((one, other), graphs, strict=True):
                passed = ir.Node("", "Identity", [insert.inputs[1]])
                graph.append(passed)
                graph.outputs[i] = passed.outputs[0]
                graph.remove(insert, safe=True)


def _appends(node: ir.Node | None, graph: ir.Graph) -> bool:
    """Is this an append in the branch, to a list from around it, which nothing else in it reads?"""
    if node is None or node.graph is not graph or node.op_type != "SequenceInsert" or len(node.inputs) != 2:
        return False
    taken = node.inputs[0].producer() if node.inputs[0] is not None else None
    return (taken is None or taken.graph is not graph) and not list(node.outputs[0].uses())
