"""Nodes of a graph that is being read, put in front of one and in its place; named after it: refusals lead there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]


def before(
    node: ir.Node, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr] = (), name: str = ""
) -> ir.Value:
    """What a new node in front of another makes."""
    made = ir.Node("", op, inputs, attributes, name=name or f"{node.name or node.op_type}/{op}")
    assert isinstance(node.graph, ir.Graph)
    node.graph.insert_before(node, made)
    made.outputs[0].name = f"{made.name}/{made.outputs[0].name}"  # the graph's own name for it, which is only a number
    return made.outputs[0]


def constant_before(node: ir.Node, array: Array) -> ir.Value:
    return before(node, "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])


def instead(node: ir.Node, made: ir.Value) -> None:
    """A value in the place of a node's only one, under its name. The node is gone."""
    replace_output(node, 0, made)
    drop(node)


def replace_output(node: ir.Node, i: int, made: ir.Value) -> None:
    """A value in the place of one of several, under its name."""
    old = node.outputs[i]
    made.name, old.name = old.name, None
    old.replace_all_uses_with(made, replace_graph_outputs=True)


def is_read(node: ir.Node, i: int) -> bool:
    """Does anything read output `i` of a node?"""
    return i < len(node.outputs) and (bool(list(node.outputs[i].uses())) or node.outputs[i].is_graph_output())


def drop(node: ir.Node) -> None:
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
