"""Products with weights: matrices, convolutions, quantised numbers."""

from __future__ import annotations

import math

import numpy as np

from pulsify.backends.site import Uncovered
from pulsify.backends.torch.ops_shapes import turned
from pulsify.backends.torch.site import Site, literal
from pulsify.backends.torch.table import Written, op
from pulsify.kernels.targets import chosen

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
TAPS = 32  # of a convolution up to which a compiler is given the sum


def _on_a_card(n: Site) -> None:
    if not n.floating() and n.device != "cpu":
        raise Uncovered("products of integers are not there on a card")


@op("MatMul")
def matmul(n: Site) -> Written:
    _on_a_card(n)
    array = n.const(1)
    if array is not None and n.rank(0) == 4 and array.ndim in (3, 4) and n.floating():
        sizes = n.sizes(0)
        if sizes[0] > 1 == (1, *array.shape)[-4] and sizes[1] == array.shape[-3]:  # else a copy for every stream
            rows = n.put("rows", np.ascontiguousarray(array.swapaxes(-1, -2)), n.kind(1), of=1)
            return f"op.by_head({n.x(0)}, {rows}.transpose(-1, -2))"
    return f"torch.matmul({n.x(0)}, {n.x(1)})"


@op("Gemm")
def gemm(n: Site) -> Written:
    _on_a_card(n)
    a, b = (f"{n.x(i)}.t()" if n.attr(k, 0) else n.x(i) for i, k in ((0, "transA"), (1, "transB")))
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 1.0))
    if alpha == beta == 1 and n.attr("transB", 0) and (not n.has(2) or n.rank(2) == 1):
        return f"F.linear({a}, {n.x(1)}{f', {n.x(2)}' if n.has(2) else ''})"
    text = f"torch.matmul({a}, {b})" + (f" * {literal(alpha)}" if alpha != 1 else "")
    if not n.has(2):
        return text
    return f"{text} + {n.x(2)}" + (f" * {literal(beta)}" if beta != 1 else "")


@op("Einsum")
def einsum(n: Site) -> Written:
    _on_a_card(n)
    return f"torch.einsum('{n.attr('equation')}', {', '.join(n.x(i) for i in range(n.count()))})"


# ---- convolutions


def spread(n: Site, name: str, axes: int, default: int = 1) -> list[int]:
    """An attribute with a number for every axis."""
    return [int(k) for k in n.attr(name, [default] * axes)]


def pads_of(n: Site, kernel: list[int], strides: list[int], dilations: list[int]) -> list[int]:
    """In front of all axes, then behind them."""
    how, axes = n.attr("auto_pad", "NOTSET"), len(kernel)
    if how in ("NOTSET", ""):
        return spread(n, "pads", 2 * axes, 0)
    if how == "VALID":
        return [0] * 2 * axes
    sizes = n.sizes()[2:]
    before, after = [], []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        low = total // 2 if how == "SAME_UPPER" else total - total // 2
        before.append(low)
        after.append(total - low)
    return before + after


def padded(n: Site, pads: list[int], value: str = "0.0") -> str:
    """The input with something around it."""
    axes = len(pads) // 2
    if not any(pads):
        return n.x()
    return f"F.pad({n.x()}, {turned(axes, list(range(axes)), pads)}, value={value})"


@op("Conv")
def conv(n: Site) -> Written:
    weights = n.sizes(1)
    axes = len(weights) - 2
    if not 1 <= axes <= 3 or not n.floating():
        raise Uncovered(f"over {axes} axes of {n.kind()}")
    strides, dilations = spread(n, "strides", axes), spread(n, "dilations", axes)
    pads, groups = pads_of(n, list(weights[2:]), strides, dilations), int(n.attr("group", 1))
    channels, x, named = n.sizes()[1], n.x(), ""
    if groups == 1 and set(weights[2:]) == set(strides) == {1} and not any(pads):
        return _over_channels(n, axes)
    if groups == channels == weights[0] and axes == 1 and weights[2] <= TAPS and _has_kernel(n):
        steps = f"stride={strides[0]}, dilation={dilations[0]}"
        return f"op.depthwise({padded(n, pads)}, {n.x(1)}[:, 0], {n.maybe(2)}, {steps})"
    if groups == channels and (channels == 1 or weights[0] == channels):
        few = n.scope.compiled and math.prod(weights[2:]) <= TAPS
        given = f"{padded(n, pads)}, {n.x(1)}, {n.maybe(2)}, {strides}, {dilations}"
        return f"op.{'tap_by_tap' if few else 'each_channel'}({given})"
    if pads[:axes] == pads[axes:] and min(pads) >= 0:
        named += f", padding={pads[:axes]}" if any(pads) else ""
    else:
        x = padded(n, pads)
    named += f", stride={strides}" if set(strides) != {1} else ""
    named += f", dilation={dilations}" if set(dilations) != {1} else ""
    named += f", groups={groups}" if groups != 1 else ""
    return f"F.conv{axes}d({x}, {n.x(1)}, {n.maybe(2)}{named})"


def _has_kernel(n: Site) -> bool:
    """Of every channel by itself: sums are float32 there."""
    return chosen(n.device) == "triton" and n.kind() in ("float32", "float16", "bfloat16")


def _over_channels(n: Site, axes: int) -> str:
    """Of one tap: a product with the channels of every frame, which lie side by side afterwards."""
    weights = f"{n.x(1)}[:, :, {', '.join('0' * axes)}]"
    return f"F.linear({n.x()}.movedim(1, -1), {weights}, {n.maybe(2)}).movedim(-1, 1)"


@op("ConvTranspose")
def conv_transpose(n: Site) -> Written:
    """All of it, and then the part that is asked for."""
    weights, sizes, made = n.sizes(1), n.sizes(), n.gives()
    axes = len(weights) - 2
    if not 1 <= axes <= 3 or not n.floating():
        raise Uncovered(f"over {axes} axes of {n.kind()}")
    strides, dilations = spread(n, "strides", axes), spread(n, "dilations", axes)
    more = spread(n, "output_padding", axes, 0)
    reach = [(k - 1) * d + 1 for k, d in zip(weights[2:], dilations, strict=True)]
    whole = [(size - 1) * s + r + m for size, s, r, m in zip(sizes[2:], strides, reach, more, strict=True)]
    starts = spread(n, "pads", 2 * axes, 0)[:axes]
    how = n.attr("auto_pad", "NOTSET")
    if n.attr("output_shape") is not None or how not in ("NOTSET", "VALID", ""):
        spare = [max(w - m, 0) for w, m in zip(whole, made[2:], strict=True)]
        starts = [s // 2 if how == "SAME_UPPER" else s - s // 2 for s in spare]  # what is odd is cut in front
    if any(s + m > w for s, m, w in zip(starts, made[2:], whole, strict=True)):
        raise Uncovered("its result is larger than what it makes")
    named = f", stride={strides}" if set(strides) != {1} else ""
    named += f", output_padding={more}" if any(more) else ""
    named += f", groups={g}" if (g := int(n.attr("group", 1))) != 1 else ""
    named += f", dilation={dilations}" if set(dilations) != {1} else ""
    cuts = [":" if (s, m) == (0, w) else f"{s}:{s + m}" for s, m, w in zip(starts, made[2:], whole, strict=True)]
    part = "" if set(cuts) == {":"} else f"[:, :, {', '.join(cuts)}]"
    return f"F.conv_transpose{axes}d({n.x()}, {n.x(1)}, {n.maybe(2)}{named}){part}"


# ---- quantised


def _by_channel(n: Site, i: int, axis: int) -> str:
    """A scale or a zero point so that it meets the axis it is for."""
    if n.rank(i) == 0 or n.sizes(i) == (1,):
        return f"{n.x(i)}.reshape(())"
    if n.attr("block_size", 0):
        raise Uncovered("by blocks")
    return f"{n.x(i)}.reshape({', '.join('-1' if k == axis else '1' for k in range(n.rank()))})"


@op("QuantizeLinear")
def quantize(n: Site) -> Written:
    axis, kind = n.axis(default=1), n.made()
    if kind not in LIMITS or not n.floating():
        raise Uncovered(f"from {n.kind()} to {kind}")
    low, high = LIMITS[kind]
    zero = f" + {_by_channel(n, 2, axis)}" if n.has(2) and _not_zero(n, 2) else ""
    scaled = f"(torch.round({n.x()} / {_by_channel(n, 1, axis)}){zero})"
    return f"{scaled}.clamp({low}, {high}).nan_to_num({low}).to(torch.{kind})"  # as the runtime takes NaN


@op("DequantizeLinear")
def dequantize(n: Site) -> Written:
    axis, kind = n.axis(default=1), n.made()
    zero = f" - {_by_channel(n, 2, axis)}.int()" if n.has(2) and _not_zero(n, 2) else ""
    x = f"({n.x()}.int(){zero})" if zero else n.x()
    return f"{x}.to(torch.{kind}) * {_by_channel(n, 1, axis)}"


def _not_zero(n: Site, i: int) -> bool:
    array = n.const(i)
    return array is None or bool(np.any(array != 0))


@op("MatMulInteger")
def matmul_integer(n: Site) -> Written:
    if n.device != "cpu":
        raise Uncovered("products of integers are not there on a card")
    for i in (2, 3):
        if n.has(i) and n.rank(i) > 0 and n.sizes(i) != (1,):
            raise Uncovered("a zero point for every row")
    a, b = (f"({n.x(i)}.int() - {n.x(i + 2)}.int())" if n.has(i + 2) else f"{n.x(i)}.int()" for i in (0, 1))
    return f"torch.matmul({a}, {b})"
