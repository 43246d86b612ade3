"""Resize: nearest, linear and cubic interpolation along time, by a factor that does not depend on the length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Window, Wire
from pulsify.analysis.length import Length
from pulsify.analysis.proof import as_expected, numbers, sizes
from pulsify.analysis.reach import Reach, fit
from pulsify.emit.boundary import Fill, along, gather_frames
from pulsify.emit.context import Context, Requirement
from pulsify.emit.plan import Plan, Read
from pulsify.frontend.model import Node
from pulsify.known.series import constant, multiply
from pulsify.rules.pointwise import static
from pulsify.rules.registry import rule

HALF = Fraction(1, 2)


@rule("Resize", "Upsample", says="nearest, linear, cubic; half_pixel, pytorch_half_pixel, asymmetric")
def resize(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.wire(node.inputs[0])
    if wire is None:
        return static(ctx, node)
    factor = _factor(ctx, node, wire)
    if factor == 1:
        return Plan(
            (Read(wire),),
            (ctx.layout(node, node.outputs[0], wire.layout.outer),),
            wire.length,
            lambda values, window: (_emit(ctx, node, wire, values[0], factor),),
        )
    _check(ctx, node)
    reach = _reach(node, factor)
    length = wire.length.then(factor.numerator, 0, factor.denominator) if wire.length is not None else None
    if length is not None and _coordinates(node) == "pytorch_half_pixel" and factor < 1:
        # An output of one frame alone is placed by a rule of its own, which nobody can know before the end.
        ctx.require(Requirement(length, node.name, at_least=2))
    if length is not None and _rounds(ctx, node, wire, factor):
        return _by_clock(ctx, node, wire, factor, reach, length)

    slack = factor.denominator - 1
    wider = Reach(reach.num, reach.den, min(reach.lo, 0) - slack * reach.den, reach.hi)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        # A window must start at a multiple of the denominator to be resized like the whole stream.
        lo, hi = wider.span(window.start, window.end)
        begin = -(-lo // factor.denominator) * factor.denominator
        x = values[0]
        if slack:
            x = ctx.builder.slice(x, wire.layout.axis, begin - lo, hi - lo)
        # a factor in float32, as the runtime has it, may count one frame fewer than the fraction does
        made = int((hi - begin) * float(np.float32(float(factor))))
        if window.end > min(made, int((hi - begin) * factor)) + int(begin * factor):
            x = _extended(ctx, x, wire, factor.denominator)  # room for the last output frame; its taps are all real
        out = _emit(ctx, node, wire, x, factor)
        skip = window.start - int(begin * factor)
        return (ctx.builder.slice(out, wire.layout.axis, skip, skip + window.frames),)

    past = {"linear": 1, "cubic": 2}.get(node.attr("mode", "nearest"), 0)
    fill = Fill("edge", past=past)
    return Plan((Read(wire, wider, fill),), (ctx.layout(node, node.outputs[0]),), length, emit)


def _rounds(ctx: Context, node: Node, wire: Wire, factor: Fraction) -> bool:
    """Are places in the input no short binary fractions? The runtime rounds them to float32, ever more coarsely."""
    others = [i for i in range(wire.layout.rank) if i != wire.layout.axis]
    made, read = ctx.dims(node.outputs[0]), ctx.dims(node.inputs[0])
    alone = all(made[i] == read[i] for i in others) and not wire.layout.folded
    simple = factor.numerator & (factor.numerator - 1) == 0
    return alone and not simple and node.attr("mode", "nearest") == "linear" and wire.dtype == ir.DataType.FLOAT


def _by_clock(ctx: Context, node: Node, wire: Wire, factor: Fraction, reach: Reach, length: Length) -> Plan:
    """Every output frame works out its place in float32 from its number in the stream, just as the runtime does.

    Rounding may move a place across a frame, so that one more is read on either side.
    """
    assert wire.length is not None
    ends, own = wire.length, Reach(reach.num, reach.den, reach.lo - reach.den, reach.hi + reach.den)
    layout = ctx.layout(node, node.outputs[0])

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b = ctx.builder

        def number(value: float) -> ir.Value:
            return b.constant(np.array(value, np.float32), "float")

        def cast(value: ir.Value, to: ir.DataType) -> ir.Value:
            return b.op("Cast", value, to=int(to))

        last = cast(b.op("Sub", ctx.clock.end(ends), b.constant(np.array(1, np.int32), "int")), ir.DataType.FLOAT)
        place = cast(ctx.clock.positions(window), ir.DataType.FLOAT)
        if _coordinates(node) != "asymmetric":
            place = b.op("Add", place, number(0.5))
        place = b.op("Div", place, number(float(factor)))
        if _coordinates(node) != "asymmetric":
            place = b.op("Sub", place, number(0.5))
        place = b.op("Min", b.op("Max", place, number(0)), last)
        left = b.op("Floor", place)
        right = b.op("Add", left, number(1))
        lo, hi = own.span(window.start, window.end)
        begin = ctx.clock.frames(Window(window.p * own.num // own.den, lo, lo + 1))

        def taken(at: ir.Value) -> ir.Value:
            slot = b.op("Sub", cast(b.op("Min", at, last), ir.DataType.INT32), begin)
            low, high = (b.constant(np.array(v, np.int32), "int") for v in (0, hi - lo - 1))
            return gather_frames(ctx, values[0], b.op("Min", b.op("Max", slot, low), high), wire.layout, window.frames)

        parts = [
            b.op("Mul", taken(at), along(ctx, b.op("Abs", b.op("Sub", place, other)), layout, window.frames))
            for at, other in ((left, right), (right, left))
        ]
        return (b.op("Add", *parts, name=node.name),)

    return Plan((Read(wire, own),), (layout,), length, emit)


def _extended(ctx: Context, x: ir.Value, wire: Wire, frames: int) -> ir.Value:
    pads = [0] * (2 * wire.layout.rank)
    pads[wire.layout.rank + wire.layout.axis] = frames
    return ctx.builder.op("Pad", x, ctx.builder.ints(*pads), mode="edge")


def _factor(ctx: Context, node: Node, wire: Wire) -> Fraction:
    """Output frames per input frame, the same at every length, or a refusal."""
    axis = wire.layout.axis
    scales = node.input(1) if node.op == "Upsample" else node.input(2)
    if scales and ctx.dims(scales) != (0,):
        table = ctx.constant(node, scales, "scales").reshape(-1)
        axes = list(node.attr("axes") or range(wire.layout.rank))
        at = [a % wire.layout.rank for a in axes]
        if axis not in at:
            return Fraction(1)
        value = float(table[at.index(axis)])
        factor = Fraction(value).limit_denominator(1000)
        if np.float32(float(factor)) != np.float32(value):
            ctx.refuse(node, f"its factor {value} is no simple fraction", "resample by a ratio of small numbers")
    else:
        out, name = node.outputs[0], node.inputs[0]
        factors = {Fraction(run[out].dims[axis], run[name].dims[axis]) for run in ctx.traces.runs}
        if len(factors) > 1:
            ctx.refuse(node, "its factor depends on the total length", "resize by a fixed factor instead of to a size")
        factor = factors.pop()
        _check_sizes(ctx, node, wire, factor)
    return factor


def _check_sizes(ctx: Context, node: Node, wire: Wire, factor: Fraction) -> None:
    """The sizes it is given are so many times its input's, at every length."""
    unit, dims = ctx.traces.tracer.time.step, ctx.dims(node.outputs[0])
    own = sizes(ctx, node, node.inputs[0])[wire.layout.axis]
    axes = [a % wire.layout.rank for a in (node.attr("axes") or range(wire.layout.rank))]
    for axis, size in zip(axes, numbers(ctx, node, node.input(3)).reshape(-1), strict=True):
        if axis == wire.layout.axis:
            grown = multiply(size, constant(factor.denominator, unit))
            as_expected(ctx, node, node.outputs[0], axis, grown, multiply(own, constant(factor.numerator, unit)))
        else:
            as_expected(ctx, node, node.outputs[0], axis, size, constant(dims[axis], unit))


def _check(ctx: Context, node: Node) -> None:
    mode = _coordinates(node)
    if mode in ("align_corners", "tf_crop_and_resize"):
        ctx.refuse(
            node, f"with {mode} every position depends on the total length", "export it with align_corners=False"
        )
    if node.attr("antialias", 0) or node.attr("exclude_outside", 0):
        ctx.refuse(node, "antialias and exclude_outside are not supported along time", "export it without them")


def _coordinates(node: Node) -> str:
    return str(node.attr("coordinate_transformation_mode", "half_pixel" if node.op == "Resize" else "asymmetric"))


def _reach(node: Node, factor: Fraction) -> Reach:
    """Which input frames each output frame touches with a weight other than zero, over one period."""
    frames = range(4 * factor.numerator)  # whole periods
    at = [_position(node, k, factor) for k in frames]
    mode = node.attr("mode", "nearest")
    if mode == "nearest":
        first = last = [_nearest(node, x) for x in at]
    elif mode == "linear":
        first, last = [math.floor(x) for x in at], [math.ceil(x) for x in at]
    else:
        # at whole positions all taps but one have weight zero
        first = [math.floor(x) - (x.denominator > 1) for x in at]
        last = [math.floor(x) + 2 * (x.denominator > 1) for x in at]
    return fit(first, last, 1 / factor)


def _position(node: Node, k: int, factor: Fraction) -> Fraction:
    if _coordinates(node) == "asymmetric":
        return k / factor
    return (k + HALF) / factor - (0 if _coordinates(node) == "tf_half_pixel_for_nn" else HALF)


def _nearest(node: Node, x: Fraction) -> int:
    how = node.attr("nearest_mode", "round_prefer_floor") if node.op == "Resize" else "floor"
    if how == "floor":
        return math.floor(x)
    if how == "ceil":
        return math.ceil(x)
    return math.ceil(x - HALF) if how == "round_prefer_floor" else math.floor(x + HALF)


def _emit(ctx: Context, node: Node, wire: Wire, x: ir.Value, factor: Fraction) -> ir.Value:
    """The node itself on one window, by scales (the sizes of a window are not the model's)."""
    b, rank = ctx.builder, wire.layout.rank
    made, read = ctx.dims(node.outputs[0]), ctx.dims(node.inputs[0])
    scales = [1.0 if s < 0 else made[i] / read[i] for i, s in enumerate(wire.layout.sizes)]
    scales[wire.layout.axis] = float(factor)
    given = node.input(1) if node.op == "Upsample" else node.input(2)
    if given and ctx.dims(given) != (0,):
        axes = [a % rank for a in (node.attr("axes") or range(rank))]
        for axis, scale in zip(axes, ctx.constant(node, given, "scales").reshape(-1), strict=True):
            scales[axis] = float(scale)
    table = b.constant(np.array(scales, np.float32), "scales")
    attrs = {k: v for k, v in node.attrs.items() if k not in ("axes", "keep_aspect_ratio_policy")}
    others = [v for i, v in enumerate(scales) if i != wire.layout.axis]
    if _coordinates(node) == "pytorch_half_pixel" and all(v == 1 for v in others):
        attrs["coordinate_transformation_mode"] = "half_pixel"  # a window of one frame is no output of one frame
    return b.op("Resize", x, None, table, name=node.name, **attrs)
