"""Range: positions, counted by the clock."""

from __future__ import annotations

from pulsify.convert.context import Context
from pulsify.convert.known_facts import counter
from pulsify.convert.plan import Plan
from pulsify.convert.rules.pointwise import static
from pulsify.convert.rules.registry import rule
from pulsify.frontend.model import Node


@rule("Range", says="from a fixed start: the stream's own clock")
def range_(ctx: Context, node: Node) -> Plan | None:
    name = node.outputs[0]
    if not ctx.time_axes(name):
        return static(ctx, node)
    start = ctx.constant(node, node.inputs[0], "start").reshape(-1)[0]
    step = ctx.constant(node, node.inputs[2], "step").reshape(-1)[0]
    if not all(float(v) * 1024 == int(float(v) * 1024) for v in (start, step)):
        ctx.refuse(
            node,
            f"ONNX Runtime adds its step of {step} up, and rounds every time: no frame is start + k * step",
            "count in whole numbers, and multiply",
        )
    ctx.facts[name] = counter(ctx, name, 0, start.item(), step.item())
    return None


@rule("ConstantOfShape", "Shape", "Size", "NonZero", "EyeLike", says="evaluated; never part of the stream's data")
def evaluated(ctx: Context, node: Node) -> Plan | None:
    if not ctx.time_axes(node.outputs[0]) and not any(ctx.wire(i) for i in node.inputs):
        return static(ctx, node)
    ctx.refuse(
        node, "its value depends on the total length or on the data", "use a value that is known while streaming"
    )
