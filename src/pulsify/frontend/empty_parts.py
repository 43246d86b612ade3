"""Parts without entries, and joins that do without them.

cat(rotated, q[..., d:])  with d features  -->  rotated        (rotary positions for all of a head)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pulsify.frontend.model import Model, Node, renamed

CUTS, JOIN = ("Slice", "Split"), "Concat"


def cut_parts(model: Model) -> dict[str, list[Node]]:
    """Values that are cut out of others and only joined again, with the joins."""
    cuts = [o for n in model.nodes if n.op in CUTS and not n.domain for o in n.outputs if o and o not in model.outputs]
    readers = {o: [n for n, _ in model.readers.get(o, ())] for o in cuts}
    return {o: r for o, r in readers.items() if r and all(n.op == JOIN and len(n.inputs) > 1 for n in r)}


def is_left_out(join: Node, dims: tuple[int, ...]) -> bool:
    """Does a part of this shape add nothing to the join?"""
    return dims[join.attr("axis", 0)] == 0


def without_parts(model: Model, empty: Mapping[str, list[Node]]) -> Model:
    """Joins of the other parts alone. The cuts stay, and nothing reads what is empty."""
    joins = {n.name for nodes in empty.values() for n in nodes}
    nodes = tuple(_without(n, empty) if n.name in joins else n for n in model.nodes)
    return replace(model, nodes=nodes, producers={})


def _without(join: Node, empty: Mapping[str, list[Node]]) -> Node:
    node = renamed(join, {}, join.name)
    inputs = tuple(i for i in node.inputs if i not in empty)
    if not inputs:
        return join
    del node.proto.input[:]
    node.proto.input.extend(inputs)
    return replace(node, inputs=inputs, written=node.proto)
