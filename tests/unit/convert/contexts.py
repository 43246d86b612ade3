"""Conversions stopped in the middle: a context with its inputs filed, one plan, a graph run pulse by pulse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import pulsify.ops  # noqa: F401  fills the registry
from pulsify.analysis.facts import Deferred, Window, Wire
from pulsify.analysis.questions import Questions
from pulsify.convert.emit import emit, states_of
from pulsify.core.errors import NotStreamable
from pulsify.core.runner import open_model
from pulsify.emit.state import State
from pulsify.frontend.model import Node
from pulsify.ops.registry import RULES, apply_rule
from pulsify.plan.context import Context, Emission
from pulsify.plan.known_facts import known_fact
from pulsify.plan.plan import Plan
from pulsify.plan.ports import file_inputs
from pulsify.trace.lengths import choose
from tests.models import Array, Dims, frames, model, node
from tests.unit.build import converting, traced

NEVER = 1 << 20  # a length that no test comes to: the end is not known yet


def wire_model(dims: Dims = (1, 1, "T"), **options: Any) -> onnx.ModelProto:
    """A stream `x` and what comes out, `y`: for primitives, which need a wire and no rule."""
    return model([node("Neg", "x", "y")], {"x": dims}, ["y"], **options)


def opened(proto: onnx.ModelProto, pulse: int = 4, **about: Any) -> Context:
    """The inputs are filed, no rule has been applied."""
    tracer = traced(proto, **about)
    ask = Questions(tracer.model, choose(tracer, 4 * pulse), lambda name: known_fact(ctx, name))
    ctx = Context(ask, pulse, tracer.time.batch, apply_rule)
    file_inputs(ctx, tracer.time)
    return ctx


def emitting(proto: onnx.ModelProto, pulse: int = 4, **about: Any) -> Context:
    """The same, and its step graph begun: for what writes nodes."""
    ctx = opened(proto, pulse, **about)
    emit(ctx)
    return ctx


def written(ctx: Context, *values: Deferred) -> Emission:
    """The step graph of all that is planned, and of these values."""
    for value in values:
        ctx.read(value.reads)
    return emit(ctx)


def made_by(ctx: Context, name: str) -> Node:
    return ctx.ask.model.producers[name]


def wire_of(ctx: Context, name: str) -> Wire:
    found = ctx.ask.wire(name)
    assert found is not None
    return found


def asked_rule(proto: onnx.ModelProto, name: str = "y", pulse: int = 4, **about: Any) -> tuple[Context, Plan | None]:
    """What the rule of the node that makes `name` says, those before it having been applied."""
    ctx = opened(proto, pulse, **about)
    wanted = made_by(ctx, name)
    for n in ctx.ask.model.nodes:
        if n is wanted:
            break
        if any(o and not ctx.ask.traces.runs[0][o].known for o in n.outputs):
            apply_rule(ctx, n)
    return ctx, RULES[wanted.op].rule(ctx, wanted)


def planned(proto: onnx.ModelProto, name: str = "y", pulse: int = 4, **about: Any) -> tuple[Context, Plan]:
    ctx, plan = asked_rule(proto, name, pulse, **about)
    assert plan is not None
    return ctx, plan


def refused(proto: onnx.ModelProto, pulse: int = 4, **about: Any) -> NotStreamable:
    """Turned down, by name and with something to do about it."""
    with pytest.raises(NotStreamable) as caught:
        converting(proto, pulse, **about)
    assert caught.value.node and caught.value.hint
    return caught.value


# ---- what a batch model does, seen from outside


def dependence(proto: onnx.ModelProto, length: int, axes: tuple[int, int] = (-1, -1)) -> Array:
    """Does output frame k change with input frame i? bool [k, i]; axes: where time stands in x and in the output."""
    session = open_model(proto, optimize=False)
    port = session.get_inputs()[0]
    x = frames(*(length if isinstance(d, str) else d for d in port.shape))

    def run(x: Array) -> Array:
        return np.moveaxis(np.asarray(session.run(None, {port.name: x})[0]), axes[1], 0)

    before = run(x)
    columns = []
    for i in range(length):
        changed = np.moveaxis(x.copy(), axes[0], 0)
        changed[i] += 1 + np.arange(changed[i].size).reshape(changed[i].shape)
        after = run(np.moveaxis(changed, 0, axes[0]))
        columns.append((after != before).reshape(len(before), -1).any(1))
    return np.stack(columns, 1)


def frames_made(proto: onnx.ModelProto, length: int, axis: int = -1) -> int:
    """How many frames batch makes of so many."""
    session = open_model(proto, optimize=False)
    port = session.get_inputs()[0]
    x = frames(*(length if isinstance(d, str) else d for d in port.shape))
    return int(np.asarray(session.run(None, {port.name: x})[0]).shape[axis])


def check_plan(
    proto: onnx.ModelProto,
    plan: Plan,
    lengths: Sequence[int] = (9, 10, 11, 12),
    axes: tuple[int, int] = (-1, -1),
    tight: bool = True,
) -> None:
    """Every frame that batch reads is inside the reach (and the reach ends there); there are as many as it says."""
    (read,) = plan.reads
    assert plan.length is not None
    for length in lengths:
        assert plan.length.at(length) == frames_made(proto, length, axes[1])
    seen = dependence(proto, lengths[-1], axes)
    touched = set()
    for k, row in enumerate(seen):
        first, last = read.reach.first(k), read.reach.last(k)
        at = np.flatnonzero(row)
        assert not at.size or (first <= at[0] and at[-1] <= last)
        touched |= {("first", at[0] == first), ("last", at[-1] == last)} if at.size else set()
    if tight:
        assert {("first", True), ("last", True)} <= touched


# ---- a graph under construction, run pulse by pulse


def _dims(value: ir.Value) -> list[int | str] | None:
    return None if value.shape is None else [d if isinstance(d, int) else str(d) for d in value.shape]


class Steps:
    """Runs what a builder holds; states are carried, those whose start must not matter start as NaN."""

    def __init__(
        self, ctx: Context, outputs: Mapping[str, ir.Value | Deferred], states: Sequence[State] | None = None
    ) -> None:
        if ctx.emission is None:
            written(ctx, *(v for v in outputs.values() if isinstance(v, Deferred)))
        made = {name: v.value if isinstance(v, Deferred) else v for name, v in outputs.items()}
        b, emission = ctx.builder, ctx.emission
        assert emission is not None
        self.ctx, self.n = ctx, 0
        self.states = states_of(emission) if states is None else list(states)
        results = {**made, **{f"new_{i}": s.after for i, s in enumerate(self.states)}}
        wanted = results
        needed, todo = dict[ir.Value, None](), list(wanted.values())
        while todo:
            value = todo.pop()
            if value in needed:
                continue
            needed[value] = None
            maker = value.producer()
            todo.extend(v for v in (maker.inputs if maker is not None else ()) if v is not None)
        self.inputs = [v for v in needed if v.producer() is None and v.const_value is None]
        graph = onnx.helper.make_graph(
            [
                *(ir.to_proto(n) for n in b.nodes if any(o in needed for o in n.outputs)),
                *(onnx.helper.make_node("Identity", [str(v.name)], [f"out:{name}"]) for name, v in wanted.items()),
            ],
            "steps",
            [onnx.helper.make_tensor_value_info(str(v.name), int(v.dtype or 1), _dims(v)) for v in self.inputs],
            [onnx.ValueInfoProto(name=f"out:{name}") for name in wanted],
            [
                onnx.numpy_helper.from_array(np.asarray(v.const_value.numpy()), str(v.name))
                for v in needed
                if v.const_value is not None
            ],
        )
        opsets = [onnx.helper.make_opsetid("", ctx.ask.model.opset_imports[""])]
        self.names = list(wanted)
        self.session = open_model(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), optimize=False)
        self.held: list[Array] = [self._start(s) for s in self.states]

    def _start(self, state: State) -> Array:
        dims = [d if isinstance(d, int) else 0 if d == "past" else 1 for d in state.shape]
        dtype = state.dtype.numpy()
        return np.full(dims, 0 if state.zero or not np.issubdtype(dtype, np.floating) else np.nan, dtype)

    def step(self, feeds: Mapping[str, Array], length: int = NEVER) -> dict[str, Array]:
        """One pulse; the clock is looked after."""
        ctx, given = self.ctx, dict(feeds)
        clock = {ctx.clock.position: self.n * ctx.pulse, ctx.clock.length: length}
        for value in self.inputs:
            if value in clock:
                given[str(value.name)] = np.array([[clock[value]]], np.int32)
            for state, held in zip(self.states, self.held, strict=True):
                if value is state.before:
                    given[str(value.name)] = held
        names = {str(v.name) for v in self.inputs}
        made = self.session.run(None, {k: v for k, v in given.items() if k in names})
        results = dict(zip(self.names, (np.asarray(a) for a in made), strict=True))
        self.held = [results.pop(f"new_{i}") for i in range(len(self.states))]
        self.n += 1
        return results


def run_window(
    ctx: Context, value: Deferred, window: Window, x: Array, made: int, axis: int = -1, name: str = "x"
) -> Array:
    """Frames [0, made) of a value that holds `window` at every pulse; x is fed pulse by pulse, and NaN behind its end.

    Frames that several pulses hold must be the same in all of them.
    """
    steps = Steps(ctx, {"out": value})
    port, length = ctx.stored[name].window, x.shape[axis]
    found: dict[int, Array] = {}
    n = 0
    while n * window.p + window.start < made or n * port.p < length:
        chunk = np.take(x, range(n * port.p, min((n + 1) * port.p, length)), axis)
        missing = [(0, 0)] * x.ndim
        missing[axis] = (0, port.p - chunk.shape[axis])
        filler = np.nan if x.dtype.kind == "f" else 99
        chunk = np.pad(chunk, missing, constant_values=filler)
        over = (n + 1) * port.p > length  # the end is known in the pulse in which it comes
        known = length * ctx.pulse // port.p if over else NEVER  # in frames of the stream
        out = np.moveaxis(steps.step({name: chunk}, known)["out"], axis, 0)
        assert len(out) == window.frames
        for k, frame in enumerate(out, n * window.p + window.start):
            if 0 <= k < made:
                np.testing.assert_array_equal(found.setdefault(k, frame), frame)
        n += 1
    return np.moveaxis(np.stack([found[k] for k in range(made)]), 0, axis)
