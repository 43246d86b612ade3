"""The last step of building: states named and paired, outputs named, nodes in order, nothing left over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, FirstFrames, Window, Wire
from pulsify.convert.audit import check_states
from pulsify.core.spec import Output
from pulsify.emit.builder import Builder, read_by
from pulsify.emit.state import State
from pulsify.plan.context import Context
from pulsify.plan.trail import Course


def position_state(ctx: Context) -> State:
    position = ctx.clock.position
    assert position is not None
    after = ctx.builder.op("Add", position, ctx.builder.constant(np.array(ctx.pulse, np.int32), "int"))
    return State("position", "clock", ir.DataType.INT32, (ctx.batch or 1, 1), position, after)


Probes = dict[str, tuple[ir.Value, Window, int]]  # batch wire -> the value that holds a window of it, its time axis


def probes(ctx: Context) -> Probes:
    out = {}
    for name, stored in ctx.stored.items():
        if not stored.layout.folded:
            out[name] = (stored.value.value, stored.window, stored.layout.axis)
    return out


def course(ctx: Context, outputs: Sequence[tuple[Output, Deferred]]) -> Course:
    """Time through a plan."""
    ask = ctx.ask
    rate = Fraction(next(iter(ask.traces.tracer.time.streams.values()))[1])
    made = {name: ask.model.producers.get(name.partition("#")[0]) for name in ctx.trails}
    makers = {name: (node.name, node.op) for name, node in made.items() if node is not None}
    wires = [f.wire if isinstance(f, FirstFrames) else f for f in map(ask.facts.get, ask.model.outputs)]
    given = [w.name if isinstance(w, Wire) and w.name in ctx.trails else None for w in wires]
    return Course(
        ctx.pulse, ctx.phase, rate, dict(ctx.trails), makers, tuple(zip((o for o, _ in outputs), given, strict=True))
    )


def _clean(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z_]+", "_", name).strip("_") or "node"


def assemble(
    ctx: Context, outputs: Sequence[tuple[Output, Deferred]], states: list[State], unknown: int
) -> tuple[ir.Graph, list[State]]:
    """Name the states, give outputs names of their own, order the nodes, drop what nobody needs."""
    b = ctx.builder
    inputs = [*b.inputs.values(), *([ctx.clock.length] if ctx.clock.length is not None else [])]
    results, named = [], []
    for out, value in outputs:
        results.append(_named_output(b, value.value, out.name, ir.DataType.from_numpy(out.dtype), out.dims))
    for i, state in enumerate(states):
        name = f"state_{i:03d}_{_clean(state.node)}"
        state.before.name = name
        inputs.append(state.before)
        after = _named_output(b, state.after, f"new_{name}", state.dtype, state.shape)
        results.append(after)
        named.append(replace(state, after=after))
    nodes = _needed(b.nodes, results)
    used = {v for n in nodes for v in read_by(n)} | set(results)
    initializers = [v for v in b.constants.values() if v in used]
    if ctx.clock.length is not None:  # optional: whoever does not know the length leaves it out
        ctx.clock.length.const_value = ir.tensor(np.array([[unknown]], np.int32), name=ctx.clock.length.name)
        initializers.append(ctx.clock.length)
    graph = ir.Graph(
        inputs,
        results,
        nodes=nodes,
        initializers=initializers,
        opset_imports=dict(ctx.ask.model.opset_imports),
        name="stream",
    )
    graph.sort()
    check_states(graph, named)
    return graph, named


def _named_output(b: Builder, value: ir.Value, name: str, dtype: ir.DataType, dims: tuple[int | str, ...]) -> ir.Value:
    """A graph output must be made by a node and carry its own name."""
    made = ir.val(name, dtype, ir.Shape(dims))
    b.nodes.append(ir.Node("", "Identity", [value], outputs=[made], name=b.unique(f"{name}/identity")))
    return made


def _needed(nodes: list[ir.Node], results: list[ir.Value]) -> list[ir.Node]:
    makers = {o: n for n in nodes for o in n.outputs}
    keep: set[ir.Node] = set()
    todo = list(results)
    while todo:
        node = makers.get(todo.pop())
        if node is not None and node not in keep:
            keep.add(node)
            todo.extend(read_by(node))
    return [n for n in nodes if n in keep]
