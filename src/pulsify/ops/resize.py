"""Resize: nearest, linear and cubic interpolation along time, by a factor that does not depend on the length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import as_expected, measured, numbers, sizes
from pulsify.core.length import Length
from pulsify.core.reach import Reach, fit
from pulsify.core.refusal import Kind
from pulsify.emit.frames import along, gather_frames
from pulsify.frontend.model import Node
from pulsify.lengths.series import constant, multiply
from pulsify.ops.pointwise import Make, static
from pulsify.ops.registry import rule
from pulsify.ops.resize_across import Given, parts_of, resized
from pulsify.plan.boundary import Fill
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read
from pulsify.trace.evaluate import SHAPED_BY
from pulsify.trace.shapes import SHAPE, Dims, Inputs
from pulsify.trace.traced import CannotRun
from pulsify.trace.usage import ROLE, SIZED, Sized, Walk

HALF, NONE = Fraction(1, 2), Fraction(0)


BELOW, ABOVE = np.float32(0.499999), np.float32(0.500001)  # what lies between is half to the runtime


NEAR = 1 << 20  # output frames of which every one is looked at


MANY = 8  # output frames for one of the input


@rule("Resize", "Upsample", says="nearest, linear, cubic; half_pixel, pytorch_half_pixel, asymmetric")
def resize(ctx: Context, node: Node) -> Plan | None:
    found = ctx.ask.wire(node.inputs[0])
    if found is None:
        return static(ctx, node, _static(ctx, node))
    wire = measured(ctx.ask, node, found)
    factor = _factor(ctx, node, wire)
    across = _across(ctx, node, wire, factor)
    if factor == 1:
        return Plan(
            (Read(wire),),
            (ctx.ask.layout(node, node.outputs[0], wire.layout.outer),),
            wire.length,
            lambda values, window: (across.emit(values[0], window.frames),),
        )
    _check(ctx, node, wire, factor)
    reach = _reach(node, factor)
    length = wire.length.then(factor.numerator, 0, factor.denominator) if wire.length is not None else None
    if length is not None and _coordinates(node) == "pytorch_half_pixel" and factor < 1:
        # An output of one frame alone is placed by a rule of its own, which nobody can know before the end.
        ctx.ask.ledger.require(node.name, length, at_least=2)
    scale = float(np.float32(float(factor)))
    if wire.length is not None and _scales(ctx, node) and scale != factor:
        # at some lengths far out the runtime counts one frame more than there are
        ctx.ask.ledger.require(node.name, wire.length, equals=length, scaled=scale)
    if length is not None and _rounds(node, wire, factor):
        return _by_clock(ctx, node, wire, factor, length)

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
        frames = hi - begin
        if window.end > min(made, int((hi - begin) * factor)) + int(begin * factor):
            x = _extended(ctx, x, wire, factor.denominator)  # room for the last output frame; its taps are all real
            frames += factor.denominator
        out = across.emit(x, frames)
        skip = window.start - int(begin * factor)
        return (ctx.builder.slice(out, wire.layout.axis, skip, skip + window.frames),)

    past = {"linear": 1, "cubic": 2}.get(_mode(node), 0)
    fill = Fill("edge", past=past)
    return Plan(
        (Read(wire, wider, fill, least=replace(reach, hi=reach.lo)),),
        (ctx.ask.layout(node, node.outputs[0]),),
        length,
        emit,
    )


def _rounds(node: Node, wire: Wire, factor: Fraction) -> bool:
    """Does the runtime, which works out places in float32, come to others than fractions do?"""
    if wire.layout.folded or (_mode(node) != "nearest" and wire.dtype != ir.DataType.FLOAT):
        return False
    how = _how(node) if _mode(node) == "nearest" else None
    return _departs(_coordinates(node), how, factor)


@cache
def _departs(coordinates: str, how: str | None, factor: Fraction) -> bool:
    """Are there places (or nearest frames) that float32 makes others? Looked at all of the first, and far out."""
    far = (int(factor * (1 << e)) for e in range(10, 21))
    k = np.concatenate([np.arange(NEAR), *(np.arange(max(n - 4 * factor.numerator, 0), n) for n in far)])
    place = k.astype(np.float32)
    offsets = _offsets(coordinates)
    place = (place + np.float32(offsets[0])) / np.float32(float(factor)) - np.float32(offsets[1])
    # twice the numerator times the place, which is whole
    exact = (2 * k + int(2 * offsets[0])) * factor.denominator - int(2 * offsets[1]) * factor.numerator
    unit = 2 * factor.numerator
    if how is None:
        return bool((place.astype(np.float64) * unit != exact).any())
    low, rest = np.floor(place), place - np.floor(place)
    up = {"floor": rest > 1, "ceil": rest > 0, "round_prefer_floor": rest >= ABOVE, "round_prefer_ceil": rest > BELOW}
    over = exact % unit
    half = factor.numerator
    due = {"floor": over > unit, "ceil": over > 0, "round_prefer_floor": over > half, "round_prefer_ceil": over >= half}
    return bool((low + up[how] != exact // unit + due[how]).any())


def _offsets(coordinates: str) -> tuple[float, float]:
    """What is added to an output frame's number before it is divided by the factor, and taken off after that."""
    return {"asymmetric": (0.0, 0.0), "tf_half_pixel_for_nn": (0.5, 0.0)}.get(coordinates, (0.5, 0.5))


def _by_clock(ctx: Context, node: Node, wire: Wire, factor: Fraction, length: Length) -> Plan:
    """Every output frame works out its place in float32 from its number in the stream, just as the runtime does.

    Rounding moves a place by no more than `margin` as long as the input has no more than `furthest` frames.
    """
    assert wire.length is not None
    ends = wire.length
    margin, furthest = _margin(node, factor)
    reach = _reach(node, factor, margin)
    ctx.ask.ledger.require(node.name, ends, at_most=furthest)
    layout, across = ctx.ask.layout(node, node.outputs[0]), _across(ctx, node, wire, Fraction(1))

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        b = ctx.builder
        last = b.op("Sub", ctx.clock.end(ends), b.constant(np.array(1, np.int32), "int"))
        lo, hi = reach.span(window.start, window.end)
        begin = ctx.clock.frames(Window(window.p * reach.num // reach.den, lo, lo + 1))
        none, most = (b.constant(np.array(v, np.int32), "int") for v in (0, hi - lo - 1))
        place = _place(ctx, node, factor, window)
        parts = []
        for at, weight in _taps(ctx, node, place, last):
            shown = b.op("Min", b.op("Max", b.op("Cast", at, to=int(ir.DataType.INT32)), none), last)
            slot = b.op("Min", b.op("Max", b.op("Sub", shown, begin), none), most)
            taken = gather_frames(ctx, values[0], slot, wire.layout, window.frames)
            parts.append(
                taken if weight is None else b.op("Mul", taken, along(ctx, weight, wire.layout, window.frames))
            )
        out = parts[0]
        for part in parts[1:]:
            out = b.op("Add", out, part)
        dims = zip(ctx.ask.dims(node.outputs[0]), ctx.ask.dims(node.inputs[0]), strict=True)
        alone = all(m == r for i, (m, r) in enumerate(dims) if i != layout.axis)
        return (out if alone else across.emit(out, window.frames),)

    known = wire.end is None  # it could be had early, but which frame is shown at the end is not known before
    return Plan((Read(wire, reach, least=replace(reach, hi=reach.lo)),), (layout,), length, emit, tail=known, ends=True)


def _margin(node: Node, factor: Fraction) -> tuple[Fraction, int]:
    """By how much rounding may move a place, and up to how many frames of the input.

    It is four roundings at the most, of half a unit in the last place each. None moves a place across a frame as long
    as numbers of frames and the factor itself are exact, so curves, which are continuous there, need no margin then.
    """
    if _mode(node) == "cubic" and np.float32(float(factor)) == factor:
        return NONE, int((1 << 23) / factor)
    if factor >= MANY:  # where a frame of the input is long to wait for
        return Fraction(1, 4), 1 << 20
    return Fraction(1), 1 << 22


def _place(ctx: Context, node: Node, factor: Fraction, window: Window) -> ir.Value:
    """Where in the input every output frame lies, in float32 [B, frames]."""
    b = ctx.builder
    before, after = _offsets(_coordinates(node))
    place = b.op("Cast", ctx.clock.positions(window), to=int(ir.DataType.FLOAT))
    for op, value in (("Add", before), ("Div", float(factor)), ("Sub", after)):
        if value:
            place = b.op(op, place, b.constant(np.array(value, np.float32), "float"))
    return place


def _taps(ctx: Context, node: Node, place: ir.Value, last: ir.Value) -> list[tuple[ir.Value, ir.Value | None]]:
    """The frames that each place is made of and their weights (None: one), float32 [B, frames]."""
    b = ctx.builder

    def number(value: float) -> ir.Value:
        return b.constant(np.array(value, np.float32), "float")

    def curve(terms: Sequence[float], at: ir.Value) -> ir.Value:
        """A polynomial, the highest power first."""
        value = number(terms[0])
        for term in terms[1:]:
            value = b.op("Add", b.op("Mul", value, at), number(term))
        return value

    mode = _mode(node)
    if mode == "linear":
        place = b.op("Min", b.op("Max", place, number(0)), b.op("Cast", last, to=int(ir.DataType.FLOAT)))
    left = b.op("Floor", place)
    rest = b.op("Sub", place, left)
    if mode == "nearest":
        how = _how(node)
        if how in ("floor", "ceil"):
            return [(left if how == "floor" else b.op("Ceil", place), None)]
        upper = how == "round_prefer_floor"
        over = b.op("GreaterOrEqual" if upper else "Greater", rest, number(float(ABOVE if upper else BELOW)))
        return [(b.op("Add", left, b.op("Cast", over, to=int(ir.DataType.FLOAT))), None)]
    right, other = b.op("Add", left, number(1)), b.op("Sub", number(1), rest)
    if mode == "linear":
        return [(left, other), (right, rest)]
    a = float(node.attr("cubic_coeff_a", -0.75))
    near, wide = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    return [
        (b.op("Sub", left, number(1)), curve(wide, b.op("Add", rest, number(1)))),
        (left, curve(near, rest)),
        (right, curve(near, other)),
        (b.op("Add", left, number(2)), curve(wide, b.op("Add", other, number(1)))),
    ]


def _extended(ctx: Context, x: ir.Value, wire: Wire, frames: int) -> ir.Value:
    pads = [0] * (2 * wire.layout.rank)
    pads[wire.layout.rank + wire.layout.axis] = frames
    return ctx.builder.op("Pad", x, ctx.builder.ints(*pads), mode="edge")


def _factor(ctx: Context, node: Node, wire: Wire) -> Fraction:
    """Output frames per input frame, the same at every length, or a refusal."""
    axis, scales = wire.layout.axis, _scales(ctx, node)
    if scales:
        table = fixed_value(ctx.ask, node, scales, "scales").reshape(-1)
        axes = list(node.attr("axes") or range(wire.layout.rank))
        at = [a % wire.layout.rank for a in axes]
        if axis not in at:
            return Fraction(1)
        value = float(table[at.index(axis)])
        factor = Fraction(value).limit_denominator(1000)
        if np.float32(float(factor)) != np.float32(value):
            ctx.ask.refuse(node, f"its factor {value} is no simple fraction", "resample by a ratio of small numbers")
    else:
        out, name = node.outputs[0], node.inputs[0]
        factors = {Fraction(run[out].dims[axis], run[name].dims[axis]) for run in ctx.ask.traces.runs}
        if len(factors) > 1:
            ctx.ask.refuse(
                node,
                "its factor depends on the total length",
                "resize by a fixed factor instead of to a size",
                kind=Kind.LENGTH,
            )
        factor = factors.pop()
        _check_sizes(ctx, node, wire, factor)
    return factor


def _check_sizes(ctx: Context, node: Node, wire: Wire, factor: Fraction) -> None:
    """The sizes it is given are so many times its input's, at every length."""
    unit, dims = ctx.ask.traces.tracer.time.step, ctx.ask.dims(node.outputs[0])
    own = sizes(ctx.ask, node, node.inputs[0])[wire.layout.axis]
    axes = [a % wire.layout.rank for a in (node.attr("axes") or range(wire.layout.rank))]
    for axis, size in zip(axes, numbers(ctx.ask, node, node.input(3)).reshape(-1), strict=True):
        if axis == wire.layout.axis:
            grown = multiply(size, constant(factor.denominator, unit))
            as_expected(ctx.ask, node, node.outputs[0], axis, grown, multiply(own, constant(factor.numerator, unit)))
        else:
            as_expected(ctx.ask, node, node.outputs[0], axis, size, constant(dims[axis], unit))


def _scales(ctx: Context, node: Node) -> str:
    """The input that says by how much; empty if the node is told the sizes."""
    given = node.input(1) if node.op == "Upsample" else node.input(2)
    return given if given and ctx.ask.dims(given) != (0,) else ""


def _check(ctx: Context, node: Node, wire: Wire, factor: Fraction) -> None:
    mode = _coordinates(node)
    if mode == "half_pixel_symmetric" and factor.denominator != 1:
        ctx.ask.refuse(
            node, f"with {mode} places depend on the total length, where it is not resized by a whole number",
            "export it with half_pixel", kind=Kind.LENGTH
        )  # fmt: skip
    made, read = ctx.ask.dims(node.outputs[0]), ctx.ask.dims(node.inputs[0])
    others = [(m, n) for i, (m, n) in enumerate(zip(made, read, strict=True)) if i != wire.layout.axis]
    if mode == "pytorch_half_pixel" and any(m == 1 != n for m, n in others):
        ctx.ask.refuse(
            node, f"{mode} has a rule of its own for an axis of one, and time is resized with it",
            "resize time by itself, and the other axes after it",
        )  # fmt: skip
    if wire.length is not None and factor > 1 and all(m == n for m, n in others):
        # where nothing is added the runtime gives its input as it is, and interpolates nothing
        ctx.ask.ledger.require(node.name, wire.length, at_least=_grows_from(factor))
    if mode in ("align_corners", "tf_crop_and_resize"):
        ctx.ask.refuse(
            node,
            f"with {mode} every position depends on the total length",
            "export it with align_corners=False",
            kind=Kind.LENGTH,
        )
    if node.attr("antialias", 0) or node.attr("exclude_outside", 0):
        ctx.ask.refuse(node, "antialias and exclude_outside are not supported along time", "export it without them")


def _grows_from(factor: Fraction) -> int:
    """The least number of frames from which on there are more of them, as the runtime counts in float32."""
    scale = np.float32(float(factor))
    n = np.arange(math.ceil(1 / (factor - 1)) + 2)
    return int(np.flatnonzero((n.astype(np.float32) * scale).astype(np.int64) == n)[-1]) + 1


def _coordinates(node: Node) -> str:
    return str(node.attr("coordinate_transformation_mode", "half_pixel" if node.op == "Resize" else "asymmetric"))


def _reach(node: Node, factor: Fraction, margin: Fraction = NONE) -> Reach:
    """Which input frames each output frame touches with a weight other than zero, over one period.

    margin: how far rounding may move a place.
    """
    frames = range(4 * factor.numerator)  # whole periods
    at = [_position(node, k, factor) for k in frames]
    if _mode(node) == "nearest":
        first, last = ([_nearest(node, x + by) for x in at] for by in (-margin, margin))
    elif _mode(node) == "linear":
        first, last = [math.floor(x - margin) for x in at], [math.ceil(x + margin) for x in at]
    else:
        # at whole positions all taps but one have weight zero
        first = [math.floor(x - margin) - (x.denominator > 1 or margin > 0) for x in at]
        last = [math.floor(x + margin) + 2 * (x.denominator > 1 or margin > 0) for x in at]
    return fit(first, last, 1 / factor)


def _position(node: Node, k: int, factor: Fraction) -> Fraction:
    if _coordinates(node) == "asymmetric":
        return k / factor
    return (k + HALF) / factor - (0 if _coordinates(node) == "tf_half_pixel_for_nn" else HALF)


def _mode(node: Node) -> str:
    return str(node.attr("mode", "nearest"))


def _how(node: Node) -> str:
    return str(node.attr("nearest_mode", "round_prefer_floor")) if node.op == "Resize" else "floor"


def _nearest(node: Node, x: Fraction) -> int:
    how = _how(node)
    if how == "floor":
        return math.floor(x)
    if how == "ceil":
        return math.ceil(x)
    return math.ceil(x - HALF) if how == "round_prefer_floor" else math.floor(x + HALF)


def _static_factors(ctx: Context, node: Node) -> list[float]:
    """The scales of all axes, of what has no time; none if they are not known, or parts are cropped."""
    given = _scales(ctx, node)
    if ctx.ask.known(given) is None or "crop" in _coordinates(node):
        return []
    rank = len(ctx.ask.dims(node.inputs[0]))
    out = [1.0] * rank
    table = fixed_value(ctx.ask, node, given, "scales").reshape(-1)
    for axis, scale in zip(node.attr("axes") or range(rank), table, strict=True):
        out[axis % rank] = float(scale)
    return out


def _static(ctx: Context, node: Node) -> Make | None:
    """The node by scales, of what has no time; None: as it is."""
    factors = _static_factors(ctx, node) if _scales(ctx, node) else []
    if not factors:
        return None
    sizes = tuple(max(s, -1) for s in ctx.ask.sizes_static(node.inputs[0]))
    attrs = {k: v for k, v in node.attrs.items() if k not in ("axes", "keep_aspect_ratio_policy")}
    given = Given(sizes, -1, tuple(ctx.ask.dims(node.outputs[0])))
    parts_of(ctx, node, given, factors)

    def make(ctx: Context, node: Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        x = inputs[0]
        assert x is not None
        return (resized(ctx, node, x, given, factors, attrs),)

    return make


@dataclass(frozen=True, eq=False)
class Across:
    """The node itself on one window, by scales (the sizes of a window are not the model's)."""

    ctx: Context
    node: Node
    layout: Layout
    made: tuple[int, ...]
    scales: list[float]
    attrs: dict[str, object]

    def given(self, frames: int) -> Given:
        dims = tuple(max(d, -1) for d in self.layout.shape(frames))
        return Given(dims, self.layout.axis, self.made)

    def emit(self, x: ir.Value, frames: int) -> ir.Value:
        return resized(self.ctx, self.node, x, self.given(frames), self.scales, self.attrs)


def _across(ctx: Context, node: Node, wire: Wire, factor: Fraction) -> Across:
    rank = wire.layout.rank
    made, read = ctx.ask.dims(node.outputs[0]), ctx.ask.dims(node.inputs[0])
    scales = [1.0 if s < 0 else made[i] / read[i] for i, s in enumerate(wire.layout.sizes)]
    scales[wire.layout.axis] = float(factor)
    given = _scales(ctx, node)
    if given:
        axes = [a % rank for a in (node.attr("axes") or range(rank))]
        for axis, scale in zip(axes, fixed_value(ctx.ask, node, given, "scales").reshape(-1), strict=True):
            scales[axis] = float(scale) if axis != wire.layout.axis else scales[axis]
    attrs = {k: v for k, v in node.attrs.items() if k not in ("axes", "keep_aspect_ratio_policy")}
    if _coordinates(node) == "pytorch_half_pixel" and factor != 1:
        attrs["coordinate_transformation_mode"] = "half_pixel"  # a window of one frame is no output of one frame
    across = Across(ctx, node, wire.layout, tuple(made), scales, attrs)
    parts_of(ctx, node, across.given(1), scales)
    return across


# ---- roles of inputs
SIZED.add({"Resize": Sized((3,), "part")})


ROLE.add({"Resize": Walk.moved})


# ---- at one length
SHAPED_BY.add({"Resize": "values", "Upsample": "values"})


@SHAPE("Resize", "Upsample")
def _scaled(node: Node, ins: Inputs) -> Dims | None:
    """Sizes by scales are worked out in float32; inference does it in double, and finds one frame fewer at times."""
    x, index = ins[0], 1 if node.op == "Upsample" else 2
    scales = ins[index] if len(ins) > index else None
    if x is None or scales is None or not scales.known or not scales.array.size:
        return None
    if "crop" in node.attr("coordinate_transformation_mode", ""):
        return None
    sizes = list(x.dims)
    for axis, scale in zip(node.attr("axes") or range(len(sizes)), scales.array.reshape(-1), strict=True):
        sizes[axis] = int(np.float32(sizes[axis]) * np.float32(scale))
    if min(sizes) <= 0:
        raise CannotRun(node, f"the output would have shape {sizes}")
    return tuple(sizes)
