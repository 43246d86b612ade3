"""A Scan or Loop whose turns do not depend on the stream's length is written out, turn by turn.

turn 0: x[0] -> body -> h, y0        turn 1: x[1], h -> body -> h, y1        ...        y = [y0, y1, ...]
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from pulsify.core.errors import NotStreamable
from pulsify.frontend.loop_ports import looped
from pulsify.frontend.model import Body, Node, make_node, renamed

MOST_NODES = 20_000


def unrolled(node: Node, count: int) -> tuple[list[Node], dict[str, ir.TensorProtocol]]:
    """The nodes of all turns, and the constants they need."""
    body, parts = node.body, looped(node)
    assert body is not None
    _check(node, body, count)
    nodes: list[Node] = []
    constants: dict[str, ir.TensorProtocol] = {}

    def constant(value: int, dims: tuple[int, ...] = ()) -> str:
        name = f"{node.name}/int{len(dims)}/{value}"
        constants[name] = ir.tensor(np.full(dims, value, np.int64), name=name)
        return name

    def op(kind: str, inputs: list[str], output: str, **attrs: int) -> str:
        nodes.append(make_node(kind, inputs, output, node.version, **attrs))
        return output

    carried = {c.before: c.start for c in parts.carried}
    made: list[dict[str, str]] = []
    for turn in range(count):
        names = dict(carried)
        for along in parts.scanned:
            place = constant(count - 1 - turn if along.reverse else turn)
            names[along.inner] = op("Gather", [along.outer, place], f"{along.inner}/{turn}", axis=along.axis)
        if parts.number:
            names[parts.number] = constant(turn)
        names |= {v: f"{v}/{turn}" for n in body.nodes for v in n.outputs if v}
        nodes.extend(renamed(n, names, f"{n.name}/{turn}") for n in body.nodes)
        carried = {c.before: names.get(c.after, c.after) for c in parts.carried}
        made.append(names)
    for c in parts.carried:
        if c.final:
            op("Identity", [carried[c.before]], c.final)
    for along in parts.collected:
        if along.outer:
            axes = constant(along.axis, (1,))
            frames = [
                op("Unsqueeze", [names.get(along.inner, along.inner), axes], f"{along.outer}/{i}")
                for i, names in enumerate(made)
            ]
            op("Concat", frames[::-1] if along.reverse else frames, along.outer, axis=along.axis)
    return nodes, constants


def first_turn(node: Node, name: str) -> str:
    """What a value of the body is called in the first turn, once it is written out."""
    assert node.body is not None
    parts = looped(node)
    own = {*(a.inner for a in parts.scanned), *(v for n in node.body.nodes for v in n.outputs)}
    starts = {c.before: c.start for c in parts.carried}
    return f"{name}/0" if name in own else starts.get(name, name)


def _check(node: Node, body: Body, count: int) -> None:
    if count < 1 and any(along.outer for along in looped(node).collected):
        raise NotStreamable(
            "it turns 0 times, so that what it collects has no entries",
            node=node.name,
            op=node.op,
            hint="leave it out",
        )
    if count * len(body.nodes) > MOST_NODES:
        raise NotStreamable(
            f"it turns {count} times, and {MOST_NODES} nodes are the most that is written out",
            node=node.name,
            op=node.op,
            hint="write it without the loop, or with fewer turns",
        )
