"""Pools and resizes: windows that are looked at, not multiplied."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pulsify.backends.native.c_convolutions import amounts, channels_last
from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.c_shapes import taken
from pulsify.backends.native.fuse import dense, indented, literal
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
    skips = n.op == "MaxPool" and gaps == [1]  # the runtime skips NaN there, and nothing is lower than -FLT_MAX
    step = {
        "MaxPool": "s = v > s ? v : s;" if skips else "s = p_max(v, s);",
        "AveragePool": "s += v;",
        "LpPool": f"s += {_power('v', p)};",
    }[n.op]
    inside = int(n.attr("count_include_pad", 0))
    end = {"MaxPool": "s", "AveragePool": "s / (float)count", "LpPool": _root("s", p)}[n.op]
    start = literal(-float(np.finfo(np.float32).max), "float") if skips else STARTS[n.op]
    beyond = high if inside else [0] * len(kernel)
    lines = _windows(n, x, y, kernel, strides, gaps, low, start, step, beyond, end)
    params = ("const float *restrict a", "float *restrict y")
    n.emit(Kernel(n.op.lower(), params, indented(lines)), (x, y))


def _windows(
    n: Site, x: View, y: View, kernel: Sequence[int], strides: Sequence[int], gaps: Sequence[int], low: Sequence[int],
    start: str, step: str, beyond: Sequence[int], end: str,
) -> list[str]:  # fmt: skip
    axes = len(kernel)
    rows, sums, at = [f"o{i}" for i in range(axes)], [f"k{i}" for i in range(axes)], [f"p{i}" for i in range(axes)]
    counted = n.op == "AveragePool"
    whole = int(n.attr("count_include_pad", 0))
    lines = [*loops(["b"], [y.shape[0]]), *loops(rows, y.shape[2:]), *loops(["c"], [y.shape[1]])]
    lines += [f"float s = {start};", *(["int count = 0;"] if counted else []), *loops(sums, kernel)]
    for i in range(axes):
        lines.append(f"const int p{i} = o{i} * {strides[i]} + k{i} * {gaps[i]} - {low[i]};")
    outside = " || ".join(f"p{i} < 0 || p{i} >= {x.shape[2 + i]}" for i in range(axes))
    if counted and whole:
        lines.append(f"count += {' && '.join(f'p{i} < {x.shape[2 + i] + beyond[i]}' for i in range(axes))};")
    lines.append(f"if ({outside}) continue;")
    lines += ["count++;"] if counted and not whole else []
    place = f"b * {x.strides[0]} + c * {x.strides[1]} + {indices(at, x.strides[2:])}"
    lines += [f"const float v = a[{place}];", step, *["}"] * axes]
    target = f"b * {y.strides[0]} + c * {y.strides[1]} + {indices(rows, y.strides[2:])}"
    return [*lines, f"y[{target}] = {end};", *["}"] * (axes + 2)]


def _power(x: str, p: int) -> str:
    return {1: f"fabsf({x})", 2: f"{x} * {x}"}.get(p, f"powf(fabsf({x}), {literal(p, 'float')})")


def _root(x: str, p: int) -> str:
    return {1: x, 2: f"sqrtf({x})"}.get(p, f"powf({x}, {literal(1 / p, 'float')})")


@op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def whole_pool(n: Site) -> None:
    float_only(n)
    x, y = dense(n.scope, n.x()), n.flat()
    size, p = math.prod(x.shape[2:]), int(n.attr("p", 2))
    start, step, end = {
        "GlobalAveragePool": ("0.0f", "s + v[k]", f"s / {literal(size, 'float')}"),
        "GlobalMaxPool": ("-INFINITY", "p_max(v[k], s)", "s"),
        "GlobalLpPool": ("0.0f", f"s + {_power('v[k]', p)}", _root("s", p)),
    }[n.op]
    lines = [
        f"for (int i = 0; i < {y.size}; i++) {{", f"const float *const v = x + i * {size};",
        f"float s = {start};", f"for (int k = 0; k < {size}; k++) s = {step};", f"y[i] = {end};", "}",
    ]  # fmt: skip
    n.emit(Kernel("global_pool", ("const float *restrict x", "float *restrict y"), indented(lines)), (x, y))


@op("Resize", "Upsample")
def resize(n: Site) -> None:
    """Where every element comes from is worked out here, as the runtime does it."""
    mode, view = n.text("mode", "nearest"), n.x()
    if mode not in ("nearest", "linear", "cubic") or n.attr("antialias", 0):
        raise Uncovered(f"mode {mode}")
    how = n.text("coordinate_transformation_mode", "half_pixel" if n.opset >= 11 else "asymmetric")
    rounding = n.text("nearest_mode", "round_prefer_floor" if n.opset >= 11 else "floor")
    if mode != "nearest":
        float_only(n)
    still = n.sizes() == n.gives()  # the runtime copies then, whatever the scales are
    for axis, (size, made, scale) in enumerate(zip(n.sizes(), n.gives(), _scales(n), strict=True)):
        if still or (size == made and scale == 1.0):
            continue
        at = origins(how, size, made, scale)
        if at is None:
            raise Uncovered(f"coordinates {how}")
        if mode == "nearest":
            view = taken(n.scope, view, axis, np.clip(rounded(rounding, at), 0, size - 1).astype(np.int64))
        elif mode == "linear":
            at = np.clip(at, 0, size - 1)
            first, share = np.floor(at), at - np.floor(at)
            view = _between(n.scope, view, axis, first, np.stack([1 - share, share], 1), 0)
        else:
            shares = cubic(at - np.floor(at), float(n.attr("cubic_coeff_a", -0.75)))
            if n.attr("exclude_outside", 0):
                places = np.floor(at)[:, None] + np.arange(-1, 3)
                shares = np.where((places < 0) | (places >= size), 0, shares)
                shares = shares / shares.sum(1, keepdims=True)
            view = _between(n.scope, view, axis, np.floor(at), shares, 1)
    n.alias(view)


def cubic(at: Array, a: float) -> Array:
    """How much of the four neighbours [K, 4] is in what lies so far behind the second of them."""
    s = at.astype(np.float64)
    ways = [s + 1, s, 1 - s, 2 - s]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (ways[0], ways[3])]
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (ways[1], ways[2])]
    return np.stack([far[0], near[0], near[1], far[1]], 1)


def _scales(n: Site) -> list[float]:
    if n.op == "Upsample" and n.opset < 9:
        return [float(s) for s in n.attr("scales")]
    at = 1 if n.op == "Upsample" or n.opset < 11 else 2
    if (n.opset >= 11 and n.attr("axes") is not None) or n.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Uncovered("axes or a policy of their own")
    if n.has(at) and n.known(at, "scales").size:
        return [float(s) for s in n.known(at, "scales")]
    return [made / size for size, made in zip(n.sizes(), n.gives(), strict=True)]


def _between(scope: Scope, view: View, axis: int, first: Array, shares: Array, before: int) -> View:
    """Sums of neighbours of an axis: the one at `first` and so many before it, then those behind, by their shares."""
    made, taps = shares.shape
    places = np.clip(first[:, None].astype(np.int64) - before + np.arange(taps), 0, view.shape[axis] - 1)
    at = scope.weights.put(places.astype(np.int32), "int32_t")
    parts = scope.weights.put(shares.astype(np.float32), "float")
    out = scope.work([made if a == axis else d for a, d in enumerate(view.shape)], "float", view.order)
    rest = [a for a in out.order if a != axis]
    names = [f"i{a}" for a in rest]
    source, target = (indices(names, [v.strides[a] for a in rest]) for v in (view, out))
    terms = [f"s[{t}] * x[at[{taps} * k + {t}] * {view.strides[axis]} + {source}]" for t in range(taps)]
    lines = [
        f"for (int k = 0; k < {made}; k++) {{", f"const float *const s = w + {taps} * k;",
        *loops(names, [out.shape[a] for a in rest]), f"y[k * {out.strides[axis]} + {target}] = {' + '.join(terms)};",
        *["}"] * (len(rest) + 1),
    ]  # fmt: skip
    params = ("const float *restrict x", "const int32_t *restrict at", "const float *restrict w", "float *restrict y")
    scope.emit(Kernel("resize", params, indented(lines)), (view, at, parts, out))
    return out
