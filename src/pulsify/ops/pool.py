"""Pools: windows like a convolution's, with their own idea of what lies beyond the ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.analysis.proof.numbers import measured
from pulsify.analysis.rows.reaches import ROW_READS, windowed_rows
from pulsify.analysis.values.follow import VALUES
from pulsify.analysis.values.sizes import SIZES
from pulsify.analysis.values.windows import largest_windowed, windowed, windowed_sizes
from pulsify.core.length import Length
from pulsify.core.reach import Reach
from pulsify.core.refusal import Kind
from pulsify.emit.frames import along, real_frames
from pulsify.frontend.model import Node
from pulsify.ops.conv import Probes, beside_time, check_kernel, no_gaps, settle_other_pads, taps
from pulsify.ops.pointwise import clone, pointwise, static
from pulsify.ops.registry import rule
from pulsify.plan.boundary import Fill, overrun
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read
from pulsify.trace.shapes import CHECK, INFERRED, Dims, Inputs
from pulsify.trace.usage import ROLE, Role, Walk


@rule("MaxPool", "AveragePool", "LpPool", says="ceil_mode, count_include_pad, dilation, SAME pads")
def pool(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    if wire is None or wire.layout.axis < 2:
        no_gaps(ctx, node)
        node = replace(node, attrs=_rounded_down(ctx, node, dict(node.attrs)))
        node, make = beside_time(ctx, node, node.attr("kernel_shape"))
        return static(ctx, node, make) if wire is None else pointwise(ctx, node, make)
    if len(node.outputs) > 1 and node.outputs[1]:
        ctx.ask.refuse(
            node, "its indices count over the whole stream", "use only the pooled values", kind=Kind.WHOLE_STREAM
        )
    wire = measured(ctx.ask, node, wire)
    kernel = node.attr("kernel_shape")
    t = taps(ctx, node, wire, kernel)
    reach = Reach(t.stride, 1, -t.before, t.span - 1 - t.before)
    length = None
    if wire.length is not None:
        length = _length(wire.length, t, bool(node.attr("ceil_mode", 0)))
        ctx.ask.ledger.require(node.name, length, at_least=1)
        ctx.ask.ledger.require(node.name, wire.length, at_least=1)  # the runtime pools no empty input

    attrs = _rounded_down(ctx, node, settle_other_pads(ctx, node, kernel, t.spatial), t.spatial)
    averaged = node.op == "AveragePool"

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        out = ctx.builder.ops(node.op, [values[0]], attrs, name=node.name)[0]
        if not averaged or length is None:
            return (out,)
        return (_corrected(ctx, node, wire, t, reach, length, window, out),)

    fill = Fill(value=_neutral(node, wire)) if reach.lo < 0 or _looks_past_end(wire, reach, length) else None
    ends = averaged and length is not None and _counts_end(node, wire, t, reach, length)
    return Plan((Read(wire, reach, fill),), (ctx.ask.layout(node, node.outputs[0]),), length, emit, ends=ends)


@rule("LRN", says="across channels; along time, where that is the channel axis")
def local_response(ctx: Context, node: Node) -> Plan | None:
    """Each frame by the squares of its neighbours; beyond both ends there are none, which is as good as zeros."""
    wire, size = ctx.ask.wire(node.inputs[0]), node.attr("size")
    if wire is None or wire.layout.axis != 1 or size == 1:
        return pointwise(ctx, node)
    before, after = (size - 1) // 2, size // 2

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        (wide,) = clone(ctx, node, values)  # the neighbours too, without all of theirs
        return (ctx.builder.slice(wide, 1, before, -after),)

    read = Read(wire, Reach(lo=-before, hi=after), Fill())
    return Plan((read,), (ctx.ask.layout(node, node.outputs[0]),), wire.length, emit)


def _rounded_down(ctx: Context, node: Node, attrs: dict[str, Any], time: int | None = None) -> dict[str, Any]:
    """Attributes with pads in place of ceil_mode: what that makes, shape inference and the runtime count otherwise.

    time: which of the axes, if any, comes in windows that it divides.
    """
    if not attrs.get("ceil_mode") or str(attrs.get("auto_pad", "")).startswith("SAME"):
        return attrs
    kernel, read, made = node.attr("kernel_shape"), ctx.ask.dims(node.inputs[0])[2:], ctx.ask.dims(node.outputs[0])[2:]
    n = len(kernel)
    strides, dilations = (attrs.get(k) or (1,) * n for k in ("strides", "dilations"))
    pads = [0] * (2 * n) if attrs.get("auto_pad") == "VALID" else list(attrs.get("pads") or [0] * (2 * n))
    out, counts = list(pads), node.op == "AveragePool" and bool(node.attr("count_include_pad", 0))
    rounded, alike = True, True
    for i in (i for i in range(n) if i != time):
        span, room = (kernel[i] - 1) * dilations[i] + 1, read[i] + pads[i]
        out[i + n] = max((made[i] - 1) * strides[i] + span - room, 0)
        # frames that ceil_mode adds do not count, pads do; the runtime has none as long as the kernel
        rounded = rounded and out[i + n] < kernel[i] and not (counts and out[i + n] > pads[i + n])
        alike = alike and -(-(room + pads[i + n] - span) // strides[i]) + 1 == made[i]
    if not rounded and not alike:
        ctx.ask.refuse(node, "ceil_mode counts a window behind the end of one axis", "export it with explicit pads")
    if not rounded:
        return attrs
    return {k: v for k, v in attrs.items() if k not in ("ceil_mode", "auto_pad")} | {"pads": tuple(out)}


def _length(length: Length, t: Probes, ceil: bool) -> Length:
    room = t.before + t.after - t.span
    if ceil:  # round up, but no window may start past the last frame and its front padding
        room = min(room + t.stride - 1, t.before - 1)
    return length.then(1, room + t.stride, t.stride)


def _looks_past_end(wire: Wire, reach: Reach, length: Length | None) -> bool:
    return wire.length is not None and length is not None and overrun(reach, wire.length, length) > 0


def _neutral(node: Node, wire: Wire) -> float | int:
    if node.op != "MaxPool":
        return 0
    dtype = wire.dtype.numpy()
    return float(np.finfo(dtype).min) if np.issubdtype(dtype, np.floating) else int(np.iinfo(dtype).min)


def _corrected(
    ctx: Context, node: Node, wire: Wire, t: Probes, reach: Reach, length: Length, window: Window, out: ir.Value
) -> ir.Value:
    """An average over fewer frames than the kernel has: divide by the share of frames that count.

    Frames count if they are real, or padding and `count_include_pad`; what ceil_mode adds beyond that never does.
    """
    assert wire.length is not None
    include = bool(node.attr("count_include_pad", 0))
    starts = t.before > 0 and not include
    counted = wire.length.then(add=t.after) if include else wire.length
    ends = _counts_end(node, wire, t, reach, length)
    if not starts and not ends:
        return out
    lo, hi = reach.span(window.start, window.end)
    p = window.p * t.stride
    real = real_frames(ctx, Window(p, lo, hi), counted if ends else None, starts)
    b, dtype = ctx.builder, wire.dtype
    # [B, frames] -> [B, 1, frames]: pooled along time like the data, but with nothing around it
    weight = b.op("Unsqueeze", b.op("Cast", real, to=int(dtype)), b.ints(1))
    share = b.op("AveragePool", weight, kernel_shape=(t.kernel,), strides=(t.stride,), dilations=_dilations(node, t))
    share = b.op("Squeeze", share, b.ints(1))
    sizes = list(wire.layout.sizes)
    layout = Layout(tuple(s if s <= 0 else 1 for s in sizes), wire.layout.axis)
    safe = b.op("Max", share, b.constant(np.array(1 / (2 * t.kernel), dtype.numpy()), "least"))
    return b.op("Div", out, along(ctx, safe, layout, window.frames))


def _counts_end(node: Node, wire: Wire, t: Probes, reach: Reach, length: Length) -> bool:
    """Do the last windows hold frames that do not count?"""
    assert wire.length is not None
    return overrun(reach, wire.length, length) > (t.after if node.attr("count_include_pad", 0) else 0)


def _dilations(node: Node, t: Probes) -> tuple[int, ...] | None:
    return (t.dilation,) if t.dilation != 1 else None


# ---- roles of inputs
@ROLE("MaxPool", "AveragePool")
def _at_lower_rate(walk: Walk, node: Node, own: Mapping[int, Role]) -> Role | None:
    """A mask at a lower rate."""
    if walk.known(node.outputs[0]):
        return own.get(0)
    walk.into_data(node, own)
    return None


# ---- at one length
@CHECK("MaxPool", "AveragePool", "LpPool")
def _kernel_fits(node: Node, ins: Inputs) -> None:
    check_kernel(node, ins, node.attr("kernel_shape"))


@INFERRED("MaxPool", "AveragePool", "LpPool")
def _windows_that_start(node: Node, ins: Inputs, dims: Dims) -> Dims:
    """With ceil_mode, shape inference counts a window that starts past the end; the runtime does not."""
    if not node.attr("ceil_mode", 0) or ins[0] is None:
        return dims
    n, sizes = len(dims) - 2, ins[0].dims[2:]
    strides, pads = node.attr("strides", (1,) * n), node.attr("pads", (0,) * (2 * n))
    kept = [d - ((d - 1) * s >= size + p) for d, s, size, p in zip(dims[2:], strides, sizes, pads, strict=False)]
    return (*dims[:2], *kept)


# ---- values by length
VALUES("AveragePool", "LpPool")(windowed)
VALUES("MaxPool")(largest_windowed)


SIZES("MaxPool", "AveragePool", "LpPool")(windowed_sizes)


# ---- rows of known tables
ROW_READS("MaxPool", "AveragePool", "LpPool")(windowed_rows)
