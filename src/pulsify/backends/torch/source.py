"""A step graph for so many streams as Python source: a line per node, constants by name."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F
from onnx_ir.passes import Sequential

from pulsify.backends.site import Uncovered
from pulsify.backends.subgraphs import reads
from pulsify.backends.torch import functions
from pulsify.backends.torch.island import Island, opened
from pulsify.backends.torch.passes import Joined, quicker
from pulsify.backends.torch.placement import Fault, Part, Plan, planned, title
from pulsify.backends.torch.rings import PER_STREAM, starts
from pulsify.backends.torch.scope import scope_of
from pulsify.backends.torch.site import Need, Scope
from pulsify.backends.torch.tensors import Weights, Wire
from pulsify.backends.torch.types import complete
from pulsify.core.spec import Spec
from pulsify.optimize.constants import FoldConstants
from pulsify.optimize.sized import ForStreams

NUMBERS = count()
Function = Callable[..., tuple[Wire, ...]]


@dataclass(frozen=True, eq=False)
class Source:
    """The text, what it takes and gives by the graph's names, and what it names: constants and islands."""

    text: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    kinds: Mapping[str, str | None]  # of its ports, as torch calls them
    needs: Mapping[str, Need]
    islands: Mapping[str, Part]
    plan: Plan
    scope: Scope
    model: ir.Model
    streams: int


def sized(model: ir.Model, batch: int, joined: Joined | None = None) -> ir.Model:
    """The model for so many streams: every size that can be known is, and what follows from sizes is a constant.

    joined: constants that passes make of others; without it there are no passes that pay here.
    """
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    made = ForStreams(batch)(model).model
    complete(made)
    made = Sequential(FoldConstants(), RemoveUnusedNodesPass())(made).model
    return made if joined is None else quicker(joined)(made).model


def source(
    model: ir.Model,
    spec: Spec,
    batch: int,
    device: str,
    low: str | None = None,
    force: Sequence[str] = (),
    said: str = "",
    fault: Fault | None = None,
    joined: Joined | None = None,
    compiled: bool = False,
    wires: bool = False,
    attention: str | None = None,
    ringed: bool = False,
) -> Source:
    """The step as text. said: what stands over it. fault: says what is wrong with a node on the device (`trial`).

    joined: see `sized`. Without it every operator is a line, as it is written. compiled: the text is for a compiler.
    wires: it gives all wires, behind its own results. attention: who has the kernel for it, "triton" or "torch".
    ringed: caches of attention are rings, where they can be.
    """
    made = sized(model, batch, joined)
    scope = scope_of(made, spec, device, low, compiled, attention, batch if ringed else None)
    arguments = [scope.names.name(v) for v in made.graph.inputs]
    takes = tuple(str(v.name) for v in made.graph.inputs)
    plan = planned(made, scope, force, fault, joined is not None)
    written = {r.after for r in plan.rings}  # where they lie
    outputs = [*(v for v in made.graph.outputs if v.name not in written), *(inner(plan) if wires else ())]
    lines, needs, islands = _body(plan, scope, {*made.graph.inputs, *outputs})
    results = [_result(value, scope, needs) for value in outputs]
    if plan.rings:
        arguments, takes = [*arguments, *PER_STREAM], (*takes, *PER_STREAM)
    text = [f"def step({', '.join(arguments)}):", *([f'    """{said}"""'] if said else [])]
    text += [f"    {line}" for line in (*starts(plan.rings), *lines)]
    text += [f"    return {', '.join(results)}{',' * (len(results) == 1)}", ""]
    ports = {str(v.name): _kind(scope, v) for v in (*made.graph.inputs, *outputs)}
    ports |= dict.fromkeys(PER_STREAM if plan.rings else (), "int64")
    gives = tuple(str(v.name) for v in outputs)
    return Source("\n".join(text), takes, gives, ports, needs, islands, plan, scope, made, batch)


def inner(plan: Plan) -> list[ir.Value]:
    """Wires that are no results of the step. What an island keeps to itself is not seen."""
    made = [v for item in plan.order for v in (item.gives if isinstance(item, Part) else item.outputs)]
    return [v for v in made if v.name and v.uses() and not v.is_graph_output()]


def _kind(scope: Scope, value: ir.Value) -> str | None:
    """None: torch has no such type, and it stays an array."""
    try:
        return scope.kind(value)
    except Uncovered:
        return None


def _result(value: ir.Value, scope: Scope, needs: dict[str, Need]) -> str:
    name = scope.names.name(value)
    if value in scope.constants:
        tensor, kind = scope.constants[value], scope.kind(value)
        needs[name] = Need((id(tensor), kind, False), tensor.numpy, kind)
    return name


def _body(plan: Plan, scope: Scope, kept: set[ir.Value]) -> tuple[list[str], dict[str, Need], dict[str, Part]]:
    lines: list[str] = []
    needs: dict[str, Need] = {}
    islands: dict[str, Part] = {}
    written = _written(plan)
    for item, over in zip(written, _last_read(plan, written, scope, kept), strict=True):
        if isinstance(item, Part):
            name = scope.names.fresh(f"island_{len(islands)}")
            islands[name] = item
            *said, last = _crossing(name, item, plan, scope)
            comment = ""
        else:
            code = plan.codes[item]
            needs.update(code.needs)
            *said, last = code.lines
            ops = dict.fromkeys(n.op_type for n in (*reversed(plan.inside.get(item, ())), item))
            comment = f"  # {', '.join(ops)} {title(item)}"
            if item in plan.notes and item not in plan.inside:
                comment += f" ({plan.notes[item]})"
        freed = f"; del {', '.join(over)}" if over else ""
        lines += [*said, f"{last}{freed}{comment}"]
    return lines, needs, islands


def _crossing(name: str, part: Part, plan: Plan, scope: Scope) -> list[str]:
    outs = ", ".join(scope.names.name(v) for v in part.gives)
    call = f"{name}({', '.join(scope.names.name(v) for v in part.takes)})"
    said = [f"# on the CPU: {title(n)} ({plan.reasons[n].text})" for n in part.nodes]
    return [*said, f"{outs}{',' * (len(part.gives) == 1)} = {call}" if outs else call]


def _written(plan: Plan) -> list[ir.Node | Part]:
    """What has lines of its own."""
    taken_in = {n for nodes in plan.inside.values() for n in nodes}
    return [item for item in plan.order if isinstance(item, Part) or item not in taken_in]


def _last_read(plan: Plan, items: Sequence[ir.Node | Part], scope: Scope, kept: set[ir.Value]) -> list[list[str]]:
    """What nobody reads any more after each of the items: its memory can be used again."""
    seen: set[ir.Value] = set()
    out: list[list[str]] = []
    for item in reversed(items):
        nodes = item.nodes if isinstance(item, Part) else (*plan.inside.get(item, ()), item)
        read = [v for n in nodes for v in reads(n)]
        inside = {v for n in nodes for v in n.outputs}
        over = [v for v in dict.fromkeys(read) if v not in (seen | kept | inside) and v not in scope.constants]
        seen.update(over)
        out.append([scope.names.name(v) for v in over])
    return out[::-1]


# ---- from text to something that runs


def function(made: Source, weights: Weights, threads: int = 1, fuse: bool = True) -> Function:
    """The text, read once by Python. Errors show its lines."""
    islands: dict[str, Island] = {
        name: opened(part, made.model, made.scope, weights.device, threads, fuse) for name, part in made.islands.items()
    }
    space: dict[str, Any] = {"torch": torch, "F": F, "op": functions, "device": weights.device}
    if made.scope.attention is not None:
        space["attend"] = import_module("pulsify.kernels.stream_attention.operator").stream_attention
    space |= islands | {name: weights.tensor(need) for name, need in made.needs.items()}
    file = f"<step {next(NUMBERS)}>"
    linecache.cache[file] = len(made.text), None, made.text.splitlines(keepends=True), file
    exec(compile(made.text, file, "exec"), space)
    found: Function = space["step"]
    return found
