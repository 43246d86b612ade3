"""Samples and their attention mask in, frames of 20 ms out: convolutions, then attention in chunks.

The front end and the mask are wav2vec2's: seven convolutions, 320 samples a frame; the mask of samples becomes one of
frames by its sum, taken through the convolutions' own formula. Attention sees its chunk and some chunks before it.
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KERNELS = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))  # (kernel, stride): 320 samples a frame


@dataclass(frozen=True)
class Config:
    """kernels: and strides, of the convolutions; chunk, past: frames that attention takes as one, chunks before."""

    kernels: tuple[tuple[int, int], ...] = KERNELS
    channels: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 4
    chunk: int = 16
    past: int = 2


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, width = config.heads, config.width
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        b, t, width = x.shape
        h = self.norms[0](x)
        q, k, v = (f(h).view(b, t, self.heads, width // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5 + bias
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Encoder(nn.Module):
    """input_values [B, S], attention_mask [B, S] -> hidden [B, T, width], lengths [B]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        sizes = [1, *(config.channels for _ in config.kernels)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(a, b, k, s) for a, b, (k, s) in zip(sizes, sizes[1:], config.kernels, strict=False)
        )
        self.project = nn.Linear(config.channels, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, input_values: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        x = input_values[:, None]
        lengths = attention_mask.sum(-1)
        for convolution, (kernel, stride) in zip(self.convolutions, self.config.kernels, strict=True):
            x = F.gelu(convolution(x))
            lengths = (lengths - kernel) // stride + 1
        h = self.project(x.transpose(1, 2))
        at = torch.arange(h.shape[1], device=h.device)
        inside = at[None] < lengths[:, None]
        h = h * inside[..., None].to(h.dtype)
        behind = at[:, None] // self.config.chunk - at[None] // self.config.chunk
        seen = (behind >= 0) & (behind <= self.config.past) & inside[:, None, None, :]
        bias = (1.0 - seen.to(h.dtype)) * torch.finfo(h.dtype).min
        for layer in self.layers:
            h = layer(h, bias)
        return h, lengths


def build(config: Config = Config(), seed: int = 0) -> Encoder:  # noqa: B008  it is frozen
    """Weights at random: what a stream costs does not depend on them."""
    torch.manual_seed(seed)
    return Encoder(config).eval()
