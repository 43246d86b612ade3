"""Graphs inside of nodes: of a Scan, a Loop or an If."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Graphs inside a node."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def reads(node: ir.Node) -> list[ir.Value]:
    """What a node reads, in its bodies too, that is made outside of it."""
    found = [v for v in node.inputs if v is not None]
    for graph in bodies(node):
        made = {*graph.inputs, *graph.initializers.values()}
        for inner in graph:
            found += [v for v in reads(inner) if v not in made]
            made.update(inner.outputs)
        found += [v for v in graph.outputs if v not in made]
    return list(dict.fromkeys(found))
