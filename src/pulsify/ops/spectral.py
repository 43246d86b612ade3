"""Fourier transforms: of every frame by itself, or of windows that advance along the signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire, emitted
from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import measured
from pulsify.analysis.zeros import NONE, Ends, weights, zero_ends
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.core.reach import Reach
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.ops.axes import guard
from pulsify.ops.conv import comes_sooner
from pulsify.ops.pointwise import pointwise, static
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read
from pulsify.trace.shapes import CHECK, SHAPE, Dims, Inputs
from pulsify.trace.traced import CannotRun

FRAMES = "cut the signal into frames first (STFT, or a strided convolution)"


@rule("DFT", says="along any axis but time; forward and inverse, one-sided or not")
def dft(ctx: Context, node: Node) -> Plan | None:
    if node.version >= 20:
        axis = int(fixed_value(ctx.ask, node, node.input(2), "axis").reshape(-1)[0]) if node.input(2) else -2
    else:
        axis = node.attr("axis", 1)
    guard(ctx, node, ctx.ask.wire(node.inputs[0]), [axis], "transforms", FRAMES)
    return pointwise(ctx, node)


@rule("STFT", says="any window, hop and size, one-sided or not, real or complex signals")
def stft(ctx: Context, node: Node) -> Plan | None:
    """[batch, samples(, 1 or 2)] -> [batch, frames, bins, 2]; frame k reads samples k * hop ... + size - 1.

    Where the window ends in zeros, as one shorter than the transform does, those samples are not waited for.
    """
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    if wire.layout.axis == 0:
        return pointwise(ctx, node)
    if wire.layout.axis == 2:
        ctx.ask.refuse(node, "time is the axis of its real and imaginary parts", "put time on axis 1", kind=Kind.AXES)
    wire = measured(ctx.ask, node, wire)
    hop = int(fixed_value(ctx.ask, node, node.inputs[1], "hop").reshape(-1)[0])
    size = ctx.ask.dims(node.inputs[2])[0] if node.input(2) else 0
    if node.input(3):
        size = int(fixed_value(ctx.ask, node, node.inputs[3], "frame length").reshape(-1)[0])
    assert wire.length is not None
    length = wire.length.then(1, hop - size, hop)
    ctx.ask.ledger.require(node.name, length, at_least=1)

    front, back = _silent_ends(ctx, node, wire, length, Reach(hop, 1, 0, size - 1))

    beside = [ctx.ask.operand(node, i) for i in node.inputs[1:]]

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b, x = ctx.builder, values[0]
        if front or back:  # the operator wants whole frames: zeros where its window is zero
            pads = [0] * (2 * wire.layout.rank)
            pads[1], pads[1 + wire.layout.rank] = front, back
            x = b.op("Pad", x, b.ints(*pads))
        return b.ops(node.op, [x, *map(emitted, beside)], node.attrs, name=node.name)

    read = Read(wire, Reach(hop, 1, front, size - 1 - back))
    return Plan((read,), (ctx.ask.layout(node, node.outputs[0]),), length, emit)


def _silent_ends(ctx: Context, node: Node, wire: Wire, length: Length, reach: Reach) -> Ends:
    """Samples at both ends of a frame that meet a zero of the window, if frames come sooner without them."""
    array = weights(ctx.ask, node.inputs[2]) if node.input(2) else None
    if array is None:
        return NONE
    front, back = zero_ends(array, 0)
    sooner = comes_sooner(ctx, node, wire, length, reach, replace(reach, hi=reach.hi - back))
    return (front // reach.num * reach.num, back) if sooner else NONE


# ---- at one length
@CHECK("STFT")
def _steps_are_positive(node: Node, ins: Inputs) -> None:
    for what, v in (("hop", ins[1]), ("frame length", ins[3] if len(ins) > 3 else None)):
        if v is not None and v.known and v.array.min(initial=1) < 1:  # the runtime divides by it: the process ends
            raise CannotRun(node, f"its {what} is {int(v.array.min())}")


@SHAPE("STFT")
def _frames_of_signal(node: Node, ins: Inputs) -> Dims | None:
    x, hop, window, size = (ins[i] if len(ins) > i else None for i in range(4))
    if x is None:
        return None
    if hop is None or not hop.known or (size is not None and not size.known):
        raise NotStreamable(
            "its hop or frame length depends on the data",
            node=node.name,
            op=node.op,
            hint="make them constants",
            kind=Kind.DATA,
        )
    frame = int(size.array.reshape(-1)[0]) if size is not None else window.dims[0] if window is not None else 0
    if x.dims[1] < frame:
        raise CannotRun(node, f"its frame of {frame} is longer than its input of {x.dims[1]}")
    frames = (x.dims[1] - frame) // int(hop.array.reshape(-1)[0]) + 1
    return (x.dims[0], frames, frame // 2 + 1 if node.attr("onesided", 1) else frame, 2)
