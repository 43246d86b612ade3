"""Vocoders and synthesisers: from features to sound."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules

FRAMES = (2, 5, 13, 30)


class Residual(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.one = norm(nn.Conv1d(channels, channels, kernel, dilation=3, padding=3 * (kernel // 2)))
        self.two = norm(nn.Conv1d(channels, channels, kernel, padding=kernel // 2))

    def forward(self, x: Any) -> Any:
        return x + self.two(F.leaky_relu(self.one(F.leaky_relu(x, 0.1)), 0.1))


class Adversarial(nn.Module):
    """Transposed convolutions, means of residual blocks with several kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.Conv1d(20, 32, 7, padding=3)
        self.ups = nn.ModuleList([nn.ConvTranspose1d(32, 16, 8, 4, 2), nn.ConvTranspose1d(16, 8, 4, 2, 1)])
        self.blocks = nn.ModuleList([Residual(c, k) for c in (16, 8) for k in (3, 5)])
        self.post = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, mel: Any) -> Any:
        x = self.pre(mel)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            total = None
            for j in range(2):
                y = self.blocks[i * 2 + j](x)
                total = y if total is None else total + y
            x = total / 2
        return torch.tanh(self.post(F.leaky_relu(x)))


class Mirrored(nn.Module):
    """Mirrored padding before every convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad1d(3),
            nn.Conv1d(20, 16, 7),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose1d(16, 8, 6, stride=3, padding=2, output_padding=1),
            nn.ReflectionPad1d(1),
            nn.Conv1d(8, 1, 3),
            nn.Tanh(),
        )

    def forward(self, mel: Any) -> Any:
        return self.body(mel)


class Inverse(nn.Module):
    """Magnitude and phase from convolutions, an inverse transform."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(20, 24, 3, padding=1), nn.ReLU(), nn.ConvTranspose1d(24, 34, 4, 2, 1))
        self.register_buffer("window", torch.hann_window(32))

    def forward(self, mel: Any) -> Any:
        x = self.body(mel)
        magnitude, phase = torch.exp(x[:, :17].clamp(max=3)), torch.sin(x[:, 17:])
        wave = torch.istft(magnitude * torch.exp(phase * 1j), 32, 8, 32, window=self.window)
        return wave.unsqueeze(1)


class Sine(nn.Module):
    """Harmonics of a pitch that is held for a frame: an upsampled contour, summed up to a phase."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.filter = nn.Linear(2, 1), nn.Conv1d(1, 1, 9, padding=4)

    def forward(self, f0: Any) -> Any:  # [B, T]
        f0 = torch.repeat_interleave(100 + 20 * f0, 16, dim=1)[..., None] * torch.arange(1, 3)
        phase = torch.cumsum(f0 / 16000, dim=1) * 2 * torch.pi
        voiced = (f0 > 90).float()
        sound = torch.tanh(self.mix(torch.sin(phase) * voiced))
        return self.filter(sound.transpose(1, 2))


class Oscillators(nn.Module):
    """Amplitudes interpolated between frames, times sines."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 6)

    def forward(self, x: Any) -> Any:
        amplitudes = torch.sigmoid(self.out(self.gru(x)[0])).transpose(1, 2)
        up = F.interpolate(amplitudes, scale_factor=8, mode="linear", align_corners=False)
        time = torch.arange(up.shape[-1], device=x.device) / 100
        sines = torch.sin(time[None] * torch.arange(1, 7)[:, None])
        return (up * sines).sum(1)


class Noise(nn.Module):
    """Filtered noise, drawn anew at every call."""

    def forward(self, x: Any) -> Any:
        return torch.repeat_interleave(x.mean(1), 8, 1) * torch.rand(x.shape[0], x.shape[2] * 8)


class Gated(nn.Module):
    """Dilated gated convolutions that look back only, features beside them at the sound's rate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.filters = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(4)])
        self.conditions = nn.ModuleList([nn.Conv1d(6, 16, 1, bias=False) for _ in range(4)])
        self.skips = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(4)])
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(8, 8, 1), nn.ReLU(), nn.Conv1d(8, 16, 1))

    def forward(self, wave: Any, mel: Any) -> Any:
        mel = F.interpolate(mel, scale_factor=4, mode="nearest")
        x, total = self.first(wave), 0
        for i, (conv, condition, skip) in enumerate(zip(self.filters, self.conditions, self.skips, strict=True)):
            y = conv(F.pad(x, (2**i, 0))) + condition(mel)
            a, b = y.chunk(2, dim=1)
            y = torch.tanh(a) * torch.sigmoid(b)
            total = total + skip(y)
            x = (x + y) * 0.5**0.5
        return self.last(total)


class Autoregressive(nn.Module):
    """Sample after sample, each from the last one, in a loop of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(9, 16), nn.Linear(16, 1)

    def forward(self, mel: Any) -> Any:
        b, t, _ = mel.shape
        hidden, sample, out = mel.new_zeros(b, 16), mel.new_zeros(b, 1), []
        for i in range(t):
            hidden = self.cell(torch.cat([sample, mel[:, i]], -1), hidden)
            sample = torch.tanh(self.out(hidden))
            out.append(sample)
        return torch.stack(out, 1)


class Bands(nn.Module):
    """Four bands at a quarter of the rate, joined by a filter bank."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(10, 4, 5, padding=2)
        self.register_buffer("filters", torch.randn(1, 4, 31) / 10)
        self.register_buffer("spread", torch.zeros(4, 4, 4))
        self.spread[range(4), range(4), 0] = 1.0

    def forward(self, mel: Any) -> Any:
        x = torch.tanh(self.body(mel))
        x = F.conv_transpose1d(x, self.spread * 4, stride=4)
        return F.conv1d(nn.functional.pad(x, (15, 15)), self.filters)


class Durations(nn.Module):
    """Ids in, an embedding, causal convolutions, sound by pixel shuffling."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.out = nn.Embedding(50, 16), nn.Conv1d(16, 16, 3), nn.Linear(16, 10)

    def forward(self, ids: Any) -> Any:
        x = self.conv(F.pad(self.embed(ids).transpose(1, 2), (2, 0)))
        return self.out(F.gelu(x).transpose(1, 2)).flatten(1)


SYNTHESISERS: Modules = {
    "adversarial": Case(Adversarial, ((1, 20, 60),), FRAMES),
    "mirrored": Case(Mirrored, ((1, 20, 60),), (4, 5, 13, 30)),
    "inverse": Case(Inverse, ((1, 20, 60),), FRAMES),
    "sine": Case(Sine, ((1, 60),), FRAMES),
    "oscillators": Case(Oscillators, ((1, 60, 8),), FRAMES),
    "noise": Case(Noise, ((1, 8, 60),), options={"time": {"x": 2}}, refused="random in eval mode"),
    "gated": Case(Gated, ((1, 1, 160), (1, 6, 40)), FRAMES),
    "autoregressive": Case(
        Autoregressive, ((1, 60, 8),), refused=r"modules/synthesisers\.py:\d+, in Autoregressive.*loop over time"
    ),
    "bands": Case(Bands, ((1, 10, 60),), FRAMES),
    "ids": Case(Durations, lambda n: torch.randint(0, 50, (1, n or 60)), FRAMES),
}
