"""`depthwise` in torch's own operators: all windows side by side, one sum."""

from __future__ import annotations

from typing import Any

import torch

from pulsify.kernels.depthwise.specification import windows

Tensor = Any


def depthwise(x: Tensor, weights: Tensor, bias: Tensor = None, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """[B, C, windows], in memory [B, windows, C]."""
    count = windows(x, weights, bias, stride, dilation)
    made = None if bias is None else bias.float()[:, None]
    for k in range(weights.shape[1]):
        seen = x[:, :, k * dilation : k * dilation + (count - 1) * stride + 1 : stride].float()
        part = seen * weights[:, k, None].float()
        made = part if made is None else made + part
    assert made is not None
    return made.to(x.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def like(x: Tensor, weights: Tensor, bias: Tensor = None, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """Memory for the result."""
    count = windows(x, weights, bias, stride, dilation)
    return torch.empty((x.shape[0], count, x.shape[1]), dtype=x.dtype, device=x.device).transpose(1, 2)
