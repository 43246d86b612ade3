"""Where every node runs: on the device if the table has it, else on the CPU, in islands that ONNX Runtime runs.

phase 0   device      what needs no island
phase 1   CPU         what only needs that, and cannot be on the device
phase 2   device      what needs some of phase 1 ...

Nodes of the CPU in one phase that hang together are an island. No island waits for what waits for it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from pulsify.backends.seam import Placement
from pulsify.backends.site import Uncovered
from pulsify.backends.subgraphs import reads
from pulsify.backends.torch.joint import Joint, attended, joint
from pulsify.backends.torch.rings import Ring
from pulsify.backends.torch.site import Scope
from pulsify.backends.torch.table import Code, Reason, written
from pulsify.core.errors import InvalidArgument
from pulsify.core.roles import VALUES, role
from pulsify.optimize.attention import Apart

Fault = Callable[[ir.Node, Code, Scope], str]
FORCE = "PULSIFY_FORCE_CPU"  # name parts, separated by commas


@dataclass(frozen=True)
class Part:
    """Nodes of the CPU that hang together: what crosses into it, and out of it."""

    nodes: tuple[ir.Node, ...]
    takes: tuple[ir.Value, ...]
    gives: tuple[ir.Value, ...]


@dataclass(frozen=True)
class Plan:
    """A step in the order in which it runs: nodes on the device, with their lines, and islands.

    inside: by a node, those in front of it that its lines stand for too; they have none of their own. notes: who
    computes an attention, or why it is not one line. rings: caches that are written to where they lie.
    """

    order: tuple[ir.Node | Part, ...]
    codes: Mapping[ir.Node, Code]
    reasons: Mapping[ir.Node, Reason]
    inside: Mapping[ir.Node, tuple[ir.Node, ...]] = field(default_factory=dict)
    notes: Mapping[ir.Node, str] = field(default_factory=dict)
    rings: tuple[Ring, ...] = ()

    @property
    def islands(self) -> tuple[Part, ...]:
        return tuple(p for p in self.order if isinstance(p, Part))


def title(node: ir.Node) -> str:
    """What a node is called; one without a name, by what it makes."""
    return str(node.name or (node.outputs[0].name if node.outputs else node.op_type))


def named_by(node: ir.Node, parts: Sequence[str]) -> bool:
    """Is one of these a part of its name, or its operator?"""
    return _matches(title(node), node.op_type, parts)


def _matches(name: str, op: str, parts: Sequence[str]) -> bool:
    return any(part in name or part == op for part in parts)


def forced_parts(given: Sequence[str]) -> tuple[str, ...]:
    """As asked for, here and in the environment."""
    return (*given, *(p.strip() for p in os.environ.get(FORCE, "").split(",") if p.strip()))


def planned(
    model: ir.Model, scope: Scope, force: Sequence[str] = (), fault: Fault | None = None, fuse: bool = True
) -> Plan:
    """Every node is looked at before it is placed. fault: what is wrong with its lines on this device, if anything.

    fuse: several nodes may be one line (`joint`).
    """
    codes: dict[ir.Node, Code] = {}
    reasons: dict[ir.Node, Reason] = {}
    nodes = [n for n in model.graph if n.op_type != "Constant"]
    for node in nodes:
        made = Reason("asked for") if named_by(node, force) else written(node, scope)
        if isinstance(made, Code) and fault is not None and (found := fault(node, made, scope)):
            made = Reason(f"{node.op_type}: {found}")
        if isinstance(made, Code):
            codes[node] = made
        else:
            reasons[node] = made
    phases = _phases(nodes, reasons)
    order: list[ir.Node | Part] = []
    for phase in range(max(phases.values(), default=0) + 1):
        here = [n for n in nodes if phases[n] == phase]
        order += here if phase % 2 == 0 else [_part(group, scope) for group in _connected(here)]
    inside, notes, rings = _joined(nodes, codes, scope) if fuse else ({}, {}, [])
    return Plan(tuple(order), codes, reasons, inside, notes, tuple(rings))


Inside = dict[ir.Node, tuple[ir.Node, ...]]
Notes = dict[ir.Node, str]


def _joined(nodes: Sequence[ir.Node], codes: dict[ir.Node, Code], scope: Scope) -> tuple[Inside, Notes, list[Ring]]:
    """Nodes that one line is enough for; codes: changed. The longest first: what ends late takes in the most."""
    inside, notes, rings = Inside(), Notes(), list[Ring]()
    for node in reversed(nodes):
        found = None
        if node in codes and role(node) == VALUES:
            found, notes[node] = _attended(node, codes, scope)
        elif node in codes:
            found = joint(node, codes, scope)
        if found is not None:
            inside[node] = found.nodes
            for other in found.nodes:
                del codes[other]
            codes[node] = found.code
            rings += found.rings
    return inside, notes, rings


def _attended(node: ir.Node, codes: Mapping[ir.Node, Code], scope: Scope) -> tuple[Joint | None, str]:
    """An attention as one line, and who computes it; None, and why it is not."""
    if scope.attention is None:
        return None, "attention as it is written: no kernel for it here"
    try:
        return attended(node, codes, scope), f"stream_attention by {scope.attention}"
    except (Apart, Uncovered) as reason:
        return None, f"attention as it is written: {reason}"


def _phases(nodes: Sequence[ir.Node], cpu: Mapping[ir.Node, Reason]) -> dict[ir.Node, int]:
    """Even: on the device. What only islands read is computed with the first of those that do."""
    phases: dict[ir.Node, int] = {}
    for node in nodes:
        before = max((phases[m] for m in _makers(node) if m in phases), default=0)
        phases[node] = before + (before % 2 != (node in cpu))
    for node in reversed(nodes):
        readers = [use.node for out in node.outputs for use in out.uses()]
        if node in cpu and readers and all(r in cpu for r in readers):
            phases[node] = min(phases[r] for r in readers)
    return phases


def _makers(node: ir.Node) -> Iterator[ir.Node]:
    for value in reads(node):
        if (maker := value.producer()) is not None:
            yield maker


def _connected(nodes: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Groups of nodes that read one another, each in the order of the graph."""
    group = {node: {node} for node in nodes}
    for node in nodes:
        for maker in _makers(node):
            if maker in group and group[maker] is not group[node]:
                merged = group[maker] | group[node]
                group.update(dict.fromkeys(merged, merged))
    groups: dict[int, list[ir.Node]] = {}
    for node in nodes:
        groups.setdefault(id(group[node]), []).append(node)
    return list(groups.values())


def _part(nodes: Sequence[ir.Node], scope: Scope) -> Part:
    inside = set(nodes)
    takes = [v for n in nodes for v in reads(n) if v not in scope.constants and v.producer() not in inside]
    gives = [v for n in nodes for v in n.outputs if v.name and _leaves(v, inside)]
    return Part(tuple(nodes), tuple(dict.fromkeys(takes)), tuple(gives))


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(_outer(use.node) not in inside for use in value.uses())


def _outer(node: ir.Node) -> ir.Node:
    """The node of the step that another one is a part of."""
    while node.graph is not None and (parent := getattr(node.graph, "parent_node", None)) is not None:
        node = parent
    return node


# ---- what people see


def placements(plan: Plan, step: str, device: str) -> Iterator[Placement]:
    """Node by node. A wire that crosses counts once, with the first node of an island that takes it."""
    for item in plan.order:
        if not isinstance(item, Part):
            yield Placement(title(item), item.op_type, device, "", 0, step, plan.notes.get(item, ""))
            continue
        seen: set[ir.Value] = set()
        for node in item.nodes:
            wires = [v for v in reads(node) if v in item.takes and v not in seen]
            wires += [v for v in node.outputs if v in item.gives]
            seen.update(wires)
            crossing = sum(map(nbytes, wires))
            yield Placement(title(node), node.op_type, "cpu", plan.reasons[node].text, crossing, step)


def nbytes(value: ir.Value) -> int:
    """At the first pulse: a cache that grows is empty then."""
    if value.shape is None or value.dtype is None:
        return 0
    return math.ceil(math.prod(d if isinstance(d, int) else 0 for d in value.shape) * value.dtype.itemsize)


def check_allowed(found: Sequence[Placement], allowed: Sequence[str] | None) -> None:
    """Islands are there only where they may be."""
    if allowed is None:
        return
    wrong = [p for p in found if p.reason and not _matches(p.node, p.op, allowed)]
    if wrong:
        names = "; ".join(dict.fromkeys(f"'{p.node}' ({p.reason})" for p in wrong))
        raise InvalidArgument(f"allow_cpu={list(allowed)}: these nodes would be on the CPU too: {names}")
