"""Range: positions, counted by the clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import sizes
from pulsify.convert.context import Context
from pulsify.convert.known_facts import counter
from pulsify.convert.plan import Plan
from pulsify.core.arrays import Array
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.ops.pointwise import static
from pulsify.ops.registry import rule
from pulsify.trace.evaluate import DIGITS, MEASURE, SHAPED_BY, exact
from pulsify.trace.usage import ROLE, SIZED, Count, Derived, Extent, Role, Sized, Walk


@rule("Range", says="from a fixed start: the stream's own clock")
def range_(ctx: Context, node: Node) -> Plan | None:
    name = node.outputs[0]
    if not ctx.ask.time_axes(name):
        return static(ctx, node)
    start = fixed_value(ctx.ask, node, node.inputs[0], "start").reshape(-1)[0]
    step = fixed_value(ctx.ask, node, node.inputs[2], "step").reshape(-1)[0]
    if not all(float(v) * 1024 == int(float(v) * 1024) for v in (start, step)):
        ctx.ask.refuse(
            node,
            f"ONNX Runtime adds its step of {step} up, and rounds every time: no frame is start + k * step",
            "count in whole numbers, and multiply",
        )
    exact_up_to(ctx, name, start.item(), step.item())
    ctx.ask.facts[name] = counter(ctx, name, 0, start.item(), step.item())
    return None


def exact_up_to(ctx: Context, name: str, start: float, step: float) -> None:
    """Floats that are added up are exact as long as they are short enough: multiples of a power of two."""
    dtype = ctx.ask.dtype(name)
    if not dtype.is_floating_point() or not step:
        return
    digits = np.finfo(dtype.numpy()).nmant + 1
    unit = Fraction(1, max(Fraction(v).denominator for v in (start, step)))
    whole = [int(Fraction(v) / unit) for v in (start, step) if v]
    unit *= math.gcd(*whole) & -math.gcd(*whole)
    frames = (unit * 2**digits - abs(Fraction(start))) / abs(Fraction(step))
    rate = sizes(ctx.ask, ctx.ask.model.producers.get(name), name)[ctx.ask.time_axes(name)[0]].rate
    ctx.ask.ledger.up_to(max(int(frames / max(rate, Fraction(1))), 1), name)


@rule("ConstantOfShape", "Shape", "Size", "NonZero", "EyeLike", says="evaluated; never part of the stream's data")
def evaluated(ctx: Context, node: Node) -> Plan | None:
    if not ctx.ask.time_axes(node.outputs[0]) and not any(ctx.ask.wire(i) for i in node.inputs):
        return static(ctx, node)
    ctx.ask.refuse(
        node,
        "its value depends on the total length or on the data",
        "use a value that is known while streaming",
        kind=Kind.LENGTH,
    )


# ---- roles of inputs

SIZED.add(
    {
        "ConstantOfShape": Sized((0,), "new"),
        "Range": Sized((0, 1, 2), "new"),
        "Trilu": Sized((1,), "part"),
        "OneHot": Sized((1,), "other"),
    }
)
ROLE.add(dict.fromkeys(("Shape", "Size"), lambda walk, node, own: Count()))


@ROLE("NonZero")
def _listed(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    return own[0] if isinstance(own.get(0), Extent) else Derived()


# ---- at one length

SHAPED_BY.add(dict.fromkeys(("Range", "ConstantOfShape", "OneHot", "Compress"), "values"))
SHAPED_BY.add({"NonZero": "data", "Unique": "data"})
DIGITS.add(dict.fromkeys(("Shape", "Size", "NonZero"), exact))


@MEASURE("Shape")
def _sizes(node: Node, dims: tuple[int, ...]) -> Array:
    return np.array(dims[slice(node.attr("start", 0), node.attr("end", len(dims)))], np.int64)


@MEASURE("Size")
def _entries(_: Node, dims: tuple[int, ...]) -> Array:
    return np.array(math.prod(dims), np.int64)
