"""Scan and Loop nodes, read alike: what is carried, what is scanned, what is collected."""

from __future__ import annotations

from dataclasses import dataclass

from pulsify.core.errors import NotStreamable
from pulsify.frontend.model import Body, Node


@dataclass(frozen=True)
class Carried:
    """A value that goes on from turn to turn: outer `start` -> body `before` -> body `after` -> outer `final`."""

    start: str
    before: str
    after: str
    final: str


@dataclass(frozen=True)
class Along:
    """A value of every turn (`inner`) beside the one of all turns (`outer`), laid out along `axis`."""

    outer: str
    inner: str
    axis: int
    reverse: bool = False


@dataclass(frozen=True)
class Looped:
    """count: the outer value that says how many turns there are (a Loop's); number, going: body inputs of a Loop."""

    carried: tuple[Carried, ...]
    scanned: tuple[Along, ...]
    collected: tuple[Along, ...]
    count: str = ""
    number: str = ""
    going: str = ""


def looped(node: Node, nested: bool = False) -> Looped:
    """nested: there may be loops and branches inside its body."""
    body = node.body
    assert body is not None
    _check(node, body, nested)
    outputs = [*node.outputs, *[""] * (len(body.outputs) - len(node.outputs))]
    if node.op == "Loop":
        states = len(body.inputs) - 2
        carried = zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], outputs, strict=False)
        collected = zip(outputs[states:], body.outputs[1 + states :], strict=False)
        return Looped(
            tuple(Carried(*c) for c in carried),
            (),
            tuple(Along(outer, inner, 0) for outer, inner in collected),
            node.input(0),
            *body.inputs[:2],
        )
    scans = node.attr("num_scan_inputs")
    states = len(node.inputs) - scans
    results = len(body.outputs) - states
    axes, out_axes = (list(node.attr(f"scan_{k}_axes") or [0] * n) for k, n in (("input", scans), ("output", results)))
    turned, out_turned = (
        list(node.attr(f"scan_{k}_directions") or [0] * n) for k, n in (("input", scans), ("output", results))
    )
    carried = zip(node.inputs[:states], body.inputs[:states], body.outputs[:states], outputs, strict=False)
    scanned = zip(node.inputs[states:], body.inputs[states:], axes, turned, strict=True)
    collected_all = zip(outputs[states:], body.outputs[states:], out_axes, out_turned, strict=False)
    return Looped(
        tuple(Carried(*c) for c in carried),
        tuple(Along(o, i, a, bool(r)) for o, i, a, r in scanned),
        tuple(Along(o, i, a, bool(r)) for o, i, a, r in collected_all),
    )


def _check(node: Node, body: Body, nested: bool) -> None:
    """frontend/loops has settled the condition of a Loop that never ends early, and the lists that become stacks."""
    reason = hint = ""
    if node.op == "Loop" and not (node.input(0) and not node.input(1) and body.outputs[0] == body.inputs[1]):
        reason = "it may end early: how often it turns depends on its condition"
        hint = "loop over the frames of an input"
    elif body.nested and not nested:
        reason, hint = "there are loops or branches inside its body", "write them out"
    elif nested and any(n.op_type == "SequenceInsert" for g in body.branches for n in g.all_nodes()):
        reason = "a branch in its body appends to a list: how many frames it makes is decided turn by turn"
        hint = "append one frame every turn; keep every second one, say, behind the loop"
    elif any("Sequence" in n.op for n in body.nodes):
        reason = "it carries a list that is not merely appended to and stacked"
        hint = "append one frame a turn to an empty list, and stack the list along time"
    if reason:
        raise NotStreamable(reason, node=node.name, op=node.op, hint=hint)
