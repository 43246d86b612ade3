"""Sensors, biosignals, control, and amplifiers."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class Activity(nn.Module):
    """Windows with an overlap, a convolution and an LSTM in each, classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm, self.out = nn.Conv1d(6, 8, 5), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:  # [B, T, 6]
        windows = x.unfold(1, 32, 16)
        b, n, c, w = windows.shape
        y = F.relu(self.conv(windows.reshape(b * n, c, w))).transpose(1, 2)
        _, (h, _) = self.lstm(y)
        return self.out(h[-1]).view(b, n, -1)


@torch.jit.script
def biquads(x: torch.Tensor, sos: torch.Tensor) -> torch.Tensor:
    for k in range(3):
        z1, z2 = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        out = torch.jit.annotate(list[torch.Tensor], [])
        for t in range(x.size(1)):
            u = x[:, t]
            y = sos[k, 0] * u + z1
            z1 = sos[k, 1] * u - sos[k, 4] * y + z2
            z2 = sos[k, 2] * u - sos[k, 5] * y
            out.append(y)
        x = torch.stack(out, 1)
    return x


@torch.jit.script
def biquad(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    z1, z2 = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
    out = torch.jit.annotate(list[torch.Tensor], [])
    for t in range(x.size(1)):
        y = s[0] * x[:, t] + z1
        z1 = s[1] * x[:, t] - s[4] * y + z2
        z2 = s[2] * x[:, t] - s[5] * y
        out.append(y)
    return torch.stack(out, 1)


class Filter(nn.Module):
    """Second order sections in double precision, by a script."""

    def __init__(self) -> None:
        super().__init__()
        sections = torch.tensor([[0.1, 0.2, 0.1, 1, -1.1, 0.4], [1, 2, 1, 1, -1.2, 0.6], [1, -2, 1, 1, -1.9, 0.92]])
        self.register_buffer("sos", sections.double())

    def forward(self, x: Any) -> Any:
        return biquads(x, self.sos)


class Sections(Filter):
    """The same, a script a section."""

    def forward(self, x: Any) -> Any:
        for k in range(3):
            x = biquad(x, self.sos[k])
        return x


@torch.jit.script
def tracked(x: torch.Tensor, q: float, r: float) -> torch.Tensor:
    mean, var = x[:, 0], torch.ones_like(x[:, 0])
    out = torch.jit.annotate(list[torch.Tensor], [])
    for t in range(x.size(1)):
        var = var + q
        gain = var / (var + r)
        mean = mean + gain * (x[:, t] - mean)
        var = (1 - gain) * var
        out.append(mean)
    return torch.stack(out, 1)


class Kalman(nn.Module):
    def forward(self, x: Any) -> Any:
        level = tracked(x, 0.01, 0.5)
        return level, x - level


class Compressor(nn.Module):
    """An envelope whose attack and release differ; in a script with a branch on data by torch.where."""

    def __init__(self) -> None:
        super().__init__()
        self.threshold, self.ratio = nn.Parameter(torch.tensor(-20.0)), 4.0

    def forward(self, x: Any) -> Any:
        level = 20 * torch.log10(enveloped(x.abs(), 0.3, 0.01) + 1e-5)
        gain = -F.relu(level - self.threshold) * (1 - 1 / self.ratio)
        return x * 10 ** (gain / 20)


@torch.jit.script
def enveloped(x: torch.Tensor, attack: float, release: float) -> torch.Tensor:
    level = torch.zeros_like(x[:, 0])
    out = torch.jit.annotate(list[torch.Tensor], [])
    for t in range(x.size(1)):
        rate = torch.where(x[:, t] > level, attack, release)
        level = level + rate * (x[:, t] - level)
        out.append(level)
    return torch.stack(out, 1)


class AmpRecurrent(nn.Module):
    """An LSTM a sample, the dry sound added; one knob."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(2, 12, batch_first=True), nn.Linear(12, 1)

    def forward(self, x: Any, gain: Any) -> Any:  # [B, T, 1], [B, 1]
        knob = gain[:, None].expand(-1, x.shape[1], -1)
        y, _ = self.lstm(torch.cat([x, knob], -1))
        return self.out(y) + x


class AmpConvolution(nn.Module):
    """Dilated convolutions without padding, scaled and shifted by knobs."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(1 if i == 0 else 8, 8, 5, dilation=4**i) for i in range(3)])
        self.skips = nn.ModuleList([nn.Conv1d(1 if i == 0 else 8, 8, 1, bias=False) for i in range(3)])
        self.film, self.out = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 16)), nn.Conv1d(8, 1, 1)

    def forward(self, x: Any, knobs: Any) -> Any:
        scale, shift = self.film(knobs).unsqueeze(-1).chunk(2, 1)
        for conv, skip in zip(self.convs, self.skips, strict=True):
            y = F.prelu(conv(x) * (1 + scale) + shift, torch.tensor([0.25]))
            rest = skip(x)
            cut = rest.shape[-1] - y.shape[-1]
            x = y + rest[..., cut:]
        return torch.tanh(self.out(x))


class Beats(NamedTuple):
    logits: Any
    peak: Any


class Heart(nn.Module):
    """Two leads, residual convolutions, the largest logit of the recording; a named tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(2, 8, 7, 2, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.out = nn.Conv1d(8, 3, 1)

    def forward(self, x: Any) -> Any:
        logits = self.out(self.conv(x))
        return Beats(logits, logits.amax(-1))


class Brain(nn.Module):
    """Temporal, then spatial convolutions, powers averaged over windows; in train mode when it is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.space = nn.Conv2d(1, 4, (1, 9), padding=(0, 4)), nn.Conv2d(4, 8, (6, 1), groups=4)
        self.norm, self.pool, self.drop = nn.BatchNorm2d(8), nn.AvgPool2d((1, 16), (1, 4)), nn.Dropout(0.5)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Any) -> Any:  # [B, C, T]
        y = self.norm(self.space(self.time(x.unsqueeze(1))))
        y = self.drop(torch.log(self.pool(y**2).clamp(min=1e-6)))
        return self.out(y).squeeze(2)


class Rates(nn.Module):
    """A dict of sensors at two rates, joined at the slower one."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.gru = nn.Conv1d(3, 8, 4, stride=4), nn.GRU(10, 8, batch_first=True)

    def forward(self, batch: Any) -> Any:
        fast = self.fast(batch["imu"]).transpose(1, 2)
        y, _ = self.gru(torch.cat([fast, batch["gps"]], -1))
        return {"position": y[..., :2], "heading": torch.atan2(y[..., 2], y[..., 3])}


class Hilbert(nn.Module):
    """The analytic signal of the whole recording."""

    def forward(self, x: Any) -> Any:
        n = x.shape[-1]
        spec = torch.fft.fft(x)
        h = torch.zeros(n)
        h[0] = 1
        h[1 : (n + 1) // 2] = 2
        return torch.fft.ifft(spec * h).abs()


class Drift(nn.Module):
    """Differences, running sums, moving averages."""

    def forward(self, x: Any) -> Any:
        step = torch.diff(x, dim=-1, prepend=x[..., :1])
        level = torch.cumsum(step.clamp(min=0), -1)
        smooth = F.avg_pool1d(F.pad(x, (4, 0), mode="replicate"), 5, 1)
        return smooth, level


class Highest(nn.Module):
    def forward(self, x: Any) -> Any:
        return x / torch.cummax(x.abs(), -1).values


class Alarm(nn.Module):
    """A branch of Python on the data."""

    def forward(self, x: Any) -> Any:
        if x.abs().max() > 1.0:
            x = x / 2
        return torch.tanh(x)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(4, 8, 3, padding=1), nn.Conv1d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.conv(x)))


class Whole(nn.Module):
    """Counts of a converter in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 5, padding=2)

    def forward(self, counts: Any) -> Any:
        x = counts.float() / 32768.0
        return (self.conv(x[:, None]).mean(1) * 32767).round().clamp(-32768, 32767).to(torch.int16)


FLOAT64 = r"Conv \('conv/Conv' at tests/modules/instruments\.py:\d+, in Half.*float64; pass module\.float"


def rates(n: int) -> Any:
    return ({"imu": torch.randn(1, 3, 4 * (n or 32)), "gps": torch.randn(1, n or 32, 2)},)


INSTRUMENTS: Modules = {
    "activity": Case(Activity, ((1, 200, 6),), (32, 50, 101)),
    "filter": Case(Sections, lambda n: torch.randn(1, n or 100, dtype=torch.float64), tolerance=1e-9),
    "filter, loop in a loop": Case(
        Filter, lambda n: torch.randn(1, n or 100, dtype=torch.float64), refused="a list that is not merely appended to"
    ),
    "kalman": Case(Kalman, ((1, 100),)),
    "compressor": Case(Compressor, ((1, 100),)),
    "amp, recurrent": Case(AmpRecurrent, ((1, 100, 1), (1, 1))),
    "amp, convolution": Case(AmpConvolution, ((1, 1, 400), (1, 2)), (85, 120, 301)),
    "heart": Case(Heart, ((1, 2, 200),)),
    "brain": Case(Brain, ((1, 6, 200),), (16, 40, 101), {"time": {"x": 2}}, training=True),
    "rates": Case(Rates, rates),
    "hilbert": Case(Hilbert, ((1, 100),), refused=r"modules/instruments\.py:\d+, in Hilbert.*Fourier transform"),
    "drift": Case(Drift, ((1, 3, 100),), options={"time": {"x": 2}}),
    "highest so far": Case(Highest, ((1, 100),)),
    "alarm": Case(
        Alarm, ((1, 100),), refused=r"modules/instruments\.py:\d+, in Alarm.*branch that depends on the data"
    ),
    "double": Case(
        lambda: Half().double(),
        lambda n: torch.randn(1, 4, n or 100, dtype=torch.float64),
        refused=FLOAT64,
    ),
    "half": Case(lambda: Half().half(), lambda n: torch.randn(1, 4, n or 100).half(), tolerance=2e-3),
    "counts": Case(Whole, lambda n: torch.randint(-9000, 9000, (1, n or 100), dtype=torch.int16)),
}
