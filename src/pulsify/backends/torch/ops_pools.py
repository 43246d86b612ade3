"""Pools, and sizes changed by interpolation."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from pulsify.backends.resizing import origins, rounded
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered
from pulsify.backends.torch.ops_products import padded, pads_of, spread
from pulsify.backends.torch.ops_reductions import wide
from pulsify.backends.torch.site import Site
from pulsify.backends.torch.table import Written, op


def _windows(n: Site) -> tuple[list[int], list[int], list[int], list[int]]:
    """Kernel, strides, dilations and pads, with as much behind as the last window reaches."""
    kernel = [int(k) for k in n.attr("kernel_shape")]
    axes = len(kernel)
    if not 1 <= axes <= 3 or not n.floating():
        raise Uncovered(f"over {axes} axes of {n.kind()}")
    strides, dilations = spread(n, "strides", axes), spread(n, "dilations", axes)
    pads = pads_of(n, kernel, strides, dilations)
    if n.attr("ceil_mode", 0):
        for i, (size, made) in enumerate(zip(n.sizes()[2:], n.gives()[2:], strict=True)):
            reach = (made - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
            pads[axes + i] = max(pads[axes + i], reach - size - pads[i])
    return kernel, strides, dilations, pads


@op("MaxPool")
def max_pool(n: Site) -> Written:
    n.only(0)
    kernel, strides, dilations, pads = _windows(n)
    more = f", dilation={dilations}" if set(dilations) != {1} else ""
    x = padded(n, pads, "float('-inf')")
    if len(kernel) == 1 and not more and n.kind() == "float32":  # the runtime skips NaN there
        x = f"op.without_nan({x})"
    return f"F.max_pool{len(kernel)}d({x}, {kernel}, {strides}{more})"


@op("AveragePool")
def average_pool(n: Site) -> Written:
    kernel, strides, dilations, pads = _windows(n)
    if set(dilations) != {1}:
        raise Uncovered("with gaps between the frames")
    text = f"F.avg_pool{len(kernel)}d({padded(n, pads)}, {kernel}, {strides})"
    if not any(pads):
        return text
    counted = _counted(n, kernel, strides, pads)
    whole = math.prod(kernel)
    if (counted == whole).all():
        return text
    x, back = wide(n, padded(n, pads))  # what is rounded is the share's product, not the pool
    kind = "float32" if back else n.kind()
    text = f"F.avg_pool{len(kernel)}d({x}, {kernel}, {strides})"
    return f"({text} * {n.put('share', (whole / counted).astype(np.float32), kind)}){back}"


def _counted(n: Site, kernel: list[int], strides: list[int], pads: list[int]) -> Array:
    """How many elements of each window count."""
    axes, counts = len(kernel), []
    asked = pads_of(n, kernel, strides, [1] * axes)[axes:]  # a last window's own reach does not count
    for i, (size, made) in enumerate(zip(n.sizes()[2:], n.gives()[2:], strict=True)):
        low, high = 0, size
        if n.attr("count_include_pad", 0):
            low, high = -pads[i], size + asked[i]
        starts = np.arange(made) * strides[i] - pads[i]
        counts.append(np.minimum(starts + kernel[i], high) - np.maximum(starts, low))
    return reduce(np.multiply.outer, counts)


@op("LpPool")
def power_pool(n: Site) -> Written:
    kernel, strides, dilations, pads = _windows(n)
    if set(dilations) != {1}:
        raise Uncovered("with gaps between the frames")
    p, whole, (x, back) = float(n.attr("p", 2)), math.prod(kernel), wide(n, padded(n, pads))
    text = f"(F.avg_pool{len(kernel)}d({x}.abs() ** {p}, {kernel}, {strides}) * {whole}) ** {1 / p!r}"
    return f"({text}){back}" if back else text


@op("GlobalAveragePool", "GlobalMaxPool")
def whole_pool(n: Site) -> Written:
    name = "torch.mean" if n.op == "GlobalAveragePool" else "torch.amax"
    return f"{name}({n.x()}, {tuple(range(2, n.rank()))}, True)"


# ---- Resize


@op("Resize", "Upsample")
def resize(n: Site) -> Written:
    """Where every element comes from is worked out here, as the runtime does it, in float32."""
    mode, text = n.attr("mode", "nearest"), n.x()
    if mode not in ("nearest", "linear") or n.attr("antialias", 0) or not n.floating():
        raise Uncovered(f"mode {mode} of {n.kind()}")
    if n.sizes() == n.gives():
        return text  # the runtime copies then, whatever the scales are
    for axis, (size, made, scale) in enumerate(zip(n.sizes(), n.gives(), _scales(n), strict=True)):
        if size == made and scale == 1:
            continue
        at = _origins(n, size, made, scale)
        if mode == "nearest":
            places = np.clip(_rounded(n, at), 0, size - 1).astype(np.int64)
            text += f".index_select({axis}, {n.put(f'places_{axis}', places)})"
            continue
        at = np.clip(at, 0, size - 1)
        first = np.minimum(np.floor(at).astype(np.int64), size - 1)
        second, share = np.minimum(first + 1, size - 1), (at - first).astype(np.float32)
        dims = [1] * axis + [-1] + [1] * (n.rank() - axis - 1)
        kept = (
            n.put(f"first_{axis}", first),
            n.put(f"second_{axis}", second),
            n.put(f"share_{axis}", share.reshape(dims), n.kind()),
        )
        text = f"op.between({text}, {axis}, {', '.join(kept)})"
    return text


def _scales(n: Site) -> list[float]:
    if n.op == "Upsample" and n.opset < 9:
        return [float(s) for s in n.attr("scales")]
    at = 1 if n.op == "Upsample" or n.opset < 11 else 2
    if (n.opset >= 11 and n.attr("axes") is not None) or n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Uncovered("axes or a policy of their own")
    if n.has(at) and n.known(at, "scales").size:
        return [float(s) for s in n.known(at, "scales")]
    return [made / size for size, made in zip(n.sizes(), n.gives(), strict=True)]


def _origins(n: Site, size: int, made: int, scale: float) -> Array:
    how = n.attr("coordinate_transformation_mode", "half_pixel" if n.opset >= 11 else "asymmetric")
    at = origins(how, size, made, scale)
    if at is None:
        raise Uncovered(f"coordinates {how}")
    return at


def _rounded(n: Site, at: Array) -> Array:
    how = n.attr("nearest_mode", "round_prefer_floor" if n.opset >= 11 else "floor")
    return rounded(how, at)
