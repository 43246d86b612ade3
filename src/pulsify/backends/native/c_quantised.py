"""Quantised operators, computed as they are written."""

from __future__ import annotations

from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.fuse import Chain, dense, emit_loop, indented, literal
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import View
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
    result = f"({kind})p_whole((double)p_min(p_max(q, {low}), {high}))"
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


@op("MatMulInteger")
def matmul_integer(n: Site) -> None:
    a, b, y = n.x(0), n.x(1), n.flat()
    if len(b.shape) != 2:
        raise Uncovered("of more than two axes on the right")
    zeros = [n.x(i) if n.has(i) else None for i in (2, 3)]
    if any(z is not None and z.size != 1 for z in zeros):
        raise Uncovered("a zero point for every row")
    rows = dense(n.scope, a)
    count, depth, outputs = a.size // max(a.shape[-1], 1), a.shape[-1], b.shape[1]
    extra = [z for z in zeros if z is not None]
    params = [f"const {a.ctype} *restrict a", f"const {b.ctype} *restrict b"]
    params += [f"const {z.ctype} *restrict z{i}" for i, z in enumerate(zeros) if z is not None]
    less = [f" - z{i}[0]" if z is not None else "" for i, z in enumerate(zeros)]
    lines = [
        f"for (int i = 0; i < {count}; i++) {{", f"int32_t *const s = y + i * {outputs};",
        f"for (int j = 0; j < {outputs}; j++) s[j] = 0;", f"for (int k = 0; k < {depth}; k++) {{",
        f"const int32_t x = a[i * {depth} + k]{less[0]};",
        f"for (int j = 0; j < {outputs}; j++) s[j] += x * (b[k * {b.strides[0]} + j * {b.strides[1]}]{less[1]});",
        "}", "}",
    ]  # fmt: skip
    n.emit(Kernel("matmul_integer", (*params, "int32_t *restrict y"), indented(lines)), (rows, b, *extra, y))
