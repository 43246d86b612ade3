"""Convolutions. Output frame k reads K input frames, `dilation` apart, from k * stride - pad on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Window, Wire, deferred, emitted
from pulsify.analysis.proof.claims import fixed_value
from pulsify.analysis.proof.numbers import in_frames, measured
from pulsify.analysis.rows.reaches import ROW_READS, windowed_rows
from pulsify.analysis.unused import unused_entries, zero_entries
from pulsify.analysis.values.follow import VALUES
from pulsify.analysis.values.sizes import SIZES
from pulsify.analysis.values.windows import windowed, windowed_sizes
from pulsify.analysis.zeros import NONE, Ends, weights, zero_ends
from pulsify.core.length import Length, constant
from pulsify.core.reach import Reach
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths.series import stretched
from pulsify.ops.pointwise import Make, clone, pointwise, static
from pulsify.ops.registry import rule
from pulsify.plan.boundary import Fill
from pulsify.plan.context import Context
from pulsify.plan.known_facts import constant_value
from pulsify.plan.plan import Plan, Read
from pulsify.trace.shapes import CHECK, SHAPE, Dims, Inputs
from pulsify.trace.traced import Array, CannotRun, Unlike


def cuts(node: Node) -> bool:
    """Does it take lengths at which auto_pad would be negative? Pools do not, an AveragePool does from opset 19 on."""
    return node.op != "MaxPool" and (node.op != "AveragePool" or node.version >= 19)


@dataclass(frozen=True)
class Probes:
    """A window operator's geometry on the time axis. spatial: time's index among the spatial axes."""

    spatial: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def span(self) -> int:
        """Input frames from the first tap to the last."""
        return (self.kernel - 1) * self.dilation + 1

    def without(self, front: int, back: int) -> Probes:
        """The same output frames from fewer taps; pads may then be negative."""
        cut = front * self.dilation, back * self.dilation
        kernel = self.kernel - front - back
        return replace(self, kernel=kernel, before=self.before - cut[0], after=self.after - cut[1])


def taps(ctx: Context, node: Node, wire: Wire, kernel: Sequence[int]) -> Probes:
    """Read kernel, stride, dilation and pads off the attributes; `auto_pad` is settled at the traced lengths."""
    n, s = len(kernel), wire.layout.axis - 2
    stride = node.attr("strides", (1,) * n)[s]
    dilation = node.attr("dilations", (1,) * n)[s]
    pads = node.attr("pads", (0,) * (2 * n))
    before, after = pads[s], pads[s + n]
    auto = node.attr("auto_pad", "NOTSET")
    if auto == "VALID":
        before = after = 0
    elif auto.startswith("SAME"):
        before, after = _same_pads(ctx, node, wire, kernel[s], stride)
    return Probes(s, kernel[s], stride, dilation, before, after)


def _same_pads(ctx: Context, node: Node, wire: Wire, span: int, stride: int) -> tuple[int, int]:
    """SAME pads follow the length; a stream needs the part in front to be the same for every length."""
    no_gaps(ctx, node)
    found = set()
    own = wire.length if wire.length is not None else constant(ctx.ask.dims(wire.name)[wire.layout.axis])
    sizes = in_frames(ctx.ask, own)
    turns = stretched(sizes, Fraction(stride))  # what follows from the remainder repeats with that
    for frames in dict.fromkeys(turns.values.tolist()):
        total = same_total(frames, span, stride)
        if total >= 0 or cuts(node):
            found.add((same_front(node, total), total))
    befores = {b for b, _ in found}
    if len(befores) != 1:
        ctx.ask.refuse(
            node,
            f"auto_pad={node.attr('auto_pad')} with stride {stride} pads the start differently depending on the length",
            (ctx.ask.declare(f"{stride}*n"), "export with explicit pads"),
            kind=Kind.LENGTH,
        )
    if wire.length is not None and span < stride and not cuts(node):
        # the last window has a first frame, and no frame behind its last
        begun = wire.length.then(1, stride - 1, stride)
        ctx.ask.ledger.require(node.name, begun, equals=wire.length.then(1, stride - span - 1, stride).then(add=1))
    before = befores.pop()
    return before, max(t for _, t in found) - before


def no_gaps(ctx: Context, node: Node) -> None:
    """Refuse SAME pads with dilation."""
    if node.attr("auto_pad", "NOTSET").startswith("SAME") and any(d > 1 for d in node.attr("dilations", ())):
        ctx.ask.refuse(
            node,
            "ONNX Runtime leaves the dilation out when it works out auto_pad",
            "export it with explicit pads",
        )


def same_total(frames: int, span: int, stride: int) -> int:
    """How many frames auto_pad adds in all; less than none where the kernel is shorter than the stride."""
    return (-(-frames // stride) - 1) * stride + span - frames


def same_front(node: Node, total: int) -> int:
    """How many of them go in front, in ONNX Runtime: it divides towards zero, and a convolution cuts one fewer."""
    lower = node.attr("auto_pad") == "SAME_LOWER"
    fewer = total < 0 and "Conv" in node.op
    return int((total + fewer + lower) / 2)


def without_time_pads(node: Node, n: int, s: int, extra: dict[str, object] | None = None) -> dict[str, object]:
    """The node's attributes with no padding on the time axis: the window read already holds it."""
    attrs = dict(node.attrs)
    if attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        attrs.pop("auto_pad", None)
        pads = list(node.attr("pads", (0,) * (2 * n))) if node.attr("auto_pad", "NOTSET") == "NOTSET" else [0] * (2 * n)
        pads[s] = pads[s + n] = 0
        attrs["pads"] = tuple(pads)
    return {**attrs, **(extra or {})}


def settle_other_pads(ctx: Context, node: Node, kernel: Sequence[int], s: int) -> dict[str, object]:
    """Explicit pads for the axes that are not time (auto_pad cannot stay once time is handled by hand)."""
    n = len(kernel)
    attrs = without_time_pads(node, n, s)
    auto = node.attr("auto_pad", "NOTSET")
    if not auto.startswith("SAME"):
        return attrs
    pads = [0] * (2 * n)
    dims = ctx.ask.dims(node.inputs[0])[2:]
    for i in range(n):
        if i == s:
            continue
        stride = node.attr("strides", (1,) * n)[i]
        total = same_total(dims[i], kernel[i], stride)
        pads[i] = same_front(node, total)
        if pads[i] < 0:
            ctx.ask.refuse(node, f"its auto_pad cuts axis {i + 2} in front", "export it with explicit pads, or a slice")
        pads[i + n] = max(total - pads[i], 0)
    attrs.pop("auto_pad")
    return {**attrs, "pads": tuple(pads)}


def beside_time(ctx: Context, node: Node, kernel: Sequence[int]) -> tuple[Node, Make]:
    """The node where time is none of the axes it looks along, with explicit pads, and what SAME cuts in front cut."""
    n, front, back = len(kernel), [], []
    if not node.attr("auto_pad", "NOTSET").startswith("SAME"):
        return node, clone
    strides, dilations = (node.attr(k) or (1,) * n for k in ("strides", "dilations"))
    for size, k, s, d in zip(ctx.ask.dims(node.inputs[0])[2:], kernel, strides, dilations, strict=True):
        total = same_total(size, (k - 1) * d + 1, s)
        front.append(same_front(node, total))
        back.append(total - front[-1])
    pads = tuple(max(p, 0) for p in (*front, *back))
    cut = {i + 2: -p for i, p in enumerate(front) if p < 0}

    def make(ctx: Context, node: Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        x = inputs[0]
        for axis, by in cut.items():
            assert x is not None
            x = ctx.builder.slice(x, axis, by, ctx.ask.dims(node.inputs[0])[axis])
        return clone(ctx, node, [x, *inputs[1:]])

    return replace(node, attrs={**node.attrs, "auto_pad": "NOTSET", "pads": pads}), make


@rule("Conv", "ConvInteger", "QLinearConv", says="any stride, dilation, groups, pads and auto_pad; 1-D to 3-D")
def conv(ctx: Context, node: Node) -> Plan | None:
    wire = ctx.ask.wire(node.inputs[0])
    weight = node.inputs[3 if node.op == "QLinearConv" else 1]
    if ctx.ask.wire(weight) is not None:
        ctx.ask.refuse(node, "its kernel varies over time", "use a constant kernel")
    kernel = ctx.ask.dims(weight)[2:]
    if wire is None or wire.layout.axis == 0:
        node, make = beside_time(ctx, node, kernel)
        return static(ctx, node, make) if wire is None else pointwise(ctx, node, make)
    if wire.layout.axis == 1:
        ctx.ask.refuse(
            node,
            "time is its channel axis, so it sums over the whole stream",
            "put time on a spatial axis",
            kind=Kind.AXES,
        )
    wire = measured(ctx.ask, node, wire)
    t = taps(ctx, node, wire, kernel)
    assert wire.length is not None
    length = wire.length.then(1, t.before + t.after - t.span + t.stride, t.stride)
    ctx.ask.ledger.require(node.name, length, at_least=1)
    cut = _spared(ctx, node, wire, t, length, *_zero_taps(ctx, node, weight, t))
    t = t.without(*cut)
    reach = Reach(t.stride, 1, -t.before, t.span - 1 - t.before)
    fill = Fill(value=_zero_point(ctx, node)) if max(t.before, t.after) > 0 else None

    beside = [ctx.ask.operand(node, i) for i in node.inputs[1:]]
    attrs = settle_other_pads(ctx, node, kernel, t.spatial)
    if any(cut):
        beside[node.inputs.index(weight) - 1] = _fewer_taps(ctx, node, weight, t.spatial, cut)
        attrs["kernel_shape"] = _with_size(kernel, t)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        inputs = [values[0], *map(emitted, beside)]
        return ctx.builder.ops(node.op, inputs, attrs, name=node.name)

    return Plan((Read(wire, reach, fill),), (ctx.ask.layout(node, node.outputs[0]),), length, emit)


def _zero_taps(ctx: Context, node: Node, weight: str, t: Probes) -> Ends:
    """So many taps at the ends of a kernel are zero in all channels that hold anything, or that anybody uses."""
    array = weights(ctx.ask, weight) if t.kernel > 1 else None
    if array is None:
        return NONE
    zero = _weight_zero(ctx, node, array.ndim)
    if zero is None:
        return NONE
    if node.op == "Conv" and node.attr("group", 1) == 1 and len(node.inputs) < 3:  # frames cut by a kernel of ones
        front, back = unused_entries(ctx.ask, node.outputs[0], 1)
        array = array[front : len(array) - back]
    if node.op == "ConvTranspose" and node.attr("group", 1) == 1:  # frames that a window makes zero at their ends
        front, back = zero_entries(ctx.ask, node.inputs[0], 1)
        array = array[front : len(array) - back]
    return zero_ends(array, t.spatial + 2, zero)


def _weight_zero(ctx: Context, node: Node, rank: int) -> Array | int | None:
    """Which number in a kernel stands for zero; None if that is no constant."""
    at = {"ConvInteger": 3, "QLinearConv": 5}.get(node.op)
    if at is None or not node.input(at):
        return 0
    zero = weights(ctx.ask, node.input(at))
    return None if zero is None else zero.reshape(-1, *(1,) * (rank - 1))


def _spared(ctx: Context, node: Node, wire: Wire, t: Probes, length: Length, front: int, back: int) -> Ends:
    """Of the taps that are zero, those it is worth doing without.

    In front those that keep whole frames of memory; behind all of them, if a frame comes sooner.
    """
    whole = t.stride // math.gcd(t.stride, t.dilation)
    reach = Reach(t.stride, 1, -t.before, t.span - 1 - t.before)
    later = comes_sooner(ctx, node, wire, length, reach, replace(reach, hi=reach.hi - back * t.dilation))
    return (front // whole * whole if wire.end is not None else 0), back if later else 0


def comes_sooner(ctx: Context, node: Node, wire: Wire, length: Length, reach: Reach, less: Reach) -> bool:
    """Can frames be had sooner if they read less? Not those whose existence is what is waited for."""
    if wire.end is None:
        return False
    exist = ctx.latest_end(length)
    sooner = min(less.latest_end(wire.end), exist) > min(reach.latest_end(wire.end), exist)
    if not sooner:  # at another phase they may be
        ctx.spare(node, wire, reach, less)
    return sooner


def _spared_spread(wire: Wire, t: Probes, front: int, back: int) -> Ends:
    """The same where taps spread frames: output frames wait for the first taps, and the last ones remember."""
    whole = t.stride // math.gcd(t.stride, t.dilation)
    return NONE if wire.end is None else (front, back // whole * whole)


def _fewer_taps(ctx: Context, node: Node, weight: str, spatial: int, cut: Ends) -> Deferred:
    """The kernel without some of its first and last taps."""
    axis, size = spatial + 2, ctx.ask.dims(weight)[spatial + 2]
    tensor = ctx.ask.model.constants.get(weight)
    if tensor is not None:
        kept = (slice(None),) * axis + (slice(cut[0], size - cut[1]),)
        return constant_value(ctx, weight, np.asarray(tensor.numpy())[kept])
    value = ctx.ask.operand(node, weight)
    assert value is not None
    return deferred(lambda: ctx.builder.slice(value.value, axis, cut[0], size - cut[1]), value)


def _with_size(kernel: Sequence[int], t: Probes) -> tuple[int, ...]:
    return tuple(t.kernel if i == t.spatial else k for i, k in enumerate(kernel))


def _zero_point(ctx: Context, node: Node) -> int:
    """What padding holds: zero, or the input's zero point in quantised convolutions."""
    at = {"ConvInteger": 2, "QLinearConv": 2}.get(node.op)
    if at is None or not node.input(at):
        return 0
    return int(fixed_value(ctx.ask, node, node.input(at), "zero point").reshape(-1)[0])


def _with_pads(node: Node, kernel: Sequence[int]) -> Node:
    """A transposed convolution with explicit pads: SAME cuts what is more than stride times its input, always alike."""
    auto, n = node.attr("auto_pad", "NOTSET"), len(kernel)
    if not auto.startswith("SAME") or node.attr("output_shape"):
        return node
    strides, dilations, more = (
        node.attr(k) or (d,) * n for k, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    totals = [max((k - 1) * d + 1 + e - s, 0) for k, d, e, s in zip(kernel, dilations, more, strides, strict=True)]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    return replace(node, attrs={**node.attrs, "auto_pad": "NOTSET", "pads": pads})


@rule("ConvTranspose", says="overlapping or not, output_padding, pads and auto_pad, groups, dilation")
def conv_transpose(ctx: Context, node: Node) -> Plan | None:
    """Input frame i adds to outputs i*stride ... i*stride + span - 1; frames outside [0, L) add nothing.

    input         i         i+1
    output   [ . . . . )                  an output is complete once the last input frame
                  [ . . . . )             that touches it is there
    """
    wire, kernel = ctx.ask.wire(node.inputs[0]), ctx.ask.dims(node.inputs[1])[2:]
    node = _with_pads(node, kernel)
    if wire is None:
        return static(ctx, node)
    if wire.layout.axis == 0:
        return pointwise(ctx, node)
    if wire.layout.axis == 1:
        ctx.ask.refuse(
            node,
            "time is its channel axis, so it sums over the whole stream",
            "put time on a spatial axis",
            kind=Kind.AXES,
        )
    wire = measured(ctx.ask, node, wire)
    n = len(kernel)
    if node.attr("output_shape"):
        ctx.ask.refuse(
            node,
            "its output shape is written down, so it gives as many frames however long the stream is",
            "export it with explicit pads",
            kind=Kind.EXPORT,
        )
    t = taps(ctx, node, wire, kernel)
    extra = node.attr("output_padding", (0,) * n)[t.spatial]
    assert wire.length is not None
    length = wire.length.then(t.stride, t.span - t.stride + extra - t.before - t.after)
    cut = _spared_spread(wire, t, *_zero_taps(ctx, node, node.inputs[1], t))
    t = t.without(*cut)
    first = min(t.before - t.span + t.stride, t.before)  # with gaps between the taps of two frames, still one frame
    reach = Reach(1, t.stride, first, t.before)
    ctx.ask.ledger.require(node.name, length, at_least=1)
    if extra:
        ctx.ask.ledger.require(node.name, wire.length, at_least=1)  # the runtime adds no frames to none

    attrs = without_time_pads(node, n, t.spatial)
    padding = list(node.attr("output_padding", (0,) * n))
    padding[t.spatial] = max(0, t.stride - t.span)
    attrs["output_padding"] = tuple(padding)
    beside = [ctx.ask.operand(node, i) for i in node.inputs[1:]]
    if any(cut):
        beside[0] = _fewer_taps(ctx, node, node.inputs[1], t.spatial, cut)
        attrs["kernel_shape"] = _with_size(kernel, t)

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value]:
        inputs = [values[0], *map(emitted, beside)]
        out = ctx.builder.ops(node.op, inputs, attrs, name=node.name)[0]
        skip = window.start + t.before - reach.first(window.start) * t.stride
        return (ctx.builder.slice(out, wire.layout.axis, skip, skip + window.frames),)

    return Plan((Read(wire, reach, Fill()),), (ctx.ask.layout(node, node.outputs[0]),), length, emit)


# ---- at one length
@CHECK("Conv")
def _kernel_fits(node: Node, ins: Inputs) -> None:
    x, weights = ins[0], ins[1]
    check_kernel(node, ins, weights.dims[2:] if weights is not None else node.attr("kernel_shape"))
    if x is not None and weights is not None:
        check_channels(node, x.dims[1], weights.dims[1] * int(node.attr("group", 1)))


@CHECK("ConvTranspose")
def _channels_fit(node: Node, ins: Inputs) -> None:
    x, weights = ins[0], ins[1]
    if x is not None and weights is not None and len(x.dims) > 1:
        check_channels(node, x.dims[1], weights.dims[0])


def check_channels(node: Node, given: int, taken: int) -> None:
    """Inference does not look at them."""
    if given != taken:
        raise Unlike(node, f"its input has {given} channels, and its weights are for {taken}")


def check_kernel(node: Node, ins: Inputs, kernel: Sequence[int]) -> None:
    """Inference rounds towards zero, and so finds a frame where the kernel is longer than its input."""
    n, x = len(kernel), ins[0]
    if x is None:
        return
    if len(x.dims) != n + 2:
        raise CannotRun(node, f"its input has {len(x.dims)} axes, and its kernel {n}")
    if node.attr("auto_pad", "NOTSET").startswith("SAME") or node.attr("ceil_mode", 0):
        return
    pads, dilations = node.attr("pads", (0,) * (2 * n)), node.attr("dilations", (1,) * n)
    if len(pads) != 2 * n or len(dilations) != n:
        raise CannotRun(node, f"its pads or dilations are not those of {n} axes")
    for i, (size, k) in enumerate(zip(x.dims[2:], kernel, strict=True)):
        if size + pads[i] + pads[i + n] < (k - 1) * dilations[i] + 1:
            raise CannotRun(node, f"its kernel is longer than its input of {size}")


@SHAPE("ConvTranspose")
def _transposed_shape(node: Node, ins: Inputs) -> Dims | None:
    """SAME makes stride times the input, where the kernel makes so many; inference adds output_padding once more."""
    x, weight = ins[0], ins[1]
    if x is None or weight is None:
        return None
    n, channels = len(x.dims) - 2, weight.dims[1] * node.attr("group", 1)
    if node.attr("output_shape"):
        return (x.dims[0], channels, *tuple(node.attr("output_shape"))[-n:])
    if not node.attr("auto_pad", "").startswith("SAME"):
        return None
    strides, dilations, more = (
        node.attr(k) or (d,) * n for k, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    sizes = [
        min((size - 1) * s + (k - 1) * d + 1 + e, size * s)
        for size, k, s, d, e in zip(x.dims[2:], weight.dims[2:], strides, dilations, more, strict=True)
    ]
    return (x.dims[0], channels, *sizes)


# ---- values by length
VALUES("Conv")(windowed)


SIZES("Conv")(windowed_sizes)


# ---- rows of known tables
ROW_READS("Conv")(windowed_rows)
