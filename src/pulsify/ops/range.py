"""Range: positions, counted by the clock."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import sizes
from pulsify.analysis.rows.place import Place, Row, line
from pulsify.analysis.rows.reaches import ROW_READS
from pulsify.analysis.rows.wanted import Wanted
from pulsify.convert.context import Context
from pulsify.convert.known_facts import counter
from pulsify.convert.plan import Plan
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import EXACT
from pulsify.lengths.float_limits import Drift
from pulsify.lengths.series import Unsure
from pulsify.ops.pointwise import static
from pulsify.ops.registry import rule


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


# ---- rows of known tables


@ROW_READS("Range")
def _counted(w: Wanted) -> Row:
    (start,), _, (step,) = (w.rows.numbers(i) for i in w.node.inputs)
    if any((n.values != np.round(n.values)).any() or n.growth.denominator != 1 for n in (start, step)):
        if start.constant and step.constant and (w.place is None or w.place.base.constant):
            return Row(w.rows.constant(0))
        raise Unsure("it counts in fractions, at rows that change with the length of the stream")
    by = w.rows.item(step, "its step changes with the length of the stream")
    begin = replace(start, values=start.values.astype(np.int64), drift=Drift())
    place = w.place
    if place is None:  # entries at the same places, whichever those are
        last = one.add(w.rows.sizes(w.name)[0], w.rows.constant(-1))
        place = Place(w.rows.constant(0), w.rows.constant(0), last)
    return line(begin, by, place)


@ROW_READS("ConstantOfShape")
def _filled(w: Wanted) -> Row:
    value = w.node.attr("value")
    number = 0.0 if value is None else float(np.asarray(value.numpy()).reshape(-1)[0])
    if not math.isfinite(number) or number != round(number) or abs(number) >= EXACT:
        return Row(w.rows.constant(0))
    same = w.rows.constant(int(number))
    return Row(w.rows.constant(0), same, same, True)


@ROW_READS("Shape", "Size")
def _size(w: Wanted) -> Row:
    raise Unsure("sizes that are no few numbers")
