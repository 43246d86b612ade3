"""Norms: mean and power of a row in one go, then the row once more."""

from __future__ import annotations

import numpy as np

from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.c_shapes import reshaped
from pulsify.backends.native.fuse import Chain, dense, emit_loop, indented, literal
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import View, indices, loops
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered

LANES = "((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]))"


def normed(
    n: Site, x: View, y: View, rows: int, size: int, gain: View | None, shift: View | None, eps: float,
    centred: bool = True, by_row: int = 0,
) -> None:  # fmt: skip
    """Rows of `size` that lie side by side. by_row: gain and shift are one number for each of so many rows in turn."""
    params = ["const float *restrict x0"]
    args = [x]
    at = f"i % {by_row}" if by_row else "k"
    result = "(x[k] - mean) * by" if centred else "x[k] * by"
    for name, view in (("gain", gain), ("shift", shift)):
        if view is not None:
            params.append(f"const float *restrict {name}")
            args.append(view)
            result = f"{result} * gain[{at}]" if name == "gain" else f"{result} + shift[{at}]"
    lines = [f"for (int i = 0; i < {rows}; i++) {{", f"const float *const x = x0 + i * {size};", "float e[8] = {0.0f};"]
    number = literal(size, "float")
    if centred:
        lines += [*_lanes(size, "x[k]"), f"const float mean = ({LANES}) / {number};"]
        lines += ["for (int q = 0; q < 8; q++) e[q] = 0.0f;"]
    lines += _lanes(size, "(x[k] - mean) * (x[k] - mean)" if centred else "x[k] * x[k]")
    lines += [f"const float by = 1.0f / sqrtf(({LANES}) / {number} + {literal(eps, 'float')});"]
    lines += [f"for (int k = 0; k < {size}; k++) y[i * {size} + k] = {result};", "}"]
    params.append("float *restrict y")
    n.emit(Kernel("norm", tuple(params), indented(lines)), (*args, y))


def _lanes(size: int, what: str) -> list[str]:
    whole = size // 8 * 8
    lines = []
    if whole:
        lines += [f"for (int o = 0; o < {whole}; o += 8) {{", "for (int q = 0; q < 8; q++) {", "const int k = o + q;"]
        lines += [f"e[q] += {what};", "}", "}"]
    if whole < size:
        lines += [f"for (int k = {whole}; k < {size}; k++) e[k & 7] += {what};"]
    return lines


@op("LayerNormalization", "RMSNormalization")
def layer_norm(n: Site) -> None:
    n.only(0)
    float_only(n)
    axis, eps, shape = n.axis(default=-1), float(n.attr("epsilon", 1e-5)), n.sizes()
    size, rows = int(np.prod(shape[axis:])), int(np.prod(shape[:axis]))
    x, y = dense(n.scope, n.x()), n.flat()

    def whole(i: int) -> View | None:
        if not n.has(i):
            return None
        return dense(n.scope, n.x(i).spread(shape[axis:]))

    normed(n, x, y, rows, size, whole(1), whole(2), eps, n.op == "LayerNormalization")


@op("InstanceNormalization", "GroupNormalization")
def by_channels(n: Site) -> None:
    float_only(n)
    shape, eps = n.sizes(), float(n.attr("epsilon", 1e-5))
    groups = shape[1] if n.op == "InstanceNormalization" else int(n.attr("num_groups"))
    x, y = dense(n.scope, n.x()), n.out()
    rows = shape[0] * groups
    size = int(np.prod(shape)) // max(rows, 1)
    plain = n.scope.work(shape, "float")
    normed(n, x, plain, rows, size, None, None, eps)
    gain, shift = n.known(1, "scale"), n.known(2, "bias")
    if n.op == "GroupNormalization" and n.opset < 21:
        gain, shift = (np.repeat(a, shape[1] // groups) for a in (gain, shift))
    _scaled(n, plain, y, gain, shift)


def _scaled(n: Site, x: View, y: View, gain: Array, shift: Array) -> None:
    ones = (-1, *[1] * (len(x.shape) - 2))
    put = n.scope.weights.put
    views = [put(a.astype(np.float32).reshape(ones), "float").spread(x.shape) for a in (gain, shift)]
    lines = tuple(f"const float v{i} = x{i}[@{i}@];" for i in range(3))
    emit_loop(n.scope, Chain(lines, "v0 * v1 + v2", (x, *views)), y, "scale")


@op("BatchNormalization")
def batch_norm(n: Site) -> None:
    n.only(0)
    float_only(n)
    if n.attr("training_mode", 0):
        raise Uncovered("it is in training mode")
    gain, shift, mean, variance = (n.known(i, "statistics").astype(np.float32) for i in range(1, 5))
    by = gain / np.sqrt(variance + np.float32(n.attr("epsilon", 1e-5)))
    _scaled(n, n.x(), n.out(order=n.x().order), by, shift - mean * by)


@op("LpNormalization")
def by_length(n: Site) -> None:
    float_only(n)
    p, axis, x = int(n.attr("p", 2)), n.axis(default=-1), n.x()
    order = [a for a in range(len(x.shape)) if a != axis] + [axis]
    rows = dense(n.scope, x.permuted(order))
    size, made = x.shape[axis], n.scope.work(rows.shape, "float")
    term, end = ("fabsf(x[k])", "s") if p == 1 else ("x[k] * x[k]", "sqrtf(s)")
    lines = [
        f"for (int i = 0; i < {rows.size // max(size, 1)}; i++) {{", f"const float *const x = x0 + i * {size};",
        "float s = 0.0f;", f"for (int k = 0; k < {size}; k++) s += {term};", f"const float by = {end};",
        f"for (int k = 0; k < {size}; k++) y[i * {size} + k] = by == 0.0f ? 0.0f : x[k] / by;", "}",
    ]  # fmt: skip
    n.emit(Kernel("lp_norm", ("const float *restrict x0", "float *restrict y"), indented(lines)), (rows, made))
    back = [order.index(a) for a in range(len(order))]
    n.alias(reshaped(n.scope, made.permuted(back), n.gives()))


@op("LRN")
def local_response(n: Site) -> None:
    """By the power of the channels around."""
    float_only(n)
    size, x = int(n.attr("size")), n.x()
    y, channels = n.out(order=x.order), x.shape[1]
    share = literal(float(n.attr("alpha", 1e-4)) / size, "float")
    bias, beta = (literal(n.attr(k, d), "float") for k, d in (("bias", 1.0), ("beta", 0.75)))
    rest = [a for a in range(len(x.shape)) if a != 1]
    names = [f"i{a}" for a in rest]
    lines = [
        *loops(names, [x.shape[a] for a in rest]),
        f"const float *const v = x + {indices(names, [x.strides[a] for a in rest])};",
        f"float *const z = y + {indices(names, [y.strides[a] for a in rest])};",
        f"for (int c = 0; c < {channels}; c++) {{", f"const int from = P_MAX(c - {(size - 1) // 2}, 0);",
        f"const int to = P_MIN(c + {size // 2}, {channels - 1});", "float s = 0.0f;",
        f"for (int k = from; k <= to; k++) s += v[k * {x.strides[1]}] * v[k * {x.strides[1]}];",
        f"z[c * {y.strides[1]}] = v[c * {x.strides[1]}] / powf({bias} + {share} * s, {beta});",
        *["}"] * (len(rest) + 1),
    ]  # fmt: skip
    n.emit(Kernel("lrn", ("const float *restrict x", "float *restrict y"), indented(lines)), (x, y))


@op("MeanVarianceNormalization")
def mean_variance(n: Site) -> None:
    float_only(n)
    axes, x = sorted(n.counted([int(a) for a in n.attr("axes", [0, 2, 3])])), n.x()
    keep = [a for a in range(len(x.shape)) if a not in axes]
    rows = dense(n.scope, x.permuted([*keep, *axes]))
    size, made = int(np.prod([x.shape[a] for a in axes])), n.scope.work(rows.shape, "float")
    normed(n, rows, made, rows.size // max(size, 1), size, None, None, 1e-9)
    n.alias(made.permuted([[*keep, *axes].index(a) for a in range(len(x.shape))]))
