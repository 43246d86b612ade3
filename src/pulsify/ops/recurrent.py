"""LSTM, GRU and RNN: the state is carried from pulse to pulse; over any other axis they are frame by frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Window, Wire, emitted
from pulsify.analysis.proof.numbers import in_frames, measured, numbers, same_series
from pulsify.core.refusal import Kind
from pulsify.emit.carry import carry, per_stream, real_count, skipped
from pulsify.emit.fold import SHORT
from pulsify.emit.frames import gather_frames
from pulsify.frontend.model import Node
from pulsify.ops.pointwise import pointwise, static
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read, Whole
from pulsify.plan.wanted import wanted_by_anyone, zero
from pulsify.trace.usage import ROLE, Role, Use, Walk

LENGTHS, FIRST_STATE = 4, 5  # inputs: sequence_lens, initial_h (and initial_c)


@rule("LSTM", "GRU", "RNN", says="forward over time with any initial state; any direction over other axes")
def recurrent(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    if wire.layout.axis == 2:
        ctx.ask.refuse(
            node, "time is its feature axis", "put time on the sequence or on the batch axis", kind=Kind.AXES
        )
    if wire.layout.axis == 1:
        return _over_another_axis(ctx, node, wire)
    if node.attr("direction", "forward") != "forward":
        ctx.ask.refuse(
            node,
            f"it runs {node.attr('direction')} over time, so it reads the whole future",
            "use a forward recurrence, or run it over another axis",
            kind=Kind.BACKWARDS,
        )
    if wire.layout.folded or (wire.length is None and wire.end is not None):
        ctx.ask.refuse(
            node, "it runs where time is merged with another axis (B*T, say)", "use a plain time axis", kind=Kind.AXES
        )
    wire = measured(ctx.ask, node, wire)
    assert wire.length is not None
    _check_lengths(ctx, node, wire)
    wanted = [i for i, o in enumerate(node.outputs) if o and i > 0 and wanted_by_anyone(ctx, o)]
    if node.op == "GRU":  # the runtime takes no empty sequence there
        ctx.ask.ledger.require(node.name, wire.length, at_least=1)

    weights = (1, 2, 3, 7)  # W, R, B and the peepholes
    given = {i: ctx.ask.operand(node, n) for i, n in enumerate(node.inputs) if n and i in weights}
    starts = [_initial(ctx, node, FIRST_STATE + i) for i in range(2 if node.op == "LSTM" else 1)]

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value | None]:
        return _emit(ctx, node, wire, values[0], window, bool(wanted), given, starts)

    first = node.outputs[0]
    layouts = (ctx.ask.layout(node, first) if first else None, *(None for _ in node.outputs[1:]))
    return Plan((Read(wire),), layouts, wire.length, emit, exact=True, whole=Whole())


def _over_another_axis(ctx: Context, node: Node, wire: Wire) -> Plan | None:
    """Time is (part of) the operator's batch: frame by frame. An initial state of zeros is none."""
    if node.op != "RNN" and wire.length is not None:  # an empty batch ends the runtime's process
        ctx.ask.ledger.require(node.name, wire.length, at_least=1)
    inputs = [
        "" if i in (FIRST_STATE, FIRST_STATE + 1) and name and zero(ctx, name) else name
        for i, name in enumerate(node.inputs)
    ]
    return pointwise(ctx, replace(node, inputs=tuple(inputs)))


def _check_lengths(ctx: Context, node: Node, wire: Wire) -> None:
    """sequence_lens may only say what the stream's own length says."""
    name = node.input(LENGTHS)
    if not name:
        return
    own = wire.length
    assert own is not None
    frames = in_frames(ctx.ask, own)
    if ctx.ask.known(name) is None or not all(same_series(c, frames) for c in numbers(ctx.ask, node, name).flat):
        ctx.ask.refuse(
            node,
            "its sequence lengths are data, or not the length of the stream",
            "leave them out, or bind them to the stream's length",
            kind=Kind.DATA,
        )


def _initial(ctx: Context, node: Node, index: int) -> Deferred | None:
    """The initial state, or None if it is zero."""
    name = node.input(index)
    if not name:
        return None
    return None if zero(ctx, name) else ctx.ask.operand(node, name)


def _state_sizes(ctx: Context, node: Node, wire: Wire) -> tuple[int, ...]:
    """Sizes of Y_h and Y_c: one direction, the input's batch axis, the hidden size."""
    return (1, wire.layout.sizes[1], ctx.ask.dims(node.inputs[2])[2])


def _emit(
    ctx: Context,
    node: Node,
    wire: Wire,
    x: ir.Value,
    window: Window,
    wanted: bool,
    given: Mapping[int, Deferred | None],
    starts: Sequence[Deferred | None],
) -> Sequence[ir.Value | None]:
    """In float32 where the frames are in half precision: so does the runtime, from the first frame to the last."""
    b, sizes = ctx.builder, _state_sizes(ctx, node, wire)
    count = len(starts)
    dtype = SHORT.get(wire.dtype, wire.dtype)

    def cast(value: ir.Value | None, to: ir.DataType) -> ir.Value | None:
        return value if value is None or dtype == wire.dtype else b.op("Cast", value, to=int(to))

    carries = [
        carry(ctx, f"{node.name}_{'hc'[i]}", dtype, sizes, cast(emitted(start), dtype), window)
        for i, start in enumerate(starts)
    ]
    skip = skipped(ctx, window)
    real = None
    if skip is not None or wanted:
        real = real_count(ctx, window, wire.length if wanted else None, skip)
    if skip is not None:  # bring the first real frame to the front
        x = gather_frames(ctx, x, _turned(ctx, skip, window, 1), wire.layout, window.frames)
    inputs = [cast(emitted(given.get(i)), dtype) for i in range(len(node.inputs))]
    inputs += [None] * (FIRST_STATE + count - len(inputs))
    inputs[0], inputs[LENGTHS] = cast(x, dtype), None if real is None else _per_row(ctx, real, sizes)
    for i, c in enumerate(carries):
        inputs[FIRST_STATE + i] = c.value
    made = list(b.ops(node.op, inputs, node.attrs, outputs=1 + count, name=node.name))
    for i, c in enumerate(carries):
        after = made[1 + i]
        if real is not None:  # no real frame: nothing happens
            some = b.op("Greater", real, b.constant(np.array(0, np.int32), "int"))
            after = made[1 + i] = b.op("Where", per_stream(ctx, some, sizes), after, c.value)
        c.keep(after)
    made = [v for v in (cast(m, wire.dtype) for m in made) if v is not None]
    if skip is not None and node.outputs[0]:
        layout = ctx.ask.layout(node, node.outputs[0])
        made[0] = gather_frames(ctx, made[0], _turned(ctx, skip, window, -1), layout, window.frames)
    return made


def _turned(ctx: Context, skip: ir.Value, window: Window, by: int) -> ir.Value:
    """Places that move frames forward (by=1) or back (by=-1) by `skip`, held inside the window; int32 [B, frames]."""
    b = ctx.builder
    places = b.constant(np.arange(window.frames, dtype=np.int32)[None], "offsets")
    moved = b.op("Add" if by > 0 else "Sub", places, skip)
    low, high = (b.constant(np.array(v, np.int32), "int") for v in (0, window.frames - 1))
    return b.op("Min", b.op("Max", moved, low), high)


def _per_row(ctx: Context, real: ir.Value, sizes: tuple[int, ...]) -> ir.Value:
    """[B, 1] as one number for every row of the operator's batch."""
    b = ctx.builder
    rows = next((s for s in sizes if s < 0), None)
    if rows is None:
        return b.op("Expand", b.reshape(real, [1]), b.ints(sizes[1]))
    return b.reshape(b.op("Expand", real, b.ints(1, -rows)) if rows < -1 else real, [-1])


# ---- roles of inputs
@ROLE("LSTM", "GRU", "RNN")
def _length_of_sequences(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    if tuple(own) != (LENGTHS,):
        walk.into_data(node, own)
    elif 0 in walk.timed(node.inputs[0]):
        walk.say(node, Use.LENGTH, "takes it as the length of its sequences")
    else:
        walk.say(node, Use.OTHER, "takes it as the length of sequences that are not the stream")
    return None
