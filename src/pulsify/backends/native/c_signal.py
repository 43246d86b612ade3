"""Fourier transforms: real frames of a power of two the fast way, others as products with the waves they look for."""

from __future__ import annotations

import numpy as np

from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.fuse import indented
from pulsify.backends.native.scope import Kernel, Site
from pulsify.backends.native.table import op
from pulsify.backends.native.tiles import Axis, product
from pulsify.backends.native.views import View
from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered

SMALLEST = 64  # frames of a power of two from here on are transformed by the fast way


def waves(size: int, bins: int, inputs: int, inverse: bool = False) -> Array:
    """[size * inputs, bins * 2]: real and imaginary part side by side, on both sides (a real input has one)."""
    turns = np.outer(np.arange(size), np.arange(bins)) % size
    angle = 2 * np.pi * turns / size * (1 if inverse else -1)
    real, imaginary = np.cos(angle), np.sin(angle)
    if inverse:
        real, imaginary = real / size, imaginary / size
    rows = np.stack([real, imaginary], -1)[:, None]  # of a real part
    if inputs == 2:
        rows = np.concatenate([rows, np.stack([-imaginary, real], -1)[:, None]], 1)
    return rows.reshape(size * inputs, bins * 2)


def halves(size: int) -> Array:
    """[bins * 2, size]: back to real numbers from one side; the other one is its mirror image."""
    turns = np.outer(np.arange(size // 2 + 1), np.arange(size)) % size
    twice = np.where((np.arange(size // 2 + 1) * 2) % size, 2, 1)[:, None] / size
    angle = 2 * np.pi * turns / size
    return np.stack([np.cos(angle) * twice, -np.sin(angle) * twice], 1).reshape(-1, size)


@op("STFT")
def stft(n: Site) -> None:
    float_only(n)
    (hop,) = n.ints(1, "step")
    window = n.known(2, "window").astype(np.float64) if n.has(2) else None
    size = n.ints(3, "frame length")[0] if n.has(3) else 0 if window is None else window.size
    if not size:
        raise Uncovered("neither a window nor a length")
    x, y = n.x(), n.flat()
    parts = x.shape[2] if len(x.shape) == 3 else 1
    if parts == 1 and size >= SMALLEST and size & (size - 1) == 0:
        _fast(n, x, y, hop, size, window)
        return
    weights = waves(size, y.shape[2], parts)
    if window is not None:
        weights = weights * np.repeat(_centred(window, size), parts)[:, None]
    steps = x.strides if len(x.shape) == 3 else (*x.strides, 1)
    m = [Axis(y.shape[0], x.strides[0], 0, y.strides[0]), Axis(y.shape[1], hop * x.strides[1], 0, y.strides[1])]
    k = [Axis(size, steps[1]), Axis(parts, steps[2])]
    product(n.scope, x, weights.astype(np.float32)[None], None, y, m, k, 1, hint="stft")


def _centred(window: Array | None, size: int) -> Array:
    if window is None:
        return np.ones(size)
    left = (size - window.size) // 2
    return np.pad(window, (left, size - window.size - left))


def _fast(n: Site, x: View, y: View, hop: int, size: int, window: Array | None) -> None:
    """Real frames as half as many complex numbers, stage by stage without reordering; then even and odd apart."""
    half, bins = size // 2, y.shape[2]
    turns = np.exp(-2j * np.pi * np.arange(half) / half)[: half // 2]
    ends = np.exp(-2j * np.pi * np.arange(half + 1) / size)
    table = np.concatenate([_centred(window, size), turns.real, turns.imag, ends.real, ends.imag])
    known = n.scope.weights.put(table.astype(np.float32), "float")
    room = n.scope.work((4 * half,), "float")
    step = x.strides[1]
    lines = [
        f"const float *const wr = w + {size}, *const wi = wr + {half // 2};",
        f"const float *const er = wi + {half // 2}, *const ei = er + {half + 1};",
        f"for (int b = 0; b < {y.shape[0]}; b++) {{", f"for (int f = 0; f < {y.shape[1]}; f++) {{",
        f"const float *const v = x + b * {x.strides[0]} + f * {hop * step};",
        f"float *ar = t, *ai = t + {half}, *br = t + {2 * half}, *bi = t + {3 * half};",
        f"for (int i = 0; i < {half}; i++) {{", f"ar[i] = v[{2 * step} * i] * w[2 * i];",
        f"ai[i] = v[{2 * step} * i + {step}] * w[2 * i + 1];", "}",
        f"for (int l = {half // 2}, s = 1; l >= 1; l /= 2, s *= 2) {{", "for (int p = 0; p < l; p++) {",
        "const float c = wr[p * s], d = wi[p * s];",
        "const float *const ur = ar + s * p, *const ui = ai + s * p, *const zr = ur + s * l, *const zi = ui + s * l;",
        "float *const or = br + 2 * s * p, *const oi = bi + 2 * s * p;",
        "for (int q = 0; q < s; q++) {", "const float dr = ur[q] - zr[q], di = ui[q] - zi[q];",
        "or[q] = ur[q] + zr[q];", "oi[q] = ui[q] + zi[q];",
        "or[q + s] = dr * c - di * d;", "oi[q + s] = dr * d + di * c;",
        "}", "}", "float *const hr = ar, *const hi = ai;", "ar = br;", "ai = bi;", "br = hr;", "bi = hi;", "}",
        f"float *const o = y + (b * {y.shape[1]} + f) * {2 * bins};",
        f"for (int k = 0; k <= {half}; k++) {{", f"const int j = k % {half}, m = ({half} - k) % {half};",
        "const float sr = ar[j] + ar[m], si = ai[j] - ai[m], dr = ar[j] - ar[m], di = ai[j] + ai[m];",
        "o[2 * k] = 0.5f * (sr + er[k] * di + ei[k] * dr);",
        "o[2 * k + 1] = 0.5f * (si + ei[k] * di - er[k] * dr);", "}",
        *([f"for (int k = {half + 1}; k < {size}; k++) {{", f"o[2 * k] = o[2 * ({size} - k)];",
           f"o[2 * k + 1] = -o[2 * ({size} - k) + 1];", "}"] if bins > half + 1 else []),
        "}", "}",
    ]  # fmt: skip
    params = ("const float *restrict x", "const float *restrict w", "float *restrict t", "float *restrict y")
    n.emit(Kernel("real_fft", params, indented(lines)), (x, known, room, y), 2)


@op("DFT")
def dft(n: Site) -> None:
    float_only(n)
    x = n.x()
    rank = len(x.shape)
    late = n.ints(2, "axis")[0] if n.has(2) else -2
    axis = (int(n.attr("axis", 1)) if n.opset < 20 else late) % rank
    inverse, out = bool(n.attr("inverse", 0)), n.gives()
    real = inverse and bool(n.attr("onesided", 0))
    size = out[axis] if real else n.ints(1, "length")[0] if n.has(1) else x.shape[axis]
    if real and n.has(1) and size < 2 * (x.shape[axis] - 1):
        raise Uncovered("fewer numbers than its bins make")
    order = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    y = n.out(order=order)
    most = size // 2 + 1 if real else size
    weights = halves(size) if real else waves(size, out[axis], x.shape[-1], inverse)
    weights = weights[: min(most, x.shape[axis]) * x.shape[-1]]
    m = [Axis(x.shape[a], x.strides[a], 0, y.strides[a]) for a in order[:-2]]
    k = [Axis(min(most, x.shape[axis]), x.strides[axis]), Axis(x.shape[-1], x.strides[-1])]
    if (out[-1] > 1 and y.strides[-1] != 1) or (y.strides[axis] != out[-1] and out[axis] > 1):
        raise Uncovered("its result lies apart")
    product(n.scope, x, weights.astype(np.float32)[None], None, y, m, k, 1, hint="dft")
