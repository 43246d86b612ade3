"""Functions of generated source that keep to the order in which elements lie in memory.

Sizes are those of the graph all the time; what is innermost shows in the strides alone. A layer over channels leaves
them innermost, a cache is as its new frames are, and so nothing is turned on its way to what reads it:

[B, C, T] behind a layer over channels     lies as [B, T, C]: rows, for convolutions
[B, H, d, T] keys, turned for a product    lie as [B, H, T, d]: rows, for attention
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F

Tensor: TypeAlias = torch.Tensor
SHORT = 16  # taps up to which all windows side by side are not too much memory


def innermost(x: Tensor) -> int:
    """The axis along which elements lie side by side; the last one if there is none."""
    axes = [i for i, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)) if stride == 1 and size > 1]
    return axes[-1] if axes else x.dim() - 1


def join(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Side by side along an axis, in memory as the last of them: a cache as its new frames are."""
    inner, last = innermost(parts[-1]), parts[-1].dim() - 1
    if inner == last:
        return torch.cat(list(parts), axis)
    at = last if axis == inner else axis - (axis > inner)
    return torch.cat([p.movedim(inner, last) for p in parts], at).movedim(last, inner)


def each_channel(
    x: Tensor, weights: Tensor, bias: Tensor | None, stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """A convolution in which every channel is made of one: [B, C or 1, ...] and [C, 1, taps ...], nothing padded.

    Windows of a few rows are summed at once; the rest is torch's own convolution.
    """
    if x.dim() == 3 and x.shape[1] > 1 == dilation[0] and innermost(x) == 1 and weights.shape[2] <= SHORT:
        windows = x.unfold(2, weights.shape[2], stride[0])  # [B, C, T, taps], no copy
        made = torch.sum(windows * weights, 3)
        return made if bias is None else made + bias[:, None]
    conv = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    return conv(x, weights, bias, list(stride), 0, list(dilation), x.shape[1])


def tap_by_tap(
    x: Tensor, weights: Tensor, bias: Tensor | None, stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The same as a sum over all taps, on rows [B, ..., C] and in float32 at least: for a compiler, one kernel."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rows, kernel = x.movedim(1, -1), weights.movedim((0, 1), (-1, -2))[..., 0, :].to(wide)
    made = None if bias is None else bias.to(wide)
    taps = kernel.shape[:-1]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], taps, stride, dilation, strict=True)]
    for tap in itertools.product(*map(range, taps)):
        seen = rows
        for i, (at, n, s, d) in enumerate(zip(tap, counts, stride, dilation, strict=True)):
            seen = seen.narrow(i + 1, at * d, (n - 1) * s + 1)
            seen = seen if s == 1 else seen[(slice(None),) * (i + 1) + (slice(None, None, s),)]
        part = seen.to(wide) * kernel[tap]
        made = part if made is None else made + part
    assert made is not None
    return made.to(x.dtype).movedim(-1, 1)


def by_head(x: Tensor, weights: Tensor) -> Tensor:
    """[B, H, T, d] times constants [1, H, d, R]: a product for every head, with the rows of all streams."""
    batch, heads, time, width = x.shape
    rows = x.transpose(0, 1).reshape(heads, batch * time, width)
    return torch.bmm(rows, weights.reshape(heads, width, -1)).reshape(heads, batch, time, -1).transpose(0, 1)
