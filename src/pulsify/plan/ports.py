"""What goes in and out of a streaming graph: inputs pushed chunk by chunk, static inputs, outputs."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, FirstFrames, Late, Layout, Static, Varying, Window, Wire, deferred
from pulsify.analysis.proof.batches import by_streams
from pulsify.analysis.proof.numbers import length_of, numbers, size_length
from pulsify.core.errors import NotStreamable
from pulsify.core.framing import filler_is_zero
from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE
from pulsify.core.refusal import Kind
from pulsify.core.spec import Input, Output
from pulsify.core.spec import Static as StaticInput
from pulsify.emit.frames import aligned
from pulsify.frontend.time import TimeSpec
from pulsify.plan.at_end import at_end, end_number, told
from pulsify.plan.boundary import after_first, waits
from pulsify.plan.context import Context, Step, counted, streams_in_step
from pulsify.plan.start_up import start_up
from pulsify.plan.trail import Trail


def file_inputs(ctx: Context, time: TimeSpec) -> None:
    for port in ctx.ask.model.inputs:
        if port.name in time.bound or port.name in time.filled:
            continue
        dims = list(declared(port.name, ctx, time))
        if port.name not in time.streams:
            ctx.ask.facts[port.name] = Static(_input(ctx, port.name, port.dtype, dims))
            continue
        axis, per = time.streams[port.name]
        p = ctx.frames(Fraction(per))
        dims[axis] = p
        value = _input(ctx, port.name, port.dtype, dims)
        first = ctx.phase * per
        layout, window = Layout(ctx.ask.sizes(port.name, axis), axis), Window(p, -first, p - first)
        ctx.trails[port.name] = Trail(p, p - first)
        zeros = filler_is_zero(ctx.ask.dtype(port.name).numpy())  # what stands in front of the stream
        stored = ctx.file_wire(port.name, port.name, value, layout, Length().then(per), window, clean=zeros)
        ctx.add(Step(port.name, window, (value,), (stored,), (port.name,)))


def _input(ctx: Context, name: str, dtype: ir.DataType, dims: list[int | str]) -> Deferred:
    ctx.ports[name] = dtype, tuple(dims)
    return Deferred(lambda: ctx.builder.inputs[name], fixed=False)


def declared(name: str, ctx: Context, time: TimeSpec) -> tuple[int | str, ...]:
    """An input's dimensions with the batch left open."""
    sizes = ctx.ask.sizes(name, time.streams[name][0]) if name in time.streams else ctx.ask.sizes_static(name)
    return tuple((time.batch or 1) if s == -1 else s if s >= 0 else f"{-s}*{time.batch}" for s in sizes)


def stream_input(ctx: Context, time: TimeSpec, name: str) -> Input:
    axis, per = time.streams[name]
    dims = tuple(d if isinstance(d, int) else str(d) for d in ctx.ports[name][1])
    return Input(name, axis, Fraction(per), ctx.ask.dtype(name).numpy(), dims)


def static_input(ctx: Context, time: TimeSpec, name: str) -> StaticInput:
    return StaticInput(name, ctx.ask.dtype(name).numpy(), declared(name, ctx, time))


def output(ctx: Context, name: str) -> tuple[Output, Deferred]:
    fact = ctx.ask.fact(name)
    node = ctx.ask.model.producers.get(name)
    if isinstance(fact, Wire):
        return _stream_output(ctx, name, fact)
    if isinstance(fact, Static):
        dims, dtype = _open_dims(ctx, ctx.ask.sizes_static(name)), ctx.ask.dtype(name).numpy()
        awaited = _awaited(ctx, fact)
        if awaited is not None:
            length, window = awaited
            return Output(name, None, Fraction(0), window.p - window.end, window.p, dtype, dims, length), fact.recipe
        return Output(name, None, Fraction(0), 0, 0, dtype, dims, Length()), fact.recipe
    if isinstance(fact, Varying):
        return _length_output(ctx, name)
    assert node is not None
    if isinstance(fact, FirstFrames) and not fact.bare and fact.wire.length is not None:
        return _stream_output(ctx, name, _cut_short(fact, name))
    if isinstance(fact, (FirstFrames, Late)):
        ctx.ask.operand(node, name)  # a value from here on, or refused
        return output(ctx, name)
    times = ctx.ask.time_axes(name)
    if len(times) > 1:
        raise NotStreamable(
            f"output '{name}' has {len(times)} time axes ({', '.join(map(str, times))}): every frame meets every "
            "other, so no row of it is complete before the stream ends",
            node=node.name,
            op=node.op,
            hint="give out what is made of it (attention sums over one of them), not the scores themselves",
            kind=Kind.LOOK_AHEAD,
        )
    ctx.ask.refuse(node, f"output '{name}' is no stream", "give out what is made of it", kind=Kind.AXES)


def _cut_short(fact: FirstFrames, name: str) -> Wire:
    """The first frames of a stream as a stream that ends there (or before, if there are fewer)."""
    length = fact.wire.length
    assert length is not None
    cap = fact.count if length.cap is None else min(fact.count, length.cap)
    short = tuple(min(s, cap) for s in length.short)
    return replace(fact.wire, name=name, length=replace(length, cap=cap, short=short))


def _open_dims(ctx: Context, sizes: tuple[int, ...]) -> tuple[int | str, ...]:
    batch = ctx.batch or 1
    return tuple(s if s >= 0 else batch if s == -1 else f"{-s}*{batch}" for s in sizes)


def _stream_output(ctx: Context, name: str, wire: Wire) -> tuple[Output, Deferred]:
    node = ctx.ask.model.producers.get(name)
    folded = _goes_with_the_batch(ctx, name, wire.layout.axis)
    if folded or (wire.layout.folded and wire.end is not None):
        assert node is not None
        ctx.ask.refuse(
            node,
            "an output has time merged with another axis (B*T, say)",
            "give it out before the reshape, time on its own axis",
            kind=Kind.AXES,
        )
    length = wire.length
    if length is None:
        assert node is not None
        axis = wire.layout.axis
        length = size_length(ctx.ask, node, name, axis)
    p = ctx.frames(length.rate)
    end = min(p, ctx.latest_end(length)) if wire.end is None else min(wire.end, p)
    end = after_first(ctx, wire.waits, p, end)
    while waits(ctx, wire, POINTWISE, None, Window(p, end - p, end)):
        end -= 1
    window = Window(p, end - p, end)
    value, layout = _given_out(ctx, name, wire, wire.take(window), window)
    dims = list(_open_dims(ctx, layout.sizes))
    dims[layout.axis] = p
    begins = start_up(ctx.trails, wire.name, length, ctx.pulse)
    kind = wire.dtype.numpy()
    out = Output(
        name, layout.axis, length.rate, p - end, p, kind, tuple(dims), length, layout.batch, start_up=begins
    )  # fmt: skip
    return out, value


def _goes_with_the_batch(ctx: Context, name: str, axis: int) -> bool:
    """Has it so many times as many frames as there are streams?"""
    other, first = ctx.ask.traces.other_batch, next(iter(ctx.ask.traces.tracer.time.streams))
    if other is None:
        return False
    more = Fraction(math.prod(other[first].dims), math.prod(ctx.ask.dims(first, 0)))
    return more != 1 and other[name].dims[axis] == more * ctx.ask.dims(name, 0)[axis]


def _given_out(ctx: Context, name: str, wire: Wire, value: Deferred, window: Window) -> tuple[Deferred, Layout]:
    """A known value may have one entry for all streams, or those folded in front of time: brought to its own shape."""
    own = Layout(ctx.ask.sizes(name, wire.layout.axis), wire.layout.axis)
    if wire.layout == own and (wire.end is not None or own.batch is None):
        return value, own
    sizes = tuple(window.frames if i == own.axis else s for i, s in enumerate(own.sizes))

    def make() -> ir.Value:
        return ctx.builder.op("Expand", aligned(ctx, wire, value.value, own, window), counted(ctx, sizes))

    return deferred(make, value), own


def _length_output(ctx: Context, name: str) -> tuple[Output, Deferred]:
    """An output that follows from the length alone (encoded_lengths, a Shape): right once the length is known."""
    own, dtype = ctx.ask.sizes_static(name), ctx.ask.dtype(name)
    dims = _open_dims(ctx, own)
    streams = by_streams(ctx.ask, name) if dtype.is_integer() and all(s >= 0 for s in own) else []
    if any(streams):
        value = _with_streams(ctx, name, streams, own)
        return Output(name, None, Fraction(0), 0, 0, dtype.numpy(), dims, Length()), value
    length = told(ctx, name) or Length()
    return Output(name, None, Fraction(0), 0, 0, dtype.numpy(), dims, length), at_end(ctx, name).recipe


def _with_streams(ctx: Context, name: str, streams: list[int], own: tuple[int, ...]) -> Deferred:
    """Numbers, some of which are so many times the number of streams."""
    node, dtype = ctx.ask.model.producers[name], ctx.ask.dtype(name)
    cells = numbers(ctx.ask, node, name).reshape(-1)
    if any(n and not c.constant for n, c in zip(streams, cells, strict=True)):
        raise NotStreamable(
            f"output '{name}' depends on the total length in an irregular way",
            node=node.name,
            op=node.op,
            hint="compute it outside the model, after the stream",
            kind=Kind.LENGTH,
        )

    def of_streams(count: int) -> Deferred:
        return Deferred(lambda: ctx.builder.op("Mul", streams_in_step(ctx), ctx.builder.ints(count)))

    parts = [
        of_streams(n) if n else end_number(ctx, node, length_of(ctx.ask, node, c), ir.DataType.INT64, by_stream=False)
        for n, c in zip(streams, cells, strict=True)
    ]

    def make() -> ir.Value:
        b = ctx.builder
        return b.reshape(b.op("Cast", b.op("Concat", *(p.value for p in parts), axis=0), to=int(dtype)), own)

    return deferred(make, *parts)


def _awaited(ctx: Context, fact: Static) -> tuple[Length, Window] | None:
    """The frames that a value without time waits for: so many of a wire, when they come.

    Of several wires, the stream's own frames with a delay that is enough for all of them.
    """
    waits = [(w.length, w.window) for w in fact.waits if w.window is not None]
    if len(waits) <= 1:
        return waits[0] if waits else None
    delay = max(_behind(ctx, length, window) for length, window in waits)
    return Length(), Window(ctx.pulse, -delay, ctx.pulse - delay)


def _behind(ctx: Context, length: Length, window: Window) -> int:
    """By how much a wire's last frame comes after the stream's, at the most, in frames of the stream."""
    rate, plain = Fraction(window.p, ctx.pulse), replace(length, cap=None)
    lengths = np.arange(1, plain.settled + 2 * plain.period + 1)
    frames = (plain.each(lengths) + window.p - window.end) * rate.denominator - lengths * rate.numerator
    return max(-(-int(frames.max()) // rate.numerator), 0)
