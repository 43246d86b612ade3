"""Quantised operators, computed as they are written."""

from __future__ import annotations

import math

import numpy as np

from pulsify.backends.native.c_convolutions import amounts, channels_last
from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.fuse import Chain, dense, emit_loop, indented, literal
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import View, indices, loops, row_major
from pulsify.backends.site import Uncovered

LIMITS = {"int8_t": (-128, 127), "uint8_t": (0, 255), "int16_t": (-32768, 32767), "uint16_t": (0, 65535)}


def _by_channel(n: Site, i: int, axis: int) -> View:
    """A scale or a zero point so that it meets the axis it is for."""
    view, shape = n.x(i), n.sizes()
    if view.size == 1:
        seen = view.reshaped((1,) * len(shape))
    elif n.attr("block_size", 0) or len(view.shape) != 1:
        raise Uncovered("by blocks")
    else:
        seen = view.reshaped([view.size if a == axis else 1 for a in range(len(shape))])
    assert seen is not None
    return seen.spread(shape)


@op("QuantizeLinear")
def quantize(n: Site) -> None:
    float_only(n)
    kind, axis, x = n.makes(), n.axis(default=1), n.x()
    if kind not in LIMITS:
        raise Uncovered(f"to {kind}")
    low, high = (literal(v, "float") for v in LIMITS[kind])
    leaves = [x, _by_channel(n, 1, axis)] + ([_by_channel(n, 2, axis)] if n.has(2) else [])
    lines = [f"const {v.ctype} v{i} = x{i}[@{i}@];" for i, v in enumerate(leaves)]
    lines.append(f"const float q = rintf(v0 / v1){' + (float)v2' if n.has(2) else ''};")
    result = f"({kind})p_whole((double)p_min(q > {low} ? q : {low}, {high}))"  # NaN is the lowest, as in the runtime
    emit_loop(n.scope, Chain(tuple(lines), result, tuple(leaves)), n.out(order=x.order), "quantise")


@op("DequantizeLinear")
def dequantize(n: Site) -> None:
    if n.kind() not in (*LIMITS, "int32_t") or n.makes() != "float":
        raise Uncovered(f"from {n.kind()}")
    axis, x = n.axis(default=1), n.x()
    leaves = [x, _by_channel(n, 1, axis)] + ([_by_channel(n, 2, axis)] if n.has(2) else [])
    lines = tuple(f"const {v.ctype} v{i} = x{i}[@{i}@];" for i, v in enumerate(leaves))
    whole = "(float)((int32_t)v0 - (int32_t)v2)" if n.has(2) else "(float)v0"
    emit_loop(n.scope, Chain(lines, f"{whole} * v1", tuple(leaves)), n.out(order=x.order), "dequantise")


@op("DynamicQuantizeLinear")
def dynamic(n: Site) -> None:
    float_only(n)
    x = dense(n.scope, n.x())
    y, scale, zero = n.flat(0), n.flat(1), n.flat(2)
    lines = [
        "float low = 0.0f, high = 0.0f;", f"for (int i = 0; i < {x.size}; i++) {{", "low = p_min(x[i], low);",
        "high = p_max(x[i], high);", "}", "const float s = (high - low) / 255.0f;",
        "const float z = s == 0.0f ? 0.0f : rintf(p_min(p_max(0.0f - low / s, 0.0f), 255.0f));", "scale[0] = s;",
        "zero[0] = (uint8_t)p_whole((double)z);",
        f"for (int i = 0; i < {x.size}; i++) "
        "y[i] = (uint8_t)p_whole((double)p_min(p_max(rintf(x[i] / s) + z, 0.0f), 255.0f));",
    ]  # fmt: skip
    params = ("const float *restrict x", "uint8_t *restrict y", "float *restrict scale", "uint8_t *restrict zero")
    n.emit(Kernel("dynamic_quantise", params, indented(lines)), (x, y, scale, zero), 3)


# ---- products of whole numbers: sums in int32, as the runtime has them


def _less(n: Site, i: int, name: str, each: str = "") -> tuple[str, View | None]:
    """What is taken off a number for its zero point, and where that lies. each: which one, if there are several."""
    if not n.has(i):
        return "", None
    view = dense(n.scope, n.x(i))
    if view.size > 1 and not each:
        raise Uncovered("a zero point for every row")
    return f" - {name}[{each if view.size > 1 else 0}]", view


def _summed(n: Site, kernel: str, lines: list[str], given: list[tuple[str, View | None]], made: View) -> None:
    """given: what it reads, by name; what is not there is left out."""
    there = [(name, view) for name, view in given if view is not None]
    params = (*(f"const {view.ctype} *restrict {name}" for name, view in there), "int32_t *restrict y")
    n.emit(Kernel(kernel, params, indented(lines)), (*(view for _, view in there), made))


def _matrices(n: Site, left: int, right: int, zeros: tuple[int, int], made: View) -> None:
    """a @ b, b of two axes."""
    b = n.x(right)
    if len(b.shape) != 2:
        raise Uncovered("of more than two axes on the right")
    a = dense(n.scope, n.x(left))
    count, depth, outputs = a.size // max(a.shape[-1], 1), a.shape[-1], b.shape[1]
    (za, first), (zb, second) = _less(n, zeros[0], "za"), _less(n, zeros[1], "zb", "j")
    lines = [
        f"for (int i = 0; i < {count}; i++) {{", f"int32_t *const s = y + i * {outputs};",
        f"for (int j = 0; j < {outputs}; j++) s[j] = 0;", f"for (int k = 0; k < {depth}; k++) {{",
        f"const int32_t x = a[i * {depth} + k]{za};",
        f"for (int j = 0; j < {outputs}; j++) s[j] += x * (b[k * {b.strides[0]} + j * {b.strides[1]}]{zb});",
        "}", "}",
    ]  # fmt: skip
    _summed(n, "matmul_integer", lines, [("a", a), ("b", b), ("za", first), ("zb", second)], made)


def _windows(n: Site, at: int, zeros: tuple[int, int], made: View) -> None:
    """A convolution into [B, O, ...], channels innermost. at: the weights, constants. Outside is the zero point."""
    weights, x = n.known(at, "weights"), n.x()
    outputs, each, *kernel = weights.shape
    groups, axes = int(n.attr("group", 1)), len(kernel)
    strides, gaps, low, _ = amounts(n, x.shape[2:], kernel)
    per = outputs // groups
    packs = np.moveaxis(weights.reshape(groups, per, each, -1), 1, -1)  # [G, each, taps, per]
    w = n.scope.weights.put(np.moveaxis(packs, 1, 2), n.kind(at))
    (zx, first), (zw, second) = _less(n, zeros[0], "zx"), _less(n, zeros[1], "zw", f"g * {per} + j")
    rows, taps, places = ([f"{c}{i}" for i in range(axes)] for c in "okp")
    lines = [*loops(["b", *rows, "g"], [made.shape[0], *made.shape[2:], groups])]
    place = indices(["b", *rows], [made.strides[0], *made.strides[2:]])
    lines += [f"int32_t *const s = y + {place} + g * {per};", f"for (int j = 0; j < {per}; j++) s[j] = 0;"]
    lines += loops(taps, kernel)
    lines += [f"const int p{i} = o{i} * {strides[i]} + k{i} * {gaps[i]} - {low[i]};" for i in range(axes)]
    lines.append(f"if ({' || '.join(f'p{i} < 0 || p{i} >= {x.shape[2 + i]}' for i in range(axes))}) continue;")
    tap = indices(taps, row_major(kernel))
    lines += [
        f"for (int c = 0; c < {each}; c++) {{",
        f"const int32_t v = x[b * {x.strides[0]} + (g * {each} + c) * {x.strides[1]} + "
        f"{indices(places, x.strides[2:])}]{zx};",
        f"const {w.ctype} *const q = w + ((g * {math.prod(kernel)} + {tap}) * {each} + c) * {per};",
        f"for (int j = 0; j < {per}; j++) s[j] += v * (q[j]{zw});", "}",
        *["}"] * (2 * axes + 2),
    ]  # fmt: skip
    _summed(n, "conv_integer", lines, [("x", x), ("w", w), ("zx", first), ("zw", second)], made)


def _requantised(n: Site, sums: View, scales: tuple[int, int, int], zero: int, channel: int) -> None:
    """To the type of the result: sums (and a bias, which is one already) times what a step of theirs is in its own."""
    kind, shape = n.makes(), sums.shape
    if kind not in LIMITS:
        raise Uncovered(f"to {kind}")
    low, high = (literal(v, "float") for v in LIMITS[kind])

    def spread(i: int) -> View:
        view = dense(n.scope, n.x(i))
        seen = view.reshaped([view.size if a == channel and view.size > 1 else 1 for a in range(len(shape))])
        assert seen is not None
        return seen.spread(shape)

    leaves = [sums, *(spread(i) for i in scales), *([spread(zero)] if n.has(zero) else [])]
    lines = [f"const {v.ctype} v{i} = x{i}[@{i}@];" for i, v in enumerate(leaves)]
    total = "v0"
    if n.op == "QLinearConv" and n.has(8):
        lines.append(f"const int32_t bias = x{len(leaves)}[@{len(leaves)}@];")
        leaves.append(spread(8))
        total = "(v0 + bias)"
    more = " + (float)v4" if n.has(zero) else ""
    lines.append(f"const float q = rintf((float){total} * (v1 * v2 / v3)){more};")
    result = f"({kind})p_whole((double)p_min(p_max(q, {low}), {high}))"
    emit_loop(n.scope, Chain(tuple(lines), result, tuple(leaves)), n.out(order=sums.order), "requantise")


@op("MatMulInteger")
def matmul_integer(n: Site) -> None:
    _matrices(n, 0, 1, (2, 3), n.flat())


@op("QLinearMatMul")
def matmul_quantised(n: Site) -> None:
    sums = n.scope.work(n.gives(), "int32_t")
    _matrices(n, 0, 3, (2, 5), sums)
    _requantised(n, sums, (1, 4, 6), 7, len(sums.shape) - 1)


@op("ConvInteger")
def conv_integer(n: Site) -> None:
    order = channels_last(len(n.sizes()))
    made = n.scope.work(n.gives(), "int32_t", order)
    _windows(n, 1, (2, 3), made)
    n.alias(made)


@op("QLinearConv")
def conv_quantised(n: Site) -> None:
    sums = n.scope.work(n.gives(), "int32_t", channels_last(len(n.sizes())))
    _windows(n, 3, (2, 5), sums)
    _requantised(n, sums, (1, 4, 6), 7, 1)
