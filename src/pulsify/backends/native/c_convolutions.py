"""Convolutions: products of windows with packed weights, outputs innermost; channels are innermost in the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.c_shapes import padded
from pulsify.backends.native.fuse import Chain, dense, emit_loop, indented
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.tiles import LANES, Axis, product, tidied
from pulsify.backends.native.views import View, indices, loops
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered


def channels_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def amounts(n: Site, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, and the pads in front and behind."""
    axes = len(kernel)
    strides = [int(s) for s in n.attr("strides", [1] * axes)]
    gaps = [int(d) for d in n.attr("dilations", [1] * axes)]
    pads = [int(p) for p in n.attr("pads", [0] * 2 * axes)]
    mode = n.text("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        pads = [0] * 2 * axes
        for i in range(axes):
            reach = (kernel[i] - 1) * gaps[i] + 1
            more = max((-(-sizes[i] // strides[i]) - 1) * strides[i] + reach - sizes[i], 0)
            pads[i] = more // 2 if mode == "SAME_UPPER" else -(-more // 2)
            pads[i + axes] = more - pads[i]
    elif mode == "VALID":
        pads = [0] * 2 * axes
    return strides, gaps, pads[:axes], pads[axes:]


def windowed(n: Site, view: View, low: Sequence[int], high: Sequence[int], value: str = "0.0f") -> View:
    """With what stands around it, [B, C, ...]."""
    if not any(low) and not any(high):
        return view
    shape = [*view.shape[:2], *(d + a + b for d, a, b in zip(view.shape[2:], low, high, strict=True))]
    out = n.scope.work(shape, view.ctype, view.order)
    padded(n.scope, view, out, [0, 0, *low], [0, 0, *high], value)
    return out


@op("Conv")
def conv(n: Site) -> None:
    float_only(n)
    weights = n.known(1, "weights").astype(np.float32)
    bias = n.known(2, "bias").astype(np.float32) if n.has(2) else None
    groups, kernel = int(n.attr("group", 1)), weights.shape[2:]
    strides, gaps, low, high = amounts(n, n.sizes()[2:], kernel)
    x = n.x()
    outputs, each = weights.shape[:2]
    if each == 1 and groups == outputs > 1:
        depthwise(n, windowed(n, x, low, high), weights, bias, strides, gaps)
        return
    x = windowed(n, x, low, high)
    y = n.out(order=channels_last(len(x.shape)))
    spatial = range(2, len(x.shape))
    m = [Axis(y.shape[0], x.strides[0], 0, y.strides[0])]
    m += [Axis(y.shape[a], x.strides[a] * strides[a - 2], 0, y.strides[a]) for a in spatial]
    k = [Axis(kernel[a - 2], x.strides[a] * gaps[a - 2]) for a in spatial] + [Axis(each, x.strides[1])]
    per = outputs // groups
    packs = weights.reshape(groups, per, each, *kernel)
    packs = np.moveaxis(packs, (1, 2), (-1, -2)).reshape(groups, -1, per)  # [G, kernel, each, per]
    split = Axis(groups, each * x.strides[1], 0, per * y.strides[1]) if groups > 1 else None
    product(n.scope, x, packs, bias, y, m, k, y.strides[1], split, hint="conv")


def depthwise(
    n: Site, x: View, weights: Array, bias: Array | None, strides: Sequence[int], gaps: Sequence[int]
) -> None:
    """Channel by channel: channels are innermost."""
    channels, kernel = weights.shape[0], weights.shape[2:]
    if x.strides[1] != 1 and channels >= LANES:
        x = dense(n.scope, x, channels_last(len(x.shape)))
    y = n.out(order=channels_last(len(x.shape)))
    taps = np.moveaxis(weights[:, 0], 0, -1).reshape(-1, channels)
    row = np.zeros((1, channels), np.float32) if bias is None else bias.reshape(1, -1)
    pack = n.scope.weights.put(np.concatenate([row, taps]).astype(np.float32), "float")
    spatial = range(2, len(x.shape))
    m = [Axis(y.shape[0], x.strides[0], 0, y.strides[0])]
    m = tidied(m + [Axis(y.shape[a], x.strides[a] * strides[a - 2], 0, y.strides[a]) for a in spatial])
    k = tidied(
        [Axis(kernel[a - 2], x.strides[a] * gaps[a - 2], math.prod(kernel[a - 1 :]) * channels) for a in spatial]
    )
    rows, sums = [f"m{i}" for i in range(len(m))], [f"k{i}" for i in range(len(k))]
    lines = [*loops(rows, [a.size for a in m])]
    lines.append(f"const float *const am = a + {indices(rows, [a.a for a in m])};")
    lines.append(f"float *const ym = y + {indices(rows, [a.y for a in m])};")
    at, tap = indices(sums, [a.a for a in k]), indices(sums, [a.b for a in k])
    if x.strides[1] == 1 == y.strides[1] and channels >= LANES:
        last = channels - LANES
        lines.append(f"for (int b = 0; b < {-(-channels // LANES)}; b++) {{")
        lines.append(f"const int c = b * {LANES} < {last} ? b * {LANES} : {last};")
        lines.append("p_vec s = p_load(w + c);")
        lines += loops(sums, [a.size for a in k])
        lines.append(f"p_madd(&s, p_load(am + c + {at}), p_load(w + {channels} + c + {tap}));")
        lines += ["}"] * len(k) + ["p_store(ym + c, s);", "}"]
    else:
        lines.append(f"for (int c = 0; c < {channels}; c++) {{")
        lines.append("float s = w[c];")
        lines += loops(sums, [a.size for a in k])
        lines.append(f"s += am[c * {x.strides[1]} + {at}] * w[{channels} + c + {tap}];")
        lines += ["}"] * len(k) + [f"ym[c * {y.strides[1]}] = s;", "}"]
    lines += ["}"] * len(m)
    params = ("const float *restrict a", "const float *restrict w", "float *restrict y")
    n.emit(Kernel("depthwise", params, indented(lines)), (x, pack, y))


@op("ConvTranspose")
def conv_transpose(n: Site) -> None:
    """Every frame times all taps, as one product; then each is added where it belongs."""
    float_only(n)
    weights = n.known(1, "weights").astype(np.float32)
    groups, kernel = int(n.attr("group", 1)), weights.shape[2:]
    x, out = n.x(), n.gives()
    axes = len(kernel)
    strides, gaps, low, _ = amounts(n, x.shape[2:], kernel)
    if n.text("auto_pad", "NOTSET").startswith("SAME") or n.attr("output_shape") is not None:
        raise Uncovered("with a size of its own")
    per, each = weights.shape[1], weights.shape[0] // groups
    taps = math.prod(kernel)
    packs = np.moveaxis(weights.reshape(groups, each, per, taps), 2, 3).reshape(groups, each, taps * per)
    spatial = x.shape[2:]
    made = n.scope.work((x.shape[0], *spatial, groups, taps, per), "float")
    m = [Axis(x.shape[0], x.strides[0], 0, made.strides[0])]
    m += [Axis(d, x.strides[2 + i], 0, made.strides[1 + i]) for i, d in enumerate(spatial)]
    split = Axis(groups, each * x.strides[1], 0, taps * per) if groups > 1 else None
    product(n.scope, x, packs, None, made, m, [Axis(each, x.strides[1])], 1, split, hint="conv_transpose")
    y = n.out(order=channels_last(len(x.shape)))
    if n.has(2):
        bias = n.scope.weights.put(n.known(2, "bias").astype(np.float32).reshape(-1, *[1] * axes), "float")
        emit_loop(n.scope, Chain(("const float v0 = x0[@0@];",), "v0", (bias.spread(y.shape),)), y, "start")
    else:
        emit_loop(n.scope, Chain((), "0.0f", ()), y, "start")
    _spread(n, made, y, spatial, kernel, strides, gaps, low, (groups, per), out)


def _spread(
    n: Site, made: View, y: View, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    gaps: Sequence[int], low: Sequence[int], channels: tuple[int, int], out: Sequence[int],
) -> None:  # fmt: skip
    groups, per = channels
    axes = len(kernel)
    rows, taps = [f"t{i}" for i in range(axes)], [f"k{i}" for i in range(axes)]
    lines = [f"for (int b = 0; b < {y.shape[0]}; b++) {{", *loops(rows, spatial), *loops(taps, kernel)]
    tests = []
    for i in range(axes):
        lines.append(f"const int o{i} = t{i} * {strides[i]} + k{i} * {gaps[i]} - {low[i]};")
        tests.append(f"o{i} < 0 || o{i} >= {out[2 + i]}")
    lines.append(f"if ({' || '.join(tests)}) continue;")
    places = indices([f"o{i}" for i in range(axes)], y.strides[2:])
    step = math.prod(kernel)
    tap = indices(taps, [math.prod(kernel[i + 1 :]) for i in range(axes)])
    source = f"b * {made.strides[0]} + {indices(rows, made.strides[1 : 1 + axes])}"
    lines.append(f"for (int g = 0; g < {groups}; g++) {{")
    lines.append(f"const float *const p = a + {source} + (g * {step} + {tap}) * {per};")
    lines.append(f"float *const q = y + b * {y.strides[0]} + {places} + g * {per * y.strides[1]};")
    lines.append(f"for (int c = 0; c < {per}; c++) q[c * {y.strides[1]}] += p[c];")
    lines += ["}"] * (2 * axes + 2)
    whole = Kernel("overlap", ("const float *restrict a", "float *restrict y"), indented(lines))
    n.emit(whole, (made, y))
