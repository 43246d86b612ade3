"""Where the elements of a Resize come from, worked out in float32 as ONNX Runtime does it."""

from __future__ import annotations

import numpy as np

from pulsify.backends.seam import Array


def origins(how: str, size: int, made: int, scale: float) -> Array | None:
    """The place of every element in what is resized; None: such coordinates are not known here."""
    x, s = np.arange(made, dtype=np.float32), np.float32(scale)
    if how == "asymmetric":
        return x / s
    if how == "half_pixel" or (how == "pytorch_half_pixel" and made > 1):
        return (x + np.float32(0.5)) / s - np.float32(0.5)
    if how == "pytorch_half_pixel":
        return np.zeros(made, np.float32)
    if how == "align_corners":
        return x * np.float32(size - 1) / np.float32(made - 1) if made > 1 else np.zeros(made, np.float32)
    return None


def rounded(how: str, at: Array) -> Array:
    """To whole places, by the operator's `nearest_mode`."""
    if how == "round_prefer_floor":
        return np.ceil(at - np.float32(0.5))
    if how == "round_prefer_ceil":
        return np.floor(at + np.float32(0.5))
    return np.floor(at) if how == "floor" else np.ceil(at)
