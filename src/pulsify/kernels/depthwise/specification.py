"""What `depthwise` means, in float64: plain, slow, obviously right.

    result[b, c, t] = bias[c] + sum over k of x[b, c, t * stride + k * dilation] * weights[c, k]

Nothing is padded: there are as many results as windows fit. In memory channels are innermost, [B, frames, C].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pulsify.core.errors import InvalidArgument

Array = npt.NDArray[Any]
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def depthwise(
    x: Array, weights: Array, bias: Array | None = None, *, stride: int = 1, dilation: int = 1
) -> tuple[Array, ...]:
    """[B, C, windows]."""
    count = windows(x, weights, bias, stride, dilation)
    out = np.empty((x.shape[0], x.shape[1], count))
    for t in range(count):
        seen = x[:, :, t * stride : t * stride + (weights.shape[1] - 1) * dilation + 1 : dilation].astype(float)
        with np.errstate(invalid="ignore"):
            out[:, :, t] = (seen * weights).sum(2)
    return (out if bias is None else out + bias[:, None],)


def windows(x: Any, weights: Any, bias: Any, stride: int, dilation: int) -> int:
    """How many fit; InvalidArgument that names the size if something does not fit together. No tensor is read."""
    if len(x.shape) != 3 or len(weights.shape) != 2:
        raise InvalidArgument(
            f"x is {list(x.shape)} and weights {list(weights.shape)}: it is [B, C, frames], [C, taps]"
        )
    (_, channels, frames), (rows, taps) = x.shape, weights.shape
    if rows != channels or (bias is not None and tuple(bias.shape) != (channels,)):
        raise InvalidArgument(f"x has {channels} channels: weights are [{channels}, taps] and a bias [{channels}]")
    if stride < 1 or dilation < 1 or taps < 1:
        raise InvalidArgument(f"stride={stride}, dilation={dilation}, {taps} taps: each is 1 at least")
    count = int((frames - (taps - 1) * dilation - 1) // stride + 1)
    if min(x.shape[0], channels) == 0 or count < 1:
        raise InvalidArgument(f"x is {list(x.shape)}, and no window of {taps} taps, dilation {dilation}, fits into it")
    return count


def bound(inputs: Mapping[str, Any], dtype: str) -> float:
    """Sums are float32, results are rounded to the type."""
    x, w = (np.abs(np.nan_to_num(inputs[name], posinf=0, neginf=0)) for name in ("x", "weights"))
    most = float(x.max(initial=0) * w.sum(1).max(initial=0)) + float(np.abs(inputs.get("bias", np.zeros(1))).max())
    return most * (4 * w.shape[1] * ROUNDING["float32"] + ROUNDING[dtype])
