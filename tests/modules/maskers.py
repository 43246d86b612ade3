"""Networks that mask spectra: deep recurrences over bands, cumulative norms, filters written into a spectrum."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class Unmix(nn.Module):
    """A scaled spectrum of two channels, a deep LSTM beside a skip, a gain for every bin; the phase as it was."""

    def __init__(self, both: bool, n_fft: int = 64, hop: int = 16, hidden: int = 16) -> None:
        super().__init__()
        self.n_fft, self.hop, bins = n_fft, hop, n_fft // 2 + 1
        self.register_buffer("window", torch.hann_window(n_fft))
        self.mean, self.scale = nn.Parameter(torch.randn(bins)), nn.Parameter(torch.rand(bins) + 0.5)
        self.into, self.norm = nn.Linear(bins * 2, hidden, bias=False), nn.BatchNorm1d(hidden)
        width = hidden // 2 if both else hidden
        self.lstm = nn.LSTM(hidden, width, 3, bidirectional=both, dropout=0.4)
        self.mid, self.mid_norm = nn.Linear(2 * hidden, hidden, bias=False), nn.BatchNorm1d(hidden)
        self.out, self.out_norm = nn.Linear(hidden, bins * 2, bias=False), nn.BatchNorm1d(bins * 2)

    def forward(self, x: Any) -> Any:
        b, c, samples = x.shape
        z = torch.stft(x.reshape(b * c, -1), self.n_fft, self.hop, window=self.window, return_complex=True)
        mix = z.abs().reshape(b, c, *z.shape[-2:]).permute(3, 0, 1, 2)
        frames, b, c, f = mix.shape
        y = ((mix + self.mean) * self.scale).reshape(-1, c * f)
        y = torch.tanh(self.norm(self.into(y))).reshape(frames, b, -1)
        y = torch.cat([y, self.lstm(y)[0]], -1)
        y = F.relu(self.mid_norm(self.mid(y.reshape(-1, y.shape[-1]))))
        y = F.relu(self.out_norm(self.out(y)).reshape(frames, b, c, f)) * mix
        z = y.permute(1, 2, 3, 0).reshape(b * c, f, -1) * torch.exp(1j * z.angle())
        return torch.istft(z, self.n_fft, self.hop, window=self.window, length=samples).reshape(b, c, samples)


def cumulative(x: Any) -> Any:
    """Divided by the mean over bands and the frames so far, which are counted in floats; [B, C, F, T]."""
    b, c, f, t = x.shape
    x = x.reshape(b * c, f, t)
    count = torch.arange(f, f * t + 1, f, dtype=x.dtype, device=x.device)
    total = x.sum(1).cumsum(-1)
    return (x / ((total / count.reshape(1, t).expand_as(total)).reshape(b * c, 1, t) + 1e-5)).reshape(b, c, f, t)


class FullAndSub(nn.Module):
    """All bands, then every band with its neighbours, cut out by a kernel as wide as the recording."""

    def __init__(self, n_fft: int = 32, near: int = 2, ahead: int = 2) -> None:
        super().__init__()
        self.n_fft, self.near, self.ahead, bins = n_fft, near, ahead, n_fft // 2 + 1
        self.register_buffer("window", torch.hann_window(n_fft))
        self.full, self.full_out = nn.LSTM(bins, 12, 2, batch_first=True), nn.Linear(12, bins)
        self.sub, self.sub_out = nn.LSTM(2 * near + 2, 8, 2, batch_first=True), nn.Linear(8, 2)

    def neighbourhood(self, x: Any) -> Any:
        b, _, f, t = x.shape
        wide = F.pad(x, (0, 0, self.near, self.near), mode="reflect")
        return F.unfold(wide, (2 * self.near + 1, t)).reshape(b, 2 * self.near + 1, t, f).permute(0, 3, 1, 2)

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, self.n_fft, self.n_fft // 2, window=self.window, return_complex=True)
        size = F.pad(z.abs().unsqueeze(1), (0, self.ahead))
        b, _, f, t = size.shape
        full = self.full_out(self.full(cumulative(size)[:, 0].transpose(1, 2))[0]).relu().transpose(1, 2)
        sub = cumulative(torch.cat([self.neighbourhood(size), full.reshape(b, f, 1, t)], 2)).reshape(b * f, -1, t)
        mask = self.sub_out(self.sub(sub.transpose(1, 2))[0]).reshape(b, f, t, 2)[:, :, self.ahead :].clamp(-9.9, 9.9)
        re, im = (-10 * torch.log((10 - mask) / (10 + mask))).unbind(-1)
        z = torch.complex(re * z.real - im * z.imag, im * z.real + re * z.imag)
        return torch.istft(z, self.n_fft, self.n_fft // 2, window=self.window, length=x.shape[-1])


class WrittenFilter(nn.Module):
    """Gains for bands by a GRU over bands and one over time; filters of several frames write the lower bins."""

    def __init__(self, n_fft: int = 32, order: int = 5, low: int = 6, ahead: int = 2) -> None:
        super().__init__()
        self.n_fft, self.order, self.low, self.ahead, bins = n_fft, order, low, ahead, n_fft // 2 + 1
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("bands", torch.rand(bins, 8))
        self.conv, self.time = nn.Conv2d(1, 4, 3, padding=(0, 1)), nn.GRU(32, 16, batch_first=True)
        self.across, self.across_out = nn.GRU(4, 4, batch_first=True, bidirectional=True), nn.Linear(8, 4)
        self.gain, self.taps = nn.Linear(16, 8), nn.Linear(16, low * order * 2)

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, self.n_fft, self.n_fft // 2, window=self.window, return_complex=True).transpose(1, 2)
        b, t, _ = z.shape
        energy = torch.log10((z.real.square() + z.imag.square()) @ self.bands + 1e-10) / 4
        h = F.relu(self.conv(F.pad(energy.unsqueeze(1), (0, 0, 2, 0))))
        rows = self.across(h.permute(0, 2, 3, 1).reshape(b * t, 8, 4))[0]
        h = h + self.across_out(rows).reshape(b, t, 8, 4).permute(0, 3, 1, 2)
        g = self.time(h.permute(0, 2, 1, 3).reshape(b, t, -1))[0]
        taps = torch.view_as_complex(self.taps(g).tanh().reshape(b, t, self.low, self.order, 2).contiguous())
        around = (0, 0, 0, 0, self.order - 1 - self.ahead, self.ahead)
        near = torch.view_as_complex(F.pad(torch.view_as_real(z[..., : self.low]), around).contiguous())
        out = z * (self.gain(g).sigmoid() @ self.bands.T)
        out[..., : self.low] = (near.unfold(1, self.order, 1) * taps).sum(-1)
        return torch.istft(out.transpose(1, 2), self.n_fft, self.n_fft // 2, window=self.window, length=x.shape[-1])


SOUND = (33, 64, 100, 333)
MASKERS: Modules = {
    "unmix": Case(lambda: Unmix(False), ((1, 2, 640),), (40, 64, 65, 333)),
    "unmix, both directions": Case(lambda: Unmix(True), ((1, 2, 640),), refused="it runs bidirectional over time"),
    "full and sub band, cumulative norms": Case(FullAndSub, ((1, 640),), SOUND),
    "filters written into a spectrum": Case(WrittenFilter, ((1, 640),), SOUND),
}
