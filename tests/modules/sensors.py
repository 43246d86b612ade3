"""Sensors, video, and what is peculiar about a module's inputs and outputs."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class Motion(nn.Module):
    """Six axes, a class per frame; time first."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(6, 16), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:  # [T, B, 6]
        return self.out(self.lstm(x)[0]).softmax(-1)


class Heart(nn.Module):
    """A filter of 51 taps, differences, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("taps", torch.hann_window(51)[None, None] / 25)
        self.lstm, self.out = nn.LSTM(2, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        x = F.conv1d(F.pad(x[:, None], (50, 0)), self.taps)[:, 0]
        step = torch.diff(x, dim=1, prepend=x[:, :1])
        return self.out(self.lstm(torch.stack([x, step], -1))[0])


class Fused(nn.Module):
    """Two sensors, the second ten times as fast."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(2, 8, 10, stride=10)
        self.gru = nn.GRU(16, 8, batch_first=True)

    def forward(self, slow: Any, fast: Any) -> Any:
        y = torch.cat([self.slow(slow), self.fast(fast)], 1)
        return self.gru(y.transpose(1, 2))[0]


class Dictionary(nn.Module):
    """A batch as a dict, results as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(2, 8)

    def forward(self, batch: dict[str, Any], scale: float = 1.0) -> dict[str, Any]:
        y = torch.tanh(self.one(batch["accel"]) + self.two(batch["gyro"])) * scale
        return {"hidden": y, "level": y.abs().mean(-1)}


class Named(NamedTuple):
    mean: Any
    spread: Any


class Window(nn.Module):
    """Mean and deviation of the last ten frames."""

    def forward(self, x: Any) -> Any:
        frames = F.pad(x, (9, 0)).unfold(-1, 10, 1)
        return Named(frames.mean(-1), frames.var(-1, unbiased=False).clamp_min(1e-6).sqrt())


class Video(nn.Module):
    """Every picture through a network, a GRU over pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.gru = nn.GRU(6, 8, batch_first=True)

    def forward(self, x: Any) -> Any:  # [B, T, 3, 12, 12]
        b, t = x.shape[:2]
        y = self.net(x.flatten(0, 1)).view(b, t, -1)
        return self.gru(y)[0]


class Volume(nn.Module):
    """Pictures convolved along time as well, causally."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv3d(1, 4, 3, padding=(0, 1, 1)), nn.Conv3d(4, 2, (1, 8, 8))

    def forward(self, x: Any) -> Any:  # [B, 1, T, 8, 8]
        return self.out(F.relu(self.conv(F.pad(x, (0, 0, 0, 0, 2, 0)))))[..., 0, 0]


class Events(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm, self.out = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.lstm(self.table(tokens))[0])


class Counting(nn.Module):
    """It counts how often it ran, and keeps the last result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 3, 3, padding=1)
        self.register_buffer("runs", torch.zeros(1))
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        self.runs += 1
        self.last = self.conv(x)
        return self.last * 2


class Both(nn.Module):
    """Forwards and backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.gru(x)[0]


class Quiet(nn.Module):
    """A branch on the data."""

    def forward(self, x: Any) -> Any:
        if x.abs().mean() < 0.1:
            return x * 10
        return x


class Backwards(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + x.flip(1)


class Spectrum(nn.Module):
    """Of the whole recording."""

    def forward(self, x: Any) -> Any:
        return torch.fft.rfft(x, dim=1).abs()


class Uncovered(nn.Module):
    """A function without a rule for complex numbers."""

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True)
        cov = z[:, :3].unsqueeze(-1) * z[:, :3].conj().unsqueeze(-2)
        return torch.linalg.svd(cov)[1]


class Verdict(nn.Module):
    """One class for the whole recording."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(6, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        y, h = self.gru(x)
        return self.out(torch.cat([y.mean(1) + y.max(1).values, h[-1]], -1)[:, :12])


def dictionary(_: int) -> Any:
    torch.manual_seed(2)
    return ({"accel": torch.randn(1, 40, 4), "gyro": torch.randn(1, 40, 2)}, 0.5)


def events(_: int) -> Any:
    return torch.randint(0, 20, (1, 60), generator=torch.Generator().manual_seed(0))


SENSORS: Modules = {
    "motion": Case(Motion, ((40, 1, 6),), options={"time": {"x": 0}}),
    "heart": Case(Heart, ((1, 200),)),
    "fused": Case(Fused, ((1, 3, 20), (1, 2, 200)), (1, 2, 17)),
    "window": Case(Window, ((1, 3, 60),), options={"time": {"x": 2}}, tolerance=1e-3),
    "video": Case(Video, ((1, 16, 3, 12, 12),), (1, 2, 9), {"time": {"x": 1}}),
    "volume": Case(Volume, ((1, 1, 16, 8, 8),), (1, 2, 9), {"time": {"x": 2}}),
    "events": Case(Events, events),
    "counting": Case(Counting, ((1, 3, 60),)),
    "verdict": Case(Verdict, ((1, 40, 6),)),
    "both": Case(Both, ((1, 40, 4),), refused="backward|whole|reverse|later"),
    "quiet": Case(
        Quiet, ((1, 40, 4),), options={"time": {"x": 1}}, refused=r"sensors\.py:\d+, in Quiet.*branch that depends on"
    ),
    "backwards": Case(Backwards, ((1, 40, 4),), options={"time": {"x": 1}}, refused="whole|later|end|revers"),
    "spectrum": Case(
        Spectrum, ((1, 100, 2),), options={"time": {"x": 1}}, refused=r"sensors\.py:\d+.*Fourier transform along time"
    ),
    "uncovered": Case(
        Uncovered, ((1, 1000),), refused=r"linalg_svd of a complex tensor at .*sensors\.py:\d+, in Uncovered"
    ),
}
