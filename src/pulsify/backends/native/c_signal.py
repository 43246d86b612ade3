"""Fourier transforms, as products with the waves they look for: outputs innermost, the window in the weights."""

from __future__ import annotations

import numpy as np

from pulsify.backends.native.c_products import float_only
from pulsify.backends.native.scope import Site, Uncovered
from pulsify.backends.native.table import op
from pulsify.backends.native.tiles import Axis, product
from pulsify.backends.seam import Array


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
    weights = waves(size, y.shape[2], parts)
    if window is not None:
        padded = np.zeros(size)
        left = (size - window.size) // 2
        padded[left : left + window.size] = window
        weights = weights * np.repeat(padded, parts)[:, None]
    steps = x.strides if len(x.shape) == 3 else (*x.strides, 1)
    m = [Axis(y.shape[0], x.strides[0], 0, y.strides[0]), Axis(y.shape[1], hop * x.strides[1], 0, y.strides[1])]
    k = [Axis(size, steps[1]), Axis(parts, steps[2])]
    product(n.scope, x, weights.astype(np.float32)[None], None, y, m, k, 1, hint="stft")


@op("DFT")
def dft(n: Site) -> None:
    float_only(n)
    x = n.x()
    rank = len(x.shape)
    late = n.ints(2, "axis")[0] if n.has(2) else -2
    axis = (int(n.attr("axis", 1)) if n.opset < 20 else late) % rank
    size = n.ints(1, "length")[0] if n.has(1) else x.shape[axis]
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    if inverse and onesided:
        raise Uncovered("backwards from one side")
    out = n.gives()
    order = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    y = n.out(order=order)
    weights = waves(size, out[axis], x.shape[-1], inverse)[: min(size, x.shape[axis]) * x.shape[-1]]
    m = [Axis(x.shape[a], x.strides[a], 0, y.strides[a]) for a in order[:-2]]
    k = [Axis(min(size, x.shape[axis]), x.strides[axis]), Axis(x.shape[-1], x.strides[-1])]
    if y.strides[-1] != 1 or (y.strides[axis] != 2 and out[axis] > 1):
        raise Uncovered("its result lies apart")
    product(n.scope, x, weights.astype(np.float32)[None], None, y, m, k, 1, hint="dft")
