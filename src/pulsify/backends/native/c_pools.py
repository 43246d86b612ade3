"""Pools and resizes: windows that are looked at, not multiplied."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pulsify.backends.native.c_convolutions import amounts, channels_last
from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.c_shapes import taken
from pulsify.backends.native.fuse import Chain, dense, emit_loop, indented, literal
from pulsify.backends.native.scope import Kernel, Scope, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.views import View, indices, loops
from pulsify.backends.resizing import origins, rounded
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered

STARTS = {"MaxPool": "-INFINITY", "AveragePool": "0.0f", "LpPool": "0.0f"}


@op("MaxPool", "AveragePool", "LpPool")
def pool(n: Site) -> None:
    """A window of places, those outside left out."""
    n.only(0)
    float_only(n)
    kernel = [int(k) for k in n.attr("kernel_shape")]
    strides, gaps, low, high = amounts(n, n.sizes()[2:], kernel)
    x = n.x()
    y = n.out(order=channels_last(len(x.shape)))
    p = int(n.attr("p", 2))
    step = {"MaxPool": "s = p_max(v, s);", "AveragePool": "s += v;", "LpPool": f"s += {_power('v', p)};"}[n.op]
    inside = int(n.attr("count_include_pad", 0))
    end = {"MaxPool": "s", "AveragePool": "s / (float)count", "LpPool": _root("s", p)}[n.op]
    lines = _windows(n, x, y, kernel, strides, gaps, low, [step], high if inside else [0] * len(kernel), end)
    params = ("const float *restrict a", "float *restrict y")
    n.emit(Kernel(n.op.lower(), params, indented(lines)), (x, y))


def _windows(
    n: Site, x: View, y: View, kernel: Sequence[int], strides: Sequence[int], gaps: Sequence[int], low: Sequence[int],
    step: Sequence[str], beyond: Sequence[int], end: str,
) -> list[str]:  # fmt: skip
    axes = len(kernel)
    rows, sums, at = [f"o{i}" for i in range(axes)], [f"k{i}" for i in range(axes)], [f"p{i}" for i in range(axes)]
    counted = n.op == "AveragePool"
    whole = int(n.attr("count_include_pad", 0))
    lines = [*loops(["b"], [y.shape[0]]), *loops(rows, y.shape[2:]), *loops(["c"], [y.shape[1]])]
    lines += [f"float s = {STARTS[n.op]};", *(["int count = 0;"] if counted else []), *loops(sums, kernel)]
    for i in range(axes):
        lines.append(f"const int p{i} = o{i} * {strides[i]} + k{i} * {gaps[i]} - {low[i]};")
    outside = " || ".join(f"p{i} < 0 || p{i} >= {x.shape[2 + i]}" for i in range(axes))
    if counted and whole:
        lines.append(f"count += {' && '.join(f'p{i} < {x.shape[2 + i] + beyond[i]}' for i in range(axes))};")
    lines.append(f"if ({outside}) continue;")
    lines += ["count++;"] if counted and not whole else []
    place = f"b * {x.strides[0]} + c * {x.strides[1]} + {indices(at, x.strides[2:])}"
    lines += [f"const float v = a[{place}];", *step, *["}"] * axes]
    target = f"b * {y.strides[0]} + c * {y.strides[1]} + {indices(rows, y.strides[2:])}"
    return [*lines, f"y[{target}] = {end};", *["}"] * (axes + 2)]


def _power(x: str, p: int) -> str:
    return {1: f"fabsf({x})", 2: f"{x} * {x}"}.get(p, f"powf(fabsf({x}), {literal(p, 'float')})")


def _root(x: str, p: int) -> str:
    return {1: x, 2: f"sqrtf({x})"}.get(p, f"powf({x}, {literal(1 / p, 'float')})")


@op("GlobalAveragePool", "GlobalMaxPool")
def whole_pool(n: Site) -> None:
    float_only(n)
    x, y = dense(n.scope, n.x()), n.flat()
    size = math.prod(x.shape[2:])
    mean = n.op == "GlobalAveragePool"
    step = f"for (int k = 0; k < {size}; k++) s = {'s + v[k]' if mean else 'p_max(v[k], s)'};"
    end = f"s / {literal(size, 'float')}" if mean else "s"
    lines = [
        f"for (int i = 0; i < {y.size}; i++) {{", f"const float *const v = x + i * {size};",
        f"float s = {'0.0f' if mean else '-INFINITY'};", step, f"y[i] = {end};", "}",
    ]  # fmt: skip
    n.emit(Kernel("global_pool", ("const float *restrict x", "float *restrict y"), indented(lines)), (x, y))


@op("Resize", "Upsample")
def resize(n: Site) -> None:
    """Where every element comes from is worked out here, as the runtime does it."""
    mode, view = n.text("mode", "nearest"), n.x()
    if mode not in ("nearest", "linear") or n.attr("antialias", 0):
        raise Uncovered(f"mode {mode}")
    how = n.text("coordinate_transformation_mode", "half_pixel" if n.opset >= 11 else "asymmetric")
    rounding = n.text("nearest_mode", "round_prefer_floor" if n.opset >= 11 else "floor")
    for axis, (size, made, scale) in enumerate(zip(n.sizes(), n.gives(), _scales(n), strict=True)):
        if size == made and scale == 1.0:
            continue
        at = origins(how, size, made, scale)
        if at is None:
            raise Uncovered(f"coordinates {how}")
        if mode == "nearest":
            view = taken(n.scope, view, axis, np.clip(rounded(rounding, at), 0, size - 1).astype(np.int64))
        else:
            at = np.clip(at, 0, size - 1)
            first = np.minimum(np.floor(at).astype(np.int64), size - 1)
            second, share = np.minimum(first + 1, size - 1), (at - first).astype(np.float32)
            view = _between(n.scope, view, axis, first, second, share)
    n.alias(view)


def _scales(n: Site) -> list[float]:
    if n.op == "Upsample" and n.opset < 9:
        return [float(s) for s in n.attr("scales")]
    at = 1 if n.op == "Upsample" or n.opset < 11 else 2
    if (n.opset >= 11 and n.attr("axes") is not None) or n.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Uncovered("axes or a policy of their own")
    if n.has(at) and n.known(at, "scales").size:
        return [float(s) for s in n.known(at, "scales")]
    return [made / size for size, made in zip(n.sizes(), n.gives(), strict=True)]


def _between(scope: Scope, view: View, axis: int, low: Array, high: Array, part: Array) -> View:
    a, b = taken(scope, view, axis, low), taken(scope, view, axis, high)
    shape = tuple(-1 if i == axis else 1 for i in range(len(view.shape)))
    near, far = (scope.weights.put(w.astype(np.float32).reshape(shape), "float") for w in (1 - part, part))
    out = scope.work(a.shape, "float", view.order)
    lines = tuple(f"const float v{i} = x{i}[@{i}@];" for i in range(4))
    leaves = (a, b, near.spread(a.shape), far.spread(a.shape))
    emit_loop(scope, Chain(lines, "v2 * v0 + v3 * v1", leaves), out, "resize")
    return out
