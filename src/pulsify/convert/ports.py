"""What goes in and out of a streaming graph: inputs pushed chunk by chunk, static inputs, outputs."""

from __future__ import annotations

import math
from fractions import Fraction

import onnx_ir as ir

from pulsify.convert.context import Context
from pulsify.convert.facts import Layout, Static, Varying, Window, Wire
from pulsify.convert.known_facts import streams_in_step
from pulsify.convert.primitives.boundary import waits
from pulsify.convert.proof.batches import by_streams
from pulsify.convert.proof.numbers import length_of, numbers, same_series, size_length
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.reach import POINTWISE
from pulsify.core.spec import Input, Output
from pulsify.core.spec import Static as StaticInput
from pulsify.frontend.time import TimeSpec


def file_inputs(ctx: Context, time: TimeSpec) -> None:
    for port in ctx.ask.model.inputs:
        if port.name in time.bound or port.name in time.filled:
            continue
        dims = list(declared(port.name, ctx, time))
        if port.name not in time.streams:
            ctx.ask.facts[port.name] = Static(ctx.builder.input(port.name, port.dtype, dims))
            continue
        axis, per = time.streams[port.name]
        p = ctx.frames(Fraction(per))
        dims[axis] = p
        value = ctx.builder.input(port.name, port.dtype, dims)
        layout = Layout(ctx.ask.sizes(port.name, axis), axis)
        ctx.emitted(port.name, port.name, value, layout, Length().then(per), Window(p, 0, p))


def declared(name: str, ctx: Context, time: TimeSpec) -> tuple[int | str, ...]:
    """An input's dimensions with the batch left open."""
    sizes = ctx.ask.sizes(name, time.streams[name][0]) if name in time.streams else ctx.ask.sizes_static(name)
    return tuple((time.batch or 1) if s == -1 else s if s >= 0 else f"{-s}*{time.batch}" for s in sizes)


def stream_input(ctx: Context, time: TimeSpec, name: str) -> Input:
    axis, per = time.streams[name]
    dims = tuple(d if isinstance(d, int) else str(d) for d in ctx.builder.inputs[name].shape or ())
    return Input(name, axis, Fraction(per), ctx.ask.dtype(name).numpy(), dims)


def static_input(ctx: Context, time: TimeSpec, name: str) -> StaticInput:
    return StaticInput(name, ctx.ask.dtype(name).numpy(), declared(name, ctx, time))


def output(ctx: Context, name: str) -> tuple[Output, ir.Value]:
    fact = ctx.ask.fact(name)
    node = ctx.ask.model.producers.get(name)
    if isinstance(fact, Wire):
        return _stream_output(ctx, name, fact)
    if isinstance(fact, Static):
        dims, dtype = _open_dims(ctx, ctx.ask.sizes_static(name)), ctx.ask.dtype(name).numpy()
        if fact.final is not None:
            p, delay = fact.final.window.p, fact.final.window.p - fact.final.window.end
            out = Output(name, None, Fraction(0), delay, p, dtype, dims, fact.final.length)
            return out, fact.value
        return Output(name, None, Fraction(0), 0, 0, dtype, dims, Length()), fact.value
    if isinstance(fact, Varying):
        return _length_output(ctx, name)
    assert node is not None
    times = ctx.ask.time_axes(name)
    if len(times) > 1:
        raise NotStreamable(
            f"output '{name}' has {len(times)} time axes ({', '.join(map(str, times))}): every frame meets every "
            "other, so no row of it is complete before the stream ends",
            node=node.name,
            op=node.op,
            hint="give out what is made of it (attention sums over one of them), not the scores themselves",
        )
    raise NotStreamable(
        "an output is made of the first frames of the stream alone",
        node=node.name,
        op=node.op,
        hint="give out all frames and cut after the stream",
    )


def _open_dims(ctx: Context, sizes: tuple[int, ...]) -> tuple[int | str, ...]:
    batch = ctx.clock.batch or 1
    return tuple(s if s >= 0 else batch if s == -1 else f"{-s}*{batch}" for s in sizes)


def _stream_output(ctx: Context, name: str, wire: Wire) -> tuple[Output, ir.Value]:
    node = ctx.ask.model.producers.get(name)
    if wire.layout.folded and wire.end is not None:
        assert node is not None
        ctx.ask.refuse(
            node,
            "an output has time folded together with another axis",
            "give it out before the reshape, time on its own axis",
        )
    length = wire.length
    if length is None:
        assert node is not None
        axis = wire.layout.axis
        length = size_length(ctx.ask, node, name, axis)
    p = ctx.frames(length.rate)
    end = min(p, length.latest_end(ctx.pulse)) if wire.end is None else min(wire.end, p)
    while waits(ctx, wire, POINTWISE, None, Window(p, end - p, end)):
        end -= 1
    value = wire.take(Window(p, end - p, end))
    dims = list(_open_dims(ctx, wire.layout.sizes))
    dims[wire.layout.axis] = p
    out = Output(
        name, wire.layout.axis, length.rate, p - end, p, wire.dtype.numpy(), tuple(dims), length, wire.layout.batch
    )
    return out, value


def _length_output(ctx: Context, name: str) -> tuple[Output, ir.Value]:
    """An output that follows from the length alone (encoded_lengths, a Shape): right once the length is known."""
    node, dtype = ctx.ask.model.producers[name], ctx.ask.dtype(name)
    cells = numbers(ctx.ask, node, name).reshape(-1)
    own = ctx.ask.sizes_static(name)
    alike = all(same_series(c, cells[0]) for c in cells)
    streams = by_streams(ctx.ask, name) if all(s >= 0 for s in own) else [0] * len(cells)
    irregular = any(n and not c.constant for n, c in zip(streams, cells, strict=True))
    if not dtype.is_integer() or irregular or (not alike and any(s < 0 for s in own)):
        raise NotStreamable(
            f"output '{name}' depends on the total length in an irregular way",
            node=node.name,
            op=node.op,
            hint="compute it outside the model, after the stream",
        )
    dims = _open_dims(ctx, own)
    if alike and not any(streams):
        length = length_of(ctx.ask, node, cells[0])
        x = _spread(ctx, _number(ctx, length, dtype, every=any(s < 0 for s in own)), own)
        return Output(name, None, Fraction(0), 0, 0, dtype.numpy(), dims, length), x
    b = ctx.builder
    parts = [
        b.op("Mul", streams_in_step(ctx), b.ints(n))
        if n
        else _number(ctx, length_of(ctx.ask, node, c), ir.DataType.INT64)
        for n, c in zip(streams, cells, strict=True)
    ]
    whole = b.op("Cast", b.op("Concat", *parts, axis=0), to=int(dtype))
    return Output(name, None, Fraction(0), 0, 0, dtype.numpy(), dims, Length()), b.reshape(whole, own)


def _number(ctx: Context, length: Length, dtype: ir.DataType, every: bool = False) -> ir.Value:
    """A length as one number [1] for all streams of a session, which end together; every: one a stream, [B, 1]."""
    b = ctx.builder
    x = b.op("Cast", ctx.clock.end(length), to=int(dtype))
    if ctx.clock.batch is not None and not every:
        x = b.op("Gather", x, b.ints(0), axis=0)
    return x if every else b.reshape(x, [1])


def _spread(ctx: Context, x: ir.Value, sizes: tuple[int, ...]) -> ir.Value:
    b = ctx.builder
    if any(s < 0 for s in sizes) or math.prod(sizes) == 1:
        return b.reshape(x, [max(s, -1) for s in sizes])
    return b.op("Expand", b.reshape(x, [1] * len(sizes)), b.ints(*sizes))
