"""`depthwise` as an operator of torch, `pulsify::depthwise`, so that torch.compile and recordings take it whole."""

from __future__ import annotations

from typing import Any

import torch

from pulsify.kernels.depthwise.on_torch import like
from pulsify.kernels.targets import chosen, implementation

Tensor = Any


def depthwise(x: Tensor, weights: Tensor, bias: Tensor = None, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """[B, C, windows], in memory [B, windows, C]."""
    return torch.ops.pulsify.depthwise(x, weights, bias, stride, dilation)


def _compute(x: Tensor, weights: Tensor, bias: Tensor, stride: int, dilation: int) -> Tensor:
    found = implementation("depthwise", chosen(x.device.type))
    return found(x, weights, bias, stride=stride, dilation=dilation)


def _shaped(x: Tensor, weights: Tensor, bias: Tensor, stride: int, dilation: int) -> Tensor:
    return like(x, weights, bias, stride=stride, dilation=dilation)


_SCHEMA = "(Tensor x, Tensor weights, Tensor? bias, int stride, int dilation) -> Tensor"
torch.library.custom_op("pulsify::depthwise", _compute, mutates_args=(), schema=_SCHEMA).register_fake(_shaped)
