"""Pad: frames that are not there, in front of and behind the stream. Negative pads cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire
from pulsify.analysis.length import Length
from pulsify.analysis.reach import shift
from pulsify.emit.boundary import Fill
from pulsify.emit.context import Context, Requirement
from pulsify.emit.plan import Plan, Read
from pulsify.frontend.model import Node
from pulsify.rules.lengths import length_from_model
from pulsify.rules.pointwise import pointwise, static
from pulsify.rules.registry import rule

MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect"}


@rule("Pad", says="constant, edge and reflect, negative pads, amounts computed by the model")
def pad(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    befores, afters, pads, axes = _amounts(ctx, node, wire)
    if not any(befores) and not any(afters):
        return _other_axes_only(ctx, node, wire, pads, axes)
    if len(set(befores)) > 1:
        ctx.refuse(
            node,
            "how much it pads in front depends on the total length",
            'pad a fixed amount, or declare the lengths you use, e.g. set={"T": "4*n"}',
        )
    mode = MODES.get(node.attr("mode", "constant"))
    if mode is None:
        ctx.refuse(
            node, f"padding mode '{node.attr('mode')}' shows the other end of the stream", "use zero, edge or reflect"
        )
    before = befores[0]
    length = _length(ctx, node, wire, before, afters)
    if mode == "reflect" and wire.length is not None:
        ctx.require(Requirement(wire.length, node.name, at_least=max(before, *afters) + 1))
    fill = Fill(mode, _value(ctx, node))

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (_pad_others(ctx, node, wire, values[0], pads, axes),)

    return Plan((Read(wire, shift(-before), fill),), (ctx.layout(node, node.outputs[0]),), length, emit)


def _amounts(ctx: Context, node: Node, wire: Wire) -> tuple[list[int], list[int], list[int], list[int]]:
    """Pads on time at every traced length; the pads of the other axes; the axes they are for."""
    rank = wire.layout.rank
    axes = list(range(rank))
    if node.input(3):
        axes = [int(a) % rank for a in ctx.constant(node, node.input(3), "axes").reshape(-1)]
    tables = ctx.known(node.inputs[1])
    if tables is None:
        ctx.refuse(node, "how much it pads depends on the data", "pad a fixed amount")
    pads = [int(v) for v in tables[0].reshape(-1)]
    if wire.layout.axis not in axes:
        return [0], [0], pads, axes
    at = axes.index(wire.layout.axis)
    befores = [int(t.reshape(-1)[at]) for t in tables]
    afters = [int(t.reshape(-1)[at + len(axes)]) for t in tables]
    pads[at] = pads[at + len(axes)] = 0
    return befores, afters, pads, axes


def _length(ctx: Context, node: Node, wire: Wire, before: int, afters: list[int]) -> Length | None:
    if wire.length is None:
        return None
    if len(set(afters)) == 1:
        total = before + afters[0]
        return wire.length.then(add=total, floor=total < 0)
    return length_from_model(ctx, node, node.outputs[0], wire.layout.axis)


def _value(ctx: Context, node: Node) -> float | int:
    if not node.input(2):
        return 0
    array = ctx.constant(node, node.input(2), "padding value").reshape(-1)
    return array[0].item() if array.size else 0


def _other_axes_only(ctx: Context, node: Node, wire: Wire, pads: list[int], axes: list[int]) -> Plan | None:
    tables = ctx.known(node.inputs[1])
    if tables is not None and all(np.array_equal(t, tables[0]) for t in tables):
        return pointwise(ctx, node)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        return (_pad_others(ctx, node, wire, values[0], pads, axes),)

    return Plan((Read(wire),), (ctx.layout(node, node.outputs[0]),), wire.length, emit)


def _pad_others(ctx: Context, node: Node, wire: Wire, x: ir.Value, pads: list[int], axes: list[int]) -> ir.Value:
    if not any(pads):
        return x
    full = [0] * (2 * wire.layout.rank)
    for i, axis in enumerate(axes):
        full[axis], full[axis + wire.layout.rank] = pads[i], pads[i + len(axes)]
    value = ctx.operand(node, node.input(2))
    return ctx.builder.op("Pad", x, ctx.builder.ints(*full), value, mode=node.attr("mode", "constant"), name=node.name)
