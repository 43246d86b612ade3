"""Idioms of ordinary code that an exporter has no operator for, or gets wrong; and lines that errors must name."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.modules.case import Case, Modules


class KaldiFrames(nn.Module):
    """Frames by strides, without their mean, with pre-emphasis in each."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(40, periodic=False).pow(0.85))

    def forward(self, wave: Any) -> Any:
        count = 1 + (wave.size(-1) - 40) // 16
        frames = wave.as_strided((wave.size(0), count, 40), (wave.size(1), 16, 1))
        frames = frames - frames.mean(-1, keepdim=True)
        before = F.pad(frames, (1, 0), mode="replicate")[..., :-1]
        return torch.fft.rfft((frames - 0.97 * before) * self.window, n=64).abs().clamp_min(1e-6).log()


class Projected(nn.Module):
    """An LSTM with projections masks a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.mask = nn.LSTM(33, 16, 2, batch_first=True, proj_size=8), nn.Linear(8, 33)
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, 64, 32, window=self.window, return_complex=True)
        y, _ = self.lstm(z.abs().transpose(1, 2))
        return torch.istft(z * self.mask(y).sigmoid().mT, 64, 32, window=self.window, length=x.shape[-1])


class Sampler(nn.Module):
    """Its last output is an input of the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.inner, self.out = nn.Linear(9, 12), nn.Linear(6, 12), nn.Linear(6, 1)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        h, x = torch.zeros(mel.size(0), 6), torch.zeros(mel.size(0), 1)
        out: list[torch.Tensor] = []
        for t in range(mel.size(1)):
            g = self.inward(torch.cat([mel[:, t], x], -1)) + self.inner(h)
            z = torch.sigmoid(g[:, :6])
            h = z * h + (1 - z) * torch.tanh(g[:, 6:])
            x = torch.tanh(self.out(h))
            out.append(x)
        return torch.cat(out, 1)


class ScriptedPart(nn.Module):
    """A scripted module within another one."""

    def __init__(self) -> None:
        super().__init__()
        self.smooth = nn.Conv1d(8, 8, 3, padding=1)
        self.sampler = torch.jit.script(Sampler())

    def forward(self, x: Any) -> Any:
        return self.sampler(self.smooth(x).mT)


@torch.jit.script
def smoothed(x: torch.Tensor, rate: float) -> torch.Tensor:
    last = x[:, :, 0]
    out = [last]
    for t in range(1, x.size(2)):
        last = (1 - rate) * last + rate * (x[:, :, t] + x[:, :, t - 1]) / 2
        out.append(last)
    return torch.stack(out, 2)


class Smoothed(nn.Module):
    """A list that starts with the first frame; a frame and the one before it."""

    def forward(self, x: Any) -> Any:
        return x / (1e-2 + smoothed(x.abs(), 0.1))


@torch.jit.script
def tracked(z: torch.Tensor, step: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    x, out = torch.zeros([z.size(0), 2, 1]), []
    for frame in z.unbind(1):
        x = step @ x
        x = x + gain @ (frame[:, None, None] - x[:, :1])
        out.append(x[:, :, 0])
    return torch.stack(out, 1)


class Tracked(nn.Module):
    """A loop over the frames themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.tensor([[1.0, 0.1], [0.0, 1.0]]))
        self.gain = nn.Parameter(torch.tensor([[0.3], [0.1]]))

    def forward(self, z: Any) -> Any:
        return tracked(z, self.step, self.gain)


@torch.jit.script
def pictures(v: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, size: int) -> torch.Tensor:
    h = torch.zeros([v.size(0), size, v.size(3), v.size(4)])
    c, out = h, []
    for i in range(v.size(1)):
        gates = F.conv2d(torch.cat([v[:, i], h], 1), weight, bias, padding=[1, 1])
        parts = torch.chunk(gates, 4, dim=1)
        c = torch.sigmoid(parts[1]) * c + torch.sigmoid(parts[0]) * torch.tanh(parts[3])
        h = torch.sigmoid(parts[2]) * torch.tanh(c)
        out.append(h)
    return torch.stack(out, dim=1)


class Pictures(nn.Module):
    """A convolutional LSTM whose gates are chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 12, 3, padding=1)

    def forward(self, v: Any) -> Any:
        return pictures(v, self.conv.weight, self.conv.bias, 3)


class LogScan(nn.Module):
    """A gated recurrence as a scan of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(10, 6), nn.Linear(10, 6)

    def forward(self, x: Any) -> Any:
        k, v = self.gate(x), self.value(x)
        kept = F.pad(torch.cumsum(-F.softplus(k), 1), (0, 0, 1, 0))
        inputs = torch.where(v >= 0, (F.relu(v) + 0.5).log(), -F.softplus(-v)) - F.softplus(-k)
        inputs = torch.cat([torch.full_like(inputs[:, :1], -1.0), inputs], 1)
        return torch.exp(kept + torch.logcumsumexp(inputs - kept, 1))[:, 1:]


class Predictor(nn.Module):
    """Linear prediction of every frame, by Levinson's recursion."""

    def __init__(self, order: int = 4) -> None:
        super().__init__()
        self.order = order
        self.register_buffer("window", torch.hann_window(32))

    def forward(self, x: Any) -> Any:
        f = x.unfold(-1, 32, 16) * self.window
        r = torch.stack([(f[..., k:] * f[..., : 32 - k]).sum(-1) for k in range(self.order + 1)], -1)
        error = r[..., 0] + 1e-3
        a = torch.zeros_like(r)
        a[..., 0] = 1
        for i in range(1, self.order + 1):
            k = -sum(a[..., j] * r[..., i - j] for j in range(i)) / error
            new = a.clone()
            for j in range(1, i):
                new[..., j] = a[..., j] + k * a[..., i - j]
            new[..., i] = k
            a, error = new, error * (1 - k * k)
        return a, error


class WaveUNet(nn.Module):
    """Padded to a length that its strides divide, by division of numbers below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv1d(1, 4, 8, 4), nn.Conv1d(4, 8, 8, 4)])
        self.up = nn.ModuleList([nn.ConvTranspose1d(8, 4, 8, 4), nn.ConvTranspose1d(4, 1, 8, 4)])
        self.lstm = nn.LSTM(8, 8)

    def valid(self, length: Any) -> Any:
        for _ in self.down:
            length = -((8 - length) // 4) + 1
        for _ in self.down:
            length = (length - 1) * 4 + 8
        return length

    def forward(self, x: Any) -> Any:
        length = x.shape[-1]
        x = F.pad(x, (0, self.valid(length) - length))
        skips = []
        for layer in self.down:
            x = F.relu(layer(x))
            skips.append(x)
        x = self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)
        for layer in self.up:
            skip = skips.pop(-1)
            x = layer(x + skip[..., : x.shape[-1]])
        return x[..., :length]


class WaveUNetRounded(WaveUNet):
    """The same with numbers of Python."""

    def valid(self, length: Any) -> Any:
        for _ in self.down:
            length = math.ceil((length - 8) / 4) + 1
        for _ in self.down:
            length = (length - 1) * 4 + 8
        return int(length)


class RollingStatistics(nn.Module):
    """Medians and quantiles of the last ten frames."""

    def forward(self, x: Any) -> Any:
        w = F.pad(x, (0, 0, 9, 0)).unfold(1, 10, 1)
        return torch.stack([w.median(-1).values, torch.quantile(w, 0.9, -1), w.std(-1), torch.cummin(w, -1)[0][..., 4]])


class PhaseVocoder(nn.Module):
    """Magnitudes and frequencies, whose sum is the phase."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(10, 18, 3, padding=1)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, mel: Any) -> Any:
        size, turn = self.conv(mel).tensor_split(2, 1)
        phase = torch.cumsum(math.pi * torch.tanh(turn), -1)
        return torch.istft(torch.polar(F.softplus(size), phase), 16, 4, window=self.window)


class MaskByCell(nn.Module):
    """One frame more of sound is no frame more of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(33, 33)

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True)
        frames = z.abs().permute(2, 0, 1)
        h, masks = frames.new_zeros(frames.shape[1], 33), []
        for t in range(frames.shape[0]):
            h = self.cell(frames[t], h)
            masks.append(h.sigmoid())
        return torch.istft(z * torch.stack(masks, -1), 64, 32, window=torch.hann_window(64), length=x.shape[-1])


class EnergyBySplit(nn.Module):
    """A loop over the pieces of a split."""

    def forward(self, mel: Any) -> Any:
        last, out = None, []
        for frame in mel.split(1, dim=-1):
            last = frame if last is None else 0.9 * last + 0.1 * frame
            out.append(last)
        return torch.cat(out, -1)


class Dithered(nn.Module):
    def forward(self, x: Any) -> Any:
        x = x + 1e-3 * torch.randn_like(x)
        return torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True).abs()


IDIOMS: Modules = {
    "kaldi frames": Case(KaldiFrames, ((1, 800),), (40, 41, 55, 56, 150)),
    "projected": Case(Projected, ((1, 1000),), (33, 64, 100, 301)),
    "scripted part": Case(ScriptedPart, ((1, 8, 60),), options={"time": {"x": 2}}),
    "scripted whole": Case(lambda: torch.jit.script(Sampler()), ((1, 60, 8),)),
    "smoothed": Case(Smoothed, ((1, 6, 60),), (2, 3, 17, 50), {"time": {"x": 2}}),
    "tracked": Case(Tracked, ((1, 60),)),
    "pictures": Case(Pictures, ((1, 10, 1, 6, 6),), (1, 2, 9), {"time": {"v": 1}}),
    "log scan": Case(LogScan, ((1, 60, 10),)),
    "predictor": Case(Predictor, ((1, 400),), (32, 47, 48, 150)),
    "wave u-net": Case(WaveUNet, ((1, 1, 600),), (40, 41, 150)),
    "wave u-net, rounded": Case(
        WaveUNetRounded,
        ((1, 1, 600),),
        refused=r"modules/idioms\.py:\d+, in WaveUNetRounded\.valid: `return int\(length\)` reads a size.*without int",
    ),
    "rolling statistics": Case(RollingStatistics, ((1, 40, 3),), options={"time": {"x": 1}}),
    "phase vocoder": Case(PhaseVocoder, ((1, 10, 60),), (2, 3, 17, 50)),
    "mask by cell": Case(
        MaskByCell, ((1, 1600),), refused=r"modules/idioms\.py:\d+, in MaskByCell.*`for t in range.*loop over time"
    ),
    "loop over a split": Case(
        EnergyBySplit, ((1, 8, 60),), refused=r"modules/idioms\.py:\d+, in EnergyBySplit.*split\(1.*loop over time",
        options={"time": {"mel": 2}},
    ),
    "dithered": Case(Dithered, ((1, 800),), refused=r"modules/idioms\.py:\d+, in Dithered.*randn_like.*is random"),
}  # fmt: skip
