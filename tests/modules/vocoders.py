"""Vocoders and synthesisers, as users write them."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class Residual(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.utils.weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2))
             for d in (1, 3)]
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


class HiFi(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.utils.weight_norm(nn.Conv1d(20, 32, 7, padding=3))
        self.ups = nn.ModuleList(
            [nn.utils.weight_norm(nn.ConvTranspose1d(32 >> i, 16 >> i, 8, 4, padding=2)) for i in range(2)]
        )
        self.res = nn.ModuleList([nn.ModuleList([Residual(16 >> i, k) for k in (3, 7)]) for i in range(2)])
        self.post = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, mel: Any) -> Any:
        x = self.pre(mel)
        for up, blocks in zip(self.ups, self.res, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            xs = None
            for block in blocks:
                xs = block(x) if xs is None else xs + block(x)
            x = xs / 2
        return torch.tanh(self.post(F.leaky_relu(x)))


class IstftHead(nn.Module):
    """Upsampled a little, then magnitude and phase, mirrored at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.up = nn.Conv1d(20, 16, 7, padding=3), nn.ConvTranspose1d(16, 16, 8, 4, padding=2)
        self.pad, self.post = nn.ReflectionPad1d((1, 0)), nn.Conv1d(16, 18, 7, padding=3)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, mel: Any) -> Any:
        x = self.post(self.pad(F.leaky_relu(self.up(self.pre(mel)))))
        spec, phase = torch.exp(x[:, :9]), math.pi * torch.sin(x[:, 9:])
        return torch.istft(spec * torch.exp(phase * 1j), 16, 4, 16, window=self.window).unsqueeze(1)


class MelGan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.ReflectionPad1d(3), nn.Conv1d(20, 16, 7), nn.LeakyReLU(0.2), nn.ConvTranspose1d(16, 8, 8, 4, 2),
            nn.LeakyReLU(0.2), nn.ReflectionPad1d(3), nn.Conv1d(8, 1, 7), nn.Tanh(),
        )  # fmt: skip

    def forward(self, mel: Any) -> Any:
        return self.net(mel)


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 16, 1)
        self.gates = nn.ModuleList([nn.Conv1d(16, 32, 2, dilation=2**i) for i in range(5)])
        self.skips = nn.ModuleList([nn.Conv1d(16, 16, 1) for _ in range(5)])
        self.last = nn.Conv1d(16, 4, 1)

    def forward(self, x: Any) -> Any:
        x, total = self.first(x), 0.0
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = torch.tanh(a) * torch.sigmoid(b)
            total = total + skip(h)
            x = x + h
        return self.last(F.relu(total))


class Harmonics(nn.Module):
    """Sines of the multiples of a pitch, whose phase is a running sum; amplitudes from a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.amps = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 6)

    def forward(self, f0: Any, cond: Any) -> Any:  # [B, T, 1], [B, T, 8]
        amps = torch.softmax(self.amps(self.gru(cond)[0]), -1)
        amps = amps.repeat_interleave(20, dim=1)
        f0 = torch.repeat_interleave(f0.abs() * 0.05, 20, 1)
        phase = torch.cumsum(f0, 1)
        return (torch.sin(phase * torch.arange(1, 7)) * amps).sum(-1)


class FilteredNoise(nn.Module):
    """Every frame of a given noise is filtered through its own spectrum."""

    def forward(self, noise: Any, magnitude: Any) -> Any:  # [B, T * 32], [B, T, 17]
        frames = noise.unflatten(-1, (-1, 32))
        impulse = torch.fft.irfft(torch.complex(magnitude, torch.zeros_like(magnitude)))
        impulse = torch.roll(impulse, 16, -1) * torch.hann_window(32)
        out = torch.fft.irfft(torch.fft.rfft(frames, n=64) * torch.fft.rfft(impulse, n=64))
        return out[..., :32].flatten(-2)


class SampleByCell(nn.Module):
    """A sample at a time, in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 8), nn.Linear(8, 1)

    def forward(self, cond: Any) -> Any:  # [B, T, 4]
        h = torch.zeros(cond.shape[0], 8)
        samples = []
        for t in range(cond.shape[1]):
            h = self.cell(cond[:, t], h)
            samples.append(self.out(h))
        return torch.stack(samples, 1)


class Bands(nn.Module):
    """Four bands joined by a synthesis filter bank."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("up", torch.eye(4)[:, :, None] * torch.eye(4)[:1][:, None].expand(4, 4, 4) * 4)
        self.register_buffer("bank", torch.randn(1, 4, 63, generator=torch.Generator().manual_seed(0)) / 20)

    def forward(self, x: Any) -> Any:
        x = F.conv_transpose1d(x, self.up, stride=4)
        return F.conv1d(F.pad(x, (31, 31)), self.bank)


class Codes(nn.Module):
    """From code numbers to sound."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.ModuleList([nn.Embedding(32, 16) for _ in range(3)])
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.up = nn.ConvTranspose1d(16, 1, 16, 8, padding=4)

    def forward(self, codes: Any) -> Any:  # [B, 3, T]
        x = sum(table(codes[:, i]) for i, table in enumerate(self.table))
        x = x + self.lstm(x)[0]
        return self.up(x.transpose(1, 2)).squeeze(1)


def codes(_: int) -> Any:
    return torch.randint(0, 32, (1, 3, 60), generator=torch.Generator().manual_seed(0))


MEL = ((1, 20, 60),)
VOCODERS: Modules = {
    "hifi": Case(HiFi, MEL),
    "istft head": Case(IstftHead, MEL),
    "melgan": Case(MelGan, MEL, (4, 5, 17, 50)),
    "wavenet": Case(WaveNet, ((1, 1, 200),)),
    "harmonics": Case(Harmonics, ((1, 40, 1), (1, 40, 8)), tolerance=1e-3),
    "filtered noise": Case(FilteredNoise, ((1, 640), (1, 20, 17)), (1, 2, 17)),
    "sample by cell": Case(
        SampleByCell,
        ((1, 60, 4),),
        options={"time": {"cond": 1}},
        refused=r"vocoders\.py:\d+, in SampleByCell.*loop over time",
    ),
    "bands": Case(Bands, ((1, 4, 100),)),
    "codes": Case(Codes, codes, options={"time": {"codes": 2}}),
}
