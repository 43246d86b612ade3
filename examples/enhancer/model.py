"""The enhancer: a spectrum, two recurrent layers, a complex mask, and sound again.

    audio ─ frames ─ spectrum ─ log power ─ conv ─ GRU ─ GRU ─ mask ─ x ─ overlap-add ─ clean
                        └──────────────────────────────────────────────┘

Windows of 20 ms every 10 ms; the convolution looks one frame ahead.
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HOP, WINDOW = 160, 320
BINS = WINDOW // 2 + 1
WIDTH, LAYERS = 80, 2
FLOOR, SHIFT, SCALE = 1e-6, 6.0, 4.0  # of the logarithm: so that the network sees numbers near 0 and 1


def basis() -> Tensor:
    """[2 BINS, 1, WINDOW]: cosines, then sines, windowed. Analysis and synthesis by it give the sound back."""
    time, bins = torch.arange(WINDOW, dtype=torch.float64), torch.arange(BINS, dtype=torch.float64)[:, None]
    angle = 2 * math.pi / WINDOW * (bins * time)
    weight = torch.full((BINS, 1), 2.0, dtype=torch.float64)
    weight[0] = weight[-1] = 1.0
    window = torch.hann_window(WINDOW, dtype=torch.float64).sqrt() * (weight / WINDOW).sqrt()
    return torch.cat([angle.cos() * window, -angle.sin() * window])[:, None].float()


class Enhancer(nn.Module):
    """audio [B, 1, T] -> clean [B, 1, T rounded down to whole frames]."""

    basis: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.register_buffer("basis", basis())
        self.conv = nn.Conv1d(BINS, WIDTH, 1)
        self.near = nn.Conv1d(WIDTH, WIDTH, 3)
        self.gru = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(LAYERS))
        self.mask = nn.Conv1d(WIDTH, 2 * BINS, 1)

    def spectrum(self, audio: Tensor) -> Tensor:
        """[B, 2 BINS, frames]: real parts, then imaginary ones; frame k ends with sample HOP (k + 1)."""
        return F.conv1d(F.pad(audio, (HOP, HOP)), self.basis, stride=HOP)

    def masked(self, spectrum: Tensor) -> Tensor:
        real, imaginary = spectrum.split(BINS, 1)
        power = real.square() + imaginary.square()
        x = ((power + FLOOR).log() + SHIFT) / SCALE
        x = self.conv(x).relu()
        x = x + self.near(F.pad(x, (1, 1))).relu()
        for gru in self.gru:
            x = x + gru(x.transpose(1, 2))[0].transpose(1, 2)
        one, two = self.mask(x).tanh().split(BINS, 1)
        return torch.cat([real * one - imaginary * two, real * two + imaginary * one], 1)

    def sound(self, spectrum: Tensor) -> Tensor:
        return F.conv_transpose1d(spectrum, self.basis, stride=HOP)[..., HOP:-HOP]

    def forward(self, audio: Tensor) -> Tensor:
        return self.sound(self.masked(self.spectrum(audio)))
