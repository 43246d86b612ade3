"""Static quantisation: scales and zero points are constants, so every frame is by itself."""

from __future__ import annotations

from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.ops.pointwise import pointwise
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan


@rule("QuantizeLinear", "DequantizeLinear", says="constant scales, per tensor or per channel")
def quantize(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if (
        wire is not None
        and ctx.ask.dims(node.inputs[1]) not in ((), (1,))
        and wire.layout.axis == node.attr("axis", 1) % wire.layout.rank
    ):
        ctx.ask.refuse(node, "it has a scale of its own for every frame", "quantise per tensor or per channel")
    return pointwise(ctx, node)


@rule("DynamicQuantizeLinear", says="refused: the scale follows from the whole input")
def dynamic(ctx: Context, node: Node) -> Plan | None:
    if ctx.ask.wire(node.inputs[0]) is not None:
        ctx.ask.refuse(
            node,
            "its scale is computed from the whole stream",
            "use static quantisation (QDQ with calibrated scales)",
            kind=Kind.WHOLE_STREAM,
        )
    return pointwise(ctx, node)
