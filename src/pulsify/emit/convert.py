"""The whole way from a model and a pulse to a streaming graph."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

import pulsify.rules  # noqa: F401  fills the registry
from pulsify.analysis.facts import Layout, Static, Varying, Window, Wire
from pulsify.analysis.length import Length, fit
from pulsify.emit.buffer import State
from pulsify.emit.clock import Clock
from pulsify.emit.context import Context, Limit, Misaligned, Requirement
from pulsify.emit.graph import Builder
from pulsify.errors import InvalidArgument, InvalidPulse, NotStreamable
from pulsify.frontend.model import Model, Node
from pulsify.frontend.time import TimeSpec
from pulsify.rules.registry import apply_rule
from pulsify.trace.evaluate import CannotRun
from pulsify.trace.lengths import Tracer, Traces, choose

LARGEST = 1 << 29  # counters stay far from the end of int32, twice a length included


@dataclass(frozen=True)
class StreamInput:
    """An input that is pushed chunk by chunk."""

    name: str
    axis: int
    per: int  # frames per unit of the stream's length
    dtype: ir.DataType
    dims: tuple[int | str, ...]  # of one pulse


@dataclass(frozen=True)
class StaticInput:
    """An input given once a session."""

    name: str
    dtype: ir.DataType
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class StreamOutput:
    """An output. axis None: it has no time axis and comes out of flush only."""

    name: str
    axis: int | None
    rate: Fraction
    delay: int
    frames: int
    length: Length
    dtype: ir.DataType
    dims: tuple[int | str, ...]
    batch_axis: int | None = None


@dataclass(frozen=True, eq=False)
class Converted:
    """A streaming graph and all that is needed to run it."""

    graph: ir.Graph
    pulse: int
    granularity: int
    batch: str | None
    time: TimeSpec
    inputs: tuple[StreamInput, ...]
    statics: tuple[StaticInput, ...]
    outputs: tuple[StreamOutput, ...]
    states: tuple[State, ...]
    requirements: tuple[Requirement, ...]
    limits: tuple[Limit, ...]
    length: str | None
    unknown_length: int
    rebase: int
    taps: dict[str, tuple[ir.Value, Window, int]]  # batch wire -> where its frames are, for finding a mismatch
    opset_imports: dict[str, int]
    ir_version: int
    shortest: int


def convert(tracer: Tracer, pulse: int | None) -> Converted:
    """Convert at `pulse`, or at one granule. Raises InvalidPulse with the granularity if it does not fit."""
    if pulse is None:
        return _convert(tracer, granularity(tracer))
    try:
        return _convert(tracer, pulse)
    except Misaligned:
        raise InvalidPulse(pulse, granularity(tracer)) from None


def granularity(tracer: Tracer) -> int:
    """The smallest pulse at which every wire gets whole frames: refused pulses say what they lack."""
    pulse = 1
    while True:
        try:
            return math.lcm(*_run(tracer, pulse).denominators, 1)
        except Misaligned as need:
            pulse = math.lcm(pulse, need.multiple)


def _run(tracer: Tracer, pulse: int) -> Context:
    """Apply every rule once; the result holds the facts of all wires."""
    traces = choose(tracer, at_least=4 * pulse if pulse < 4096 else pulse)
    model = tracer.model
    builder = Builder(model.opset_imports.get("", 0))
    ctx = Context(model, traces, pulse, builder, Clock(builder, pulse, tracer.time.batch), apply_rule)
    _file_inputs(ctx, tracer.time)
    wanted = _wanted(model)
    for node in model.nodes:
        if node.name in wanted and _is_data(traces, node):
            apply_rule(ctx, node)
    return ctx


def _wanted(model: Model) -> set[str]:
    """Nodes some output depends on."""
    seen: set[str] = set()
    names, todo = set(), list(model.outputs)
    while todo:
        name = todo.pop()
        if name in names:
            continue
        names.add(name)
        node = model.producers.get(name)
        if node is not None and node.name not in seen:
            seen.add(node.name)
            todo.extend(i for i in node.inputs if i)
    return seen


def _is_data(traces: Traces, node: Node) -> bool:
    return any(o and not traces.runs[0][o].known for o in node.outputs)


def _file_inputs(ctx: Context, time: TimeSpec) -> None:
    for port in ctx.model.inputs:
        dims = list(_declared(port.name, ctx, time))
        if port.name in time.bound:
            continue
        if port.name not in time.streams:
            ctx.facts[port.name] = Static(ctx.builder.input(port.name, port.dtype, dims))
            continue
        axis, per = time.streams[port.name]
        p = ctx.frames(Fraction(per))
        dims[axis] = p
        value = ctx.builder.input(port.name, port.dtype, dims)
        layout = Layout(ctx.sizes(port.name, axis), axis)
        ctx.emitted(port.name, port.name, value, layout, Length().then(per), Window(p, 0, p))


def _declared(name: str, ctx: Context, time: TimeSpec) -> tuple[int | str, ...]:
    """An input's dimensions with the batch left open."""
    sizes = ctx.sizes(name, time.streams[name][0]) if name in time.streams else ctx.sizes_static(name)
    return tuple((time.batch or 1) if s == -1 else s if s >= 0 else f"{-s}*{time.batch}" for s in sizes)


def _convert(tracer: Tracer, pulse: int) -> Converted:
    if pulse < 1:
        raise InvalidArgument(f"pulse={pulse}: a pulse has at least one frame")
    ctx = _run(tracer, pulse)
    time, model = tracer.time, tracer.model
    outputs = [_output(ctx, name) for name in model.outputs]
    _check_claims(ctx)
    states = [s for buffer in ctx.buffers if (s := buffer.settle(time.batch)) is not None]
    if ctx.clock.position is not None:
        states.append(_position_state(ctx, time))
    rates = [Fraction(per) for _, per in time.streams.values()] + [
        f.length.rate for f in ctx.facts.values() if isinstance(f, Wire) and f.length
    ]
    periods = [f.length.period for f in ctx.facts.values() if isinstance(f, Wire) and f.length]
    unit = math.lcm(*ctx.denominators, *periods, pulse)
    unknown = max(int(LARGEST // max(1, *map(math.ceil, rates))) // unit, 1) * unit
    if ctx.traces.step > 1:  # the model was seen to take only these lengths
        base = ctx.traces.lengths[0] % ctx.traces.step
        ctx.require(Requirement(Length().then(add=-base), "", multiple=ctx.traces.step))
    requirements = tuple(ctx.requirements)
    graph, named = _assemble(ctx, outputs, states, unknown)
    return Converted(
        graph=graph,
        pulse=pulse,
        granularity=math.lcm(*ctx.denominators, 1),
        batch=time.batch,
        time=time,
        inputs=tuple(_stream_input(ctx, time, n) for n in time.streams),
        statics=tuple(
            _static_input(ctx, time, p.name)
            for p in model.inputs
            if p.name not in time.streams and p.name not in time.bound
        ),
        outputs=tuple(o for o, _ in outputs),
        states=tuple(named),
        requirements=requirements,
        limits=tuple(ctx.limits),
        length=None if ctx.clock.length is None else str(ctx.clock.length.name),
        unknown_length=unknown,
        rebase=0 if ctx.clock.absolute else unit,
        taps=_taps(ctx),
        opset_imports=dict(model.opset_imports),
        ir_version=model.ir_version,
        shortest=shortest_length(requirements, time.step),
    )


def shortest_length(requirements: tuple[Requirement, ...], step: int) -> int:
    """The shortest stream the batch model takes (all requirements grow with the length)."""
    low, high = 0, 1
    floors = [r for r in requirements if r.at_least]
    while not all(r.length.at(high) >= r.at_least for r in floors):
        high *= 2
        if high > 1 << 40:
            break
    while high - low > 1:
        middle = (low + high) // 2
        if all(r.length.at(middle) >= r.at_least for r in floors):
            high = middle
        else:
            low = middle
    return max(-(-high // step) * step, 1)


def _check_claims(ctx: Context) -> None:
    """Everything read off known values is checked once more at a length far beyond those it was read from."""
    if not ctx.claims:
        return
    tracer, step = ctx.traces.tracer, ctx.traces.step
    longest = ctx.traces.lengths[-1]
    for factor in (4, 2):
        try:
            run = tracer.at((longest * factor // step + 1) * step)
            break
        except CannotRun:  # a table may end before: then there is nothing longer to check
            continue
    else:
        return
    for node, what, holds in ctx.claims:
        if not holds(run):
            ctx._broken(node, what)


def _output(ctx: Context, name: str) -> tuple[StreamOutput, ir.Value]:
    fact = ctx.fact(name)
    node = ctx.model.producers.get(name)
    if isinstance(fact, Wire):
        return _stream_output(ctx, name, fact)
    if isinstance(fact, Static):
        dims = _open_dims(ctx, ctx.sizes_static(name))
        return StreamOutput(name, None, Fraction(0), 0, 0, Length(), ctx.dtype(name), dims), fact.value
    if isinstance(fact, Varying):
        return _length_output(ctx, name)
    assert node is not None
    raise NotStreamable(
        "an output is made of the first frames of the stream alone",
        node=node.name,
        op=node.op,
        hint="give out all frames and cut after the stream",
    )


def _open_dims(ctx: Context, sizes: tuple[int, ...]) -> tuple[int | str, ...]:
    batch = ctx.clock.batch or 1
    return tuple(s if s >= 0 else batch if s == -1 else f"{-s}*{batch}" for s in sizes)


def _stream_output(ctx: Context, name: str, wire: Wire) -> tuple[StreamOutput, ir.Value]:
    node = ctx.model.producers.get(name)
    if wire.layout.folded and wire.end is not None:
        assert node is not None
        ctx.refuse(
            node,
            "an output has time folded together with another axis",
            "give it out before the reshape, time on its own axis",
        )
    length = wire.length
    if length is None:
        from pulsify.rules.lengths import length_from_model

        assert node is not None
        length = length_from_model(ctx, node, name, wire.layout.axis)
    p = ctx.frames(length.rate)
    end = p if wire.end is None else min(wire.end, p)
    value = wire.take(Window(p, end - p, end))
    dims = list(_open_dims(ctx, wire.layout.sizes))
    dims[wire.layout.axis] = p
    out = StreamOutput(
        name, wire.layout.axis, length.rate, p - end, p, length, wire.dtype, tuple(dims), wire.layout.batch
    )
    return out, value


def _length_output(ctx: Context, name: str) -> tuple[StreamOutput, ir.Value]:
    """An output that follows from the length alone (encoded_lengths): right once the length is known."""
    node = ctx.model.producers.get(name)
    dtype, tracer = ctx.dtype(name), ctx.traces.tracer

    def value(s: int) -> int | None:
        try:
            array = tracer.at(s)[name].array if s % ctx.traces.step == 0 else None
        except CannotRun:
            return None
        return None if array is None else int(array.reshape(-1)[0])

    alike = all(np.all(run[name].array == run[name].array.reshape(-1)[0]) for run in ctx.traces.runs)
    length = fit(value, ctx.traces.lengths[0]) if dtype.is_integer() and alike else None
    if length is None:
        raise NotStreamable(
            f"output '{name}' depends on the total length in an irregular way",
            node=node.name if node else name,
            op=node.op if node else "",
            hint="compute it outside the model, after the stream",
        )
    b, sizes = ctx.builder, ctx.sizes_static(name)
    x = b.op("Cast", ctx.clock.end(length), to=int(dtype))
    x = (
        b.reshape(x, [max(s, -1) for s in sizes])
        if any(s < 0 for s in sizes) or math.prod(sizes) == 1
        else b.op("Expand", b.reshape(x, [1] * len(sizes)), b.ints(*sizes))
    )
    return StreamOutput(name, None, Fraction(0), 0, 0, length, dtype, _open_dims(ctx, sizes)), x


def _position_state(ctx: Context, time: TimeSpec) -> State:
    position = ctx.clock.position
    assert position is not None
    after = ctx.builder.op("Add", position, ctx.builder.constant(np.array(ctx.pulse, np.int32), "int"))
    return State("position", ir.DataType.INT32, (time.batch or 1, 1), position, after)


def _stream_input(ctx: Context, time: TimeSpec, name: str) -> StreamInput:
    axis, per = time.streams[name]
    dims = tuple(d if isinstance(d, int) else str(d) for d in ctx.builder.inputs[name].shape or ())
    return StreamInput(name, axis, per, ctx.dtype(name), dims)


def _static_input(ctx: Context, time: TimeSpec, name: str) -> StaticInput:
    return StaticInput(name, ctx.dtype(name), _declared(name, ctx, time))


def _taps(ctx: Context) -> dict[str, tuple[ir.Value, Window, int]]:
    out = {}
    for buffer in ctx.buffers:
        name = next((n for n, w in ctx.facts.items() if isinstance(w, Wire) and w.take == buffer.take), None)
        if name is not None and not buffer.layout.folded:
            out[name] = (ctx.builder.real(buffer.value), buffer.window, buffer.layout.axis)
    return out


def _clean(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z_]+", "_", name).strip("_") or "node"


def _assemble(
    ctx: Context, outputs: list[tuple[StreamOutput, ir.Value]], states: list[State], unknown: int
) -> tuple[ir.Graph, list[State]]:
    """Name the states, give outputs names of their own, order the nodes, drop what nobody needs."""
    b = ctx.builder
    b.settle()
    inputs = [*b.inputs.values(), *([ctx.clock.length] if ctx.clock.length is not None else [])]
    results, named = [], []
    for out, value in outputs:
        results.append(_named_output(b, b.real(value), out.name, out.dtype, out.dims))
    for i, state in enumerate(states):
        name = f"state_{i:03d}_{_clean(state.node)}"
        state.before.name = name
        inputs.append(state.before)
        after = _named_output(b, b.real(state.after), f"new_{name}", state.dtype, state.shape)
        results.append(after)
        named.append(State(state.node, state.dtype, state.shape, state.before, after))
    nodes = _needed(b.nodes, results)
    used = {v for n in nodes for v in n.inputs if v is not None} | set(results)
    initializers = [v for v in b.constants.values() if v in used]
    if ctx.clock.length is not None:  # optional: whoever does not know the length leaves it out
        ctx.clock.length.const_value = ir.tensor(np.array([[unknown]], np.int32), name=ctx.clock.length.name)
        initializers.append(ctx.clock.length)
    graph = ir.Graph(
        inputs,
        results,
        nodes=nodes,
        initializers=initializers,
        opset_imports=dict(ctx.model.opset_imports),
        name="stream",
    )
    graph.sort()
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
            todo.extend(v for v in node.inputs if v is not None)
    return [n for n in nodes if n in keep]
