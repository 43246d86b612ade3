"""`depthwise` for cards, and for Triton's interpreter on the CPU."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton

from pulsify.kernels.depthwise import triton_kernels
from pulsify.kernels.depthwise.on_torch import like

Tensor = Any
CHANNELS, WINDOWS = 256, 8  # of a program, at the most


def depthwise(x: Tensor, weights: Tensor, bias: Tensor = None, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """[B, C, windows], in memory [B, windows, C]."""
    out = like(x, weights, bias, stride=stride, dilation=dilation)
    batch, channels, count = out.shape
    block_c, block_t = (min(most, triton.next_power_of_2(n)) for most, n in ((CHANNELS, channels), (WINDOWS, count)))
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        triton_kernels.convolve[(batch, -(-count // block_t), -(-channels // block_c))](
            x, weights, bias, out, x.stride(), weights.stride(), (0,) if bias is None else bias.stride(), out.stride(),
            channels, count, TAPS=weights.shape[1], STRIDE=stride, DILATION=dilation, BLOCK_T=block_t, BLOCK_C=block_c,
            num_warps=4,
        )  # fmt: skip
    return out
