"""Speech front ends, keyword spotting, voice activity."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules

SOUND = (201, 400, 1000, 1333)


class LogMel(nn.Module):
    """Centred short-time spectra with a window shorter than the transform, mel bands, decibels."""

    def __init__(self, n_fft: int = 256, hop: int = 80, win: int = 200, **options: Any) -> None:
        super().__init__()
        self.n_fft, self.hop, self.win, self.options = n_fft, hop, win, options
        self.register_buffer("window", torch.hamming_window(win))
        self.register_buffer("mel", torch.rand(n_fft if options.get("onesided") is False else n_fft // 2 + 1, 20))

    def forward(self, x: Any) -> Any:
        spec = torch.stft(x, self.n_fft, self.hop, self.win, self.window, return_complex=True, **self.options)
        power = spec.abs() ** 2
        mel = torch.einsum("bft,fm->bmt", power, self.mel)
        return 10.0 * torch.log10(torch.clamp(mel, min=1e-10))


class PreEmphasis(nn.Module):
    """x[t] - 0.97 x[t-1], by a concatenation, then the parts of a spectrum as channels."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(128))
        self.out = nn.Linear(130, 8)

    def forward(self, x: Any) -> Any:
        x = torch.cat([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], dim=1)
        spec = torch.view_as_real(torch.stft(x, 128, 64, window=self.window, center=False, return_complex=True))
        return self.out(spec.permute(0, 2, 1, 3).flatten(2))


class Frames(nn.Module):
    """Frames by unfold, each without its mean, emphasised, windowed and transformed."""

    def __init__(self, size: int = 100, hop: int = 40, n_fft: int = 128) -> None:
        super().__init__()
        self.size, self.hop, self.n_fft = size, hop, n_fft
        self.register_buffer("window", torch.hann_window(size, periodic=False) ** 0.85)
        self.register_buffer("mel", torch.rand(n_fft // 2 + 1, 16))

    def forward(self, x: Any) -> Any:
        frames = x.unfold(-1, self.size, self.hop)
        frames = frames - frames.mean(dim=-1, keepdim=True)
        before = F.pad(frames, (1, 0), mode="replicate")[..., :-1]
        frames = (frames - 0.97 * before) * self.window
        energy = torch.log(frames.pow(2).sum(-1).clamp(min=1e-9))
        spec = torch.fft.rfft(frames, n=self.n_fft)
        mel = torch.log((spec.real**2 + spec.imag**2) @ self.mel + 1e-9)
        return torch.cat([energy.unsqueeze(-1), mel], -1)


class Cepstra(nn.Module):
    """Cosine transform of log mel bands, and slopes over five frames, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mel = LogMel()
        self.register_buffer("dct", torch.randn(20, 13))
        self.register_buffer("slope", torch.arange(-2.0, 3.0)[None, None] / 10)

    def delta(self, x: Any) -> Any:
        _, c, _ = x.shape
        return F.conv1d(F.pad(x, (2, 2), mode="replicate"), self.slope.expand(c, 1, -1), groups=c)

    def forward(self, x: Any) -> Any:
        cepstra = (self.mel(x).transpose(1, 2) @ self.dct).transpose(1, 2)
        one = self.delta(cepstra)
        return torch.cat([cepstra, one, self.delta(one)], 1)


@torch.jit.script
def smoothed(x: torch.Tensor, s: float) -> torch.Tensor:
    level = x[:, :, 0]
    out = []
    for t in range(x.shape[2]):
        level = (1 - s) * level + s * x[:, :, t]
        out.append(level)
    return torch.stack(out, 2)


class Normalised(nn.Module):
    """Energy normalised per channel by a first order filter, in a scripted loop."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((20, 1), 0.98))

    def forward(self, x: Any) -> Any:
        level = smoothed(x.abs(), 0.025)
        return (x.abs() / (level + 1e-6) ** self.alpha + 2.0) ** 0.5 - 2.0**0.5


class NormalisedByLoop(nn.Module):
    """The same filter in a loop of Python."""

    def forward(self, x: Any) -> Any:
        level, out = x[..., 0], []
        for t in range(x.shape[-1]):
            level = 0.975 * level + 0.025 * x[..., t]
            out.append(level)
        return x / torch.stack(out, -1)


class SpotterLast(nn.Module):
    """A GRU's last hidden state, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(20, 24, 2, batch_first=True), nn.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        _, hidden = self.gru(x)
        return F.log_softmax(self.out(hidden[-1]), dim=-1)


class SpotterMean(nn.Module):
    """Temporal convolutions with residuals, the mean over time, classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(20, 16, 3, padding=1, bias=False)
        self.convs = nn.ModuleList([nn.Conv1d(16, 16, 9, stride=2, padding=4, bias=False) for _ in range(2)])
        self.skips = nn.ModuleList([nn.Conv1d(16, 16, 1, stride=2, bias=False) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(16) for _ in range(2)])
        self.out = nn.Linear(16, 12)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for conv, skip, norm in zip(self.convs, self.skips, self.norms, strict=True):
            x = F.relu(norm(conv(x)) + skip(x))
        return self.out(F.dropout(F.adaptive_avg_pool1d(x, 1).squeeze(-1), 0.3, self.training))


class SpotterAttention(nn.Module):
    """2D convolutions over time and bands, a GRU, weights by softmax over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, (3, 5), (1, 2), (1, 2)), nn.BatchNorm2d(8), nn.ReLU())
        self.gru = nn.GRU(80, 16, batch_first=True)
        self.score, self.out = nn.Linear(16, 1), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:  # [B, T, 20]
        y = self.conv(x.unsqueeze(1))
        b, c, t, f = y.shape
        y, _ = self.gru(y.permute(0, 2, 1, 3).reshape(b, t, c * f))
        weights = torch.softmax(self.score(y), dim=1)
        return self.out((weights * y).sum(dim=1))


class BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(20, 16, batch_first=True, bidirectional=True), nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        return torch.sigmoid(self.out(self.lstm(x)[0]))


class Utterance(nn.Module):
    """Features without their mean over the whole recording."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(20, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
        return self.conv(x)


class Sinc(nn.Module):
    """Band passes of learnt edges, made in forward."""

    def __init__(self, filters: int = 8, size: int = 51) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.linspace(30, 3000, filters)[:, None])
        self.width = nn.Parameter(torch.full((filters, 1), 400.0))
        n = (size - 1) / 2.0
        self.register_buffer("time", 2 * torch.pi * torch.arange(-n, 0).view(1, -1) / 8000)
        self.register_buffer("window", torch.hamming_window(size)[: size // 2])
        self.norm = nn.LayerNorm(filters)

    def forward(self, x: Any) -> Any:  # [B, 1, T]
        low = 50 + torch.abs(self.low)
        high = torch.clamp(low + 50 + torch.abs(self.width), 50, 4000)
        band = (high - low)[:, 0]
        left = ((torch.sin(high @ self.time) - torch.sin(low @ self.time)) / (self.time / 2)) * self.window
        kernel = torch.cat([left, 2 * band.view(-1, 1), torch.flip(left, dims=[1])], 1) / (2 * band[:, None])
        y = F.max_pool1d(torch.abs(F.conv1d(x, kernel.view(kernel.shape[0], 1, -1), stride=4, padding=25)), 3)
        return F.leaky_relu(self.norm(y.transpose(1, 2)), 0.2)


class VoiceActivity(nn.Module):
    """A state in, a state out, probabilities per frame; a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(20, 16)
        self.head = nn.Sequential(nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, features: Any) -> Any:  # [T, B, 20]
        start = torch.zeros(1, features.size(1), 16, dtype=features.dtype, device=features.device)
        y, (h, c) = self.lstm(features, (start, start))
        probability = self.head(y)
        return {"speech": probability, "active": probability > 0.5, "h": h, "c": c}


class Pitch(nn.Module):
    """Autocorrelation of frames by transforms of a fixed size, the best lag, voiced or not."""

    def forward(self, x: Any) -> Any:
        frames = x.unfold(1, 128, 64) * torch.hann_window(128, device=x.device)
        spec = torch.fft.rfft(frames, 256)
        auto = torch.fft.irfft(spec * spec.conj(), 256)[..., :128]
        auto = auto / (auto[..., :1] + 1e-6)
        value, lag = auto[..., 16:100].max(-1)
        return lag + 16, value > 0.3, value


class Resampled(nn.Module):
    """Half the rate by a filter, levels in decibels of a moving energy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.hann_window(33)[None, None] / 16)

    def forward(self, x: Any) -> Any:
        y = F.conv1d(x.unsqueeze(1), self.kernel, stride=2, padding=16)
        energy = F.avg_pool1d(y**2, 20, 10, ceil_mode=False)
        return y.squeeze(1), 10 * torch.log10(energy + 1e-7).squeeze(1)


SPOTTERS: Modules = {
    "log mel": Case(LogMel, ((1, 4000),), SOUND),
    "log mel, several rows": Case(LogMel, ((3, 4000),), SOUND),
    "log mel, normalized": Case(lambda: LogMel(normalized=True, pad_mode="constant"), ((1, 4000),), SOUND),
    "log mel, two-sided": Case(lambda: LogMel(onesided=False, center=False), ((1, 4000),), (256, 400, 1333)),
    "log mel, replicated": Case(lambda: LogMel(pad_mode="replicate", hop=100), ((1, 4000),), SOUND),
    "pre-emphasis": Case(PreEmphasis, ((1, 2000),), (128, 400, 777)),
    "frames": Case(Frames, ((1, 2000),), (100, 139, 400, 777)),
    "cepstra": Case(Cepstra, ((1, 4000),), SOUND),
    "normalised channels": Case(Normalised, ((1, 20, 100),)),
    "normalised, python loop": Case(
        NormalisedByLoop,
        ((1, 20, 100),),
        options={"time": {"x": 2}},
        refused=r"modules/spotters\.py:\d+, in NormalisedByLoop.*is a loop over time",
    ),
    "spotter, last state": Case(SpotterLast, ((1, 100, 20),)),
    "spotter, mean": Case(SpotterMean, ((1, 20, 100),)),
    "spotter, attention": Case(SpotterAttention, ((1, 100, 20),)),
    "both ways": Case(BothWays, ((1, 100, 20),), refused="lstm"),
    "utterance mean": Case(Utterance, ((1, 20, 100),), refused="whole"),
    "sinc": Case(Sinc, ((1, 1, 2000),), (60, 400, 777)),
    "voice activity": Case(VoiceActivity, ((100, 1, 20),)),
    "pitch": Case(Pitch, ((1, 2000),), (128, 400, 777)),
    "resampled": Case(Resampled, ((1, 2000),), (40, 400, 777)),
}
