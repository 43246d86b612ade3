"""Fourier transforms: of every frame by itself, or of windows that advance along the signal."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from pulsify.convert.context import Context
from pulsify.convert.facts import Window
from pulsify.convert.plan import Plan, Read
from pulsify.convert.proof.claims import fixed_value
from pulsify.convert.proof.numbers import measured
from pulsify.convert.rules.axes import guard
from pulsify.convert.rules.pointwise import pointwise, static
from pulsify.convert.rules.registry import rule
from pulsify.core.reach import Reach
from pulsify.frontend.model import Node

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
    """[batch, samples(, 1 or 2)] -> [batch, frames, bins, 2]; frame k reads samples k * hop ... + size - 1."""
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    if wire.layout.axis == 0:
        return pointwise(ctx, node)
    if wire.layout.axis == 2:
        ctx.ask.refuse(node, "time is the axis of its real and imaginary parts", "put time on axis 1")
    wire = measured(ctx.ask, node, wire)
    hop = int(fixed_value(ctx.ask, node, node.inputs[1], "hop").reshape(-1)[0])
    size = ctx.ask.dims(node.inputs[2])[0] if node.input(2) else 0
    if node.input(3):
        size = int(fixed_value(ctx.ask, node, node.inputs[3], "frame length").reshape(-1)[0])
    assert wire.length is not None
    length = wire.length.then(1, hop - size, hop)
    ctx.ask.ledger.require(node.name, length, at_least=1)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        inputs = [values[0], *(ctx.ask.operand(node, i) for i in node.inputs[1:])]
        return ctx.builder.ops(node.op, inputs, node.attrs, name=node.name)

    read = Read(wire, Reach(hop, 1, 0, size - 1))
    return Plan((read,), (ctx.ask.layout(node, node.outputs[0]),), length, emit)
