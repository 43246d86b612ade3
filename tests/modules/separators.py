"""Enhancers, separators and beamformers."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules

SOUND = (129, 256, 600, 901)


class PolarMask(nn.Module):
    """A gain on magnitudes, the phase as it was, by torch.polar."""

    def __init__(self, win: int = 128, **options: Any) -> None:
        super().__init__()
        self.win, self.options = win, options
        self.register_buffer("window", torch.hann_window(win).sqrt())
        bins = 128 if options.get("onesided") is False else 65
        self.gru, self.gain = nn.GRU(bins, 32, batch_first=True), nn.Linear(32, bins)

    def forward(self, x: Any) -> Any:
        spec = torch.stft(x, 128, 32, self.win, self.window, return_complex=True, **self.options)
        mag, phase = torch.abs(spec), torch.angle(spec)
        mag = mag * torch.sigmoid(self.gain(self.gru(mag.transpose(1, 2))[0])).transpose(1, 2)
        spec = torch.polar(mag, phase)
        own = {k: v for k, v in self.options.items() if k != "pad_mode"}
        return torch.istft(spec, 128, 32, self.win, self.window, length=x.shape[-1], **own)


class Exponential(nn.Module):
    """A power law on magnitudes, the phase by exp(1j * phase); no length asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(65, 65, 3, padding=1)

    def forward(self, x: Any) -> Any:
        window = torch.hann_window(128).to(x.device)
        spec = torch.stft(x, n_fft=128, hop_length=64, window=window, return_complex=True)
        mag = spec.abs() ** 0.3
        phase = torch.angle(spec)
        mag = F.relu(mag + self.conv(mag))
        spec = mag ** (1 / 0.3) * torch.exp(1j * phase)
        return torch.istft(spec, n_fft=128, hop_length=64, window=window)


class ComplexConv(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.real = nn.Conv2d(a, b, (5, 2), (2, 1), (2, 0))
        self.imag = nn.Conv2d(a, b, (5, 2), (2, 1), (2, 0))

    def forward(self, z: Any) -> Any:
        re, im = F.pad(z.real, (1, 0)), F.pad(z.imag, (1, 0))
        return torch.complex(self.real(re) - self.imag(im), self.real(im) + self.imag(re))


class ComplexUNet(nn.Module):
    """Complex convolutions, a complex recurrence by two LSTMs, a mask by tanh of its magnitude."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(128))
        self.down = nn.ModuleList([ComplexConv(1, 4), ComplexConv(4, 8)])
        self.re, self.im = nn.LSTM(128, 32, batch_first=True), nn.LSTM(128, 32, batch_first=True)
        self.out_re, self.out_im = nn.Linear(32, 65), nn.Linear(32, 65)

    def forward(self, x: Any) -> Any:
        spec = torch.stft(x, 128, 64, window=self.window, return_complex=True)
        z = spec.unsqueeze(1)[:, :, 1:]
        for layer in self.down:
            z = layer(z)
            z = torch.view_as_complex(F.leaky_relu(torch.view_as_real(z), 0.2))
        b, c, f, t = z.shape
        z = z.permute(0, 3, 1, 2).reshape(b, t, c * f)
        re = self.re(z.real)[0] - self.im(z.imag)[0]
        im = self.re(z.imag)[0] + self.im(z.real)[0]
        mask = torch.complex(self.out_re(re), self.out_im(im)).transpose(1, 2)
        size = mask.abs()
        mask = mask / (size + 1e-8) * torch.tanh(size)
        return torch.istft(spec * mask, 128, 64, window=self.window, length=x.size(-1))


class Block(nn.Module):
    def __init__(self, channels: int, dilation: int, norm: Any) -> None:
        super().__init__()
        self.open, self.close = nn.Conv1d(channels, 2 * channels, 1), nn.Conv1d(2 * channels, channels, 1)
        self.depth = nn.Conv1d(2 * channels, 2 * channels, 3, dilation=dilation, padding=dilation, groups=2 * channels)
        self.act, self.norm = nn.PReLU(), norm(2 * channels)

    def forward(self, x: Any) -> Any:
        return x + self.close(self.depth(self.norm(self.act(self.open(x)))))


class Cumulative(nn.Module):
    """Layer norm over channels and all frames so far."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(1, channels, 1)), nn.Parameter(torch.zeros(1, channels, 1))

    def forward(self, x: Any) -> Any:
        _, c, t = x.size()
        total, power = x.sum(1).cumsum(-1), x.pow(2).sum(1).cumsum(-1)
        count = torch.arange(c, c * (t + 1), c, device=x.device, dtype=x.dtype).view(1, -1)
        mean = total / count
        var = (power - 2 * mean * total) / count + mean.pow(2)
        return (x - mean.unsqueeze(1)) / (var.unsqueeze(1) + 1e-5).sqrt() * self.gain + self.bias


class TimeDomain(nn.Module):
    """A learnt filter bank, dilated blocks, a mask per source, and back."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, 24, 16, stride=8, bias=False)
        self.blocks = nn.ModuleList([Block(24, 2**i, norm) for i in range(3)])
        self.mask = nn.Conv1d(24, 48, 1)
        self.decode = nn.ConvTranspose1d(24, 1, 16, stride=8, bias=False)

    def forward(self, mix: Any) -> Any:
        w = F.relu(self.encode(mix.unsqueeze(1)))
        y = w
        for block in self.blocks:
            y = block(y)
        b, n, k = w.shape
        masks = F.relu(self.mask(y)).view(b, 2, n, k)
        sound = self.decode((w.unsqueeze(1) * masks).view(b * 2, n, k)).view(b, 2, -1)
        return F.pad(sound, (0, mix.shape[-1] - sound.shape[-1]))


class WaveUNet(nn.Module):
    """Strided convolutions down and up with skips; the input padded so that every stride fits."""

    def __init__(self, depth: int = 3, hidden: int = 8) -> None:
        super().__init__()
        self.depth, self.stride = depth, 2
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels = 1
        for i in range(depth):
            wide = hidden * 2**i
            self.down.append(
                nn.Sequential(nn.Conv1d(channels, wide, 4, 2), nn.ReLU(), nn.Conv1d(wide, 2 * wide, 1), nn.GLU(1))
            )
            back = nn.Sequential(nn.Conv1d(wide, 2 * wide, 1), nn.GLU(1), nn.ConvTranspose1d(wide, channels, 4, 2))
            self.up.insert(0, back)
            channels = wide
        self.lstm = nn.LSTM(channels, channels, 1)

    def valid(self, length: Any) -> Any:
        for _ in range(self.depth):
            length = math.ceil((length - 4) / self.stride) + 1
            length = max(length, 1)
        for _ in range(self.depth):
            length = (length - 1) * self.stride + 4
        return length

    def forward(self, mix: Any) -> Any:
        length = mix.shape[-1]
        x = F.pad(mix, (0, self.valid(length) - length))
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        x = self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)
        for layer in self.up:
            skip = skips.pop(-1)
            x = layer(x + skip[..., : x.shape[-1]])
        return x[..., :length]


class WaveUNetByInt(WaveUNet):
    """The same, with the length as a number of Python."""

    def valid(self, length: Any) -> Any:
        return int(super().valid(length))


class ComplexLayers(nn.Module):
    """Complex weights: a linear layer, a parameter, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(33, 33, dtype=torch.complex64)
        self.gain = nn.Parameter(torch.randn(33, dtype=torch.complex64))
        self.register_buffer("turn", torch.exp(1j * torch.linspace(0, 3, 33)))

    def forward(self, x: Any) -> Any:
        frames = x.unfold(-1, 64, 64)
        z = torch.fft.rfft(frames)
        z = self.mix(z) * self.gain + z * self.turn.conj()
        return torch.fft.irfft(z, n=64).flatten(1)


class Beamformer(nn.Module):
    """Fixed complex weights per bin over channels, and a post filter from the channels' coherence."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(128))
        self.weights = nn.Parameter(torch.view_as_real(torch.randn(65, 4, dtype=torch.complex64)))

    def forward(self, x: Any) -> Any:  # [B, C, T]
        b, c, t = x.shape
        z = torch.stft(x.reshape(-1, t), 128, 64, window=self.window, return_complex=True).view(b, c, 65, -1)
        w = torch.view_as_complex(self.weights)
        y = torch.einsum("fc,bcft->bft", w.conj(), z)
        cross = (z[:, 0] * z[:, 1].conj()).abs() / (z[:, 0].abs() * z[:, 1].abs() + 1e-6)
        return torch.istft(y * cross, 128, 64, window=self.window, length=t)


class Covariance(nn.Module):
    """Averages of spatial covariances over all frames so far, applied to the frame."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Conv1d(17, 17, 3, padding=1)

    def forward(self, x: Any) -> Any:  # [B, 2, T]
        frames = x.unfold(-1, 32, 16)  # [B, 2, N, 32]
        z = torch.fft.rfft(frames, dim=-1).permute(0, 3, 2, 1)  # [B, F, N, 2]
        mask = torch.sigmoid(self.mask(z[..., 0].abs()))[..., None, None]
        outer = torch.matmul(z.unsqueeze(-1), z.unsqueeze(-2).conj()) * mask
        total = torch.cumsum(outer, dim=2)
        norm = torch.diagonal(total, dim1=-2, dim2=-1).sum(-1).real[..., None, None] + 1e-3
        y = torch.matmul(total / norm, z.unsqueeze(-1)).squeeze(-1)
        return torch.view_as_real(y).flatten(3)


class BandSplit(nn.Module):
    """A layer per band in a loop of Python over bands, an LSTM over time per band, masks per band."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = [5, 10, 20, 30]
        self.into = nn.ModuleList([nn.Sequential(nn.LayerNorm(2 * w), nn.Linear(2 * w, 16)) for w in self.widths])
        self.time, self.band = nn.LSTM(16, 16, batch_first=True), nn.LSTM(16, 8, batch_first=True, bidirectional=True)
        self.out = nn.ModuleList([nn.Linear(16, 2 * w) for w in self.widths])

    def forward(self, x: Any) -> Any:
        window = torch.hann_window(128)
        spec = torch.stft(x, 128, 32, window=window, return_complex=True)
        parts, start = [], 0
        for layer, w in zip(self.into, self.widths, strict=True):
            band = torch.view_as_real(spec[:, start : start + w])
            parts.append(layer(band.permute(0, 2, 1, 3).reshape(x.size(0), -1, 2 * w)))
            start += w
        z = torch.stack(parts, 1)
        b, k, t, n = z.shape
        z = z + self.time(z.view(b * k, t, n))[0].view(b, k, t, n)
        z = z + self.band(z.transpose(1, 2).reshape(b * t, k, n))[0].reshape(b, t, k, n).transpose(1, 2)
        masks = [layer(z[:, i]).view(b, t, -1, 2).transpose(1, 2) for i, layer in enumerate(self.out)]
        mask = torch.view_as_complex(torch.cat(masks, 1).contiguous())
        return torch.istft(mask * spec, 128, 32, window=window, length=x.shape[-1])


class Subtraction(nn.Module):
    """The noise is the mean of the first six frames."""

    def forward(self, x: Any) -> Any:
        window = torch.hann_window(128)
        spec = torch.stft(x, 128, 64, window=window, center=False, return_complex=True)
        mag = spec.abs()
        noise = mag[:, :, :6].mean(-1, keepdim=True)
        gain = torch.clamp(1 - 1.5 * noise / (mag + 1e-7), min=0.1)
        return (spec * gain).abs()


class Rounds(nn.Module):
    """Phases from magnitudes by going there and back, three times."""

    def forward(self, mag: Any) -> Any:  # [B, 33, T]
        window = torch.hann_window(64)
        spec = torch.complex(mag, torch.zeros_like(mag))
        for _ in range(3):
            wave = torch.istft(spec, 64, 16, window=window)
            again = torch.stft(wave, 64, 16, window=window, return_complex=True)
            spec = mag * again / (again.abs() + 1e-3)
        return torch.istft(spec, 64, 16, window=window)


class OverlapAdd(nn.Module):
    """Windows by hand: unfold, rfft, a gain, irfft, F.fold."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(33))
        self.register_buffer("window", torch.hann_window(64).sqrt())

    def forward(self, x: Any) -> Any:
        frames = F.pad(x, (48, 48)).unfold(-1, 64, 16) * self.window
        frames = torch.fft.irfft(torch.fft.rfft(frames, norm="ortho") * self.gain, norm="ortho") * self.window
        size = (frames.shape[1] - 1) * 16 + 64
        y = F.fold(frames.transpose(1, 2), (1, size), (1, 64), stride=(1, 16))
        return y[:, 0, 0, 48:-48] / 2


class ComplexAttention(nn.Module):
    """Attention between the bins of each frame, with complex queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat) * 0.3)
        self.k = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat) * 0.3)

    def forward(self, x: Any) -> Any:  # [B, T, F, 8, 2]
        z = torch.view_as_complex(x)
        scores = (z @ self.q) @ (z @ self.k).mH
        weights = torch.softmax(scores.abs() / 8**0.5, -1)
        return torch.view_as_real(weights.to(z.dtype) @ z)


def layer_norm(channels: int) -> Any:
    return nn.GroupNorm(1, channels)


SEPARATORS: Modules = {
    "polar mask": Case(PolarMask, ((1, 4000),), SOUND),
    "polar mask, short window": Case(lambda: PolarMask(96, normalized=True), ((1, 4000),), SOUND),
    "polar mask, two-sided": Case(lambda: PolarMask(onesided=False), ((1, 4000),), SOUND),
    "exponential": Case(Exponential, ((1, 4000),), SOUND),
    "complex u-net": Case(ComplexUNet, ((1, 4000),), SOUND),
    "time domain, cumulative": Case(lambda: TimeDomain(Cumulative), ((1, 2000),), (16, 100, 333)),
    "time domain, global": Case(lambda: TimeDomain(layer_norm), ((1, 2000),), refused="norm"),
    "wave u-net": Case(WaveUNet, ((1, 1, 1000),), (15, 40, 333)),
    "wave u-net, int of a length": Case(
        WaveUNetByInt, ((1, 1, 1000),), refused=r"modules/separators\.py:\d+, in WaveUNetByInt\.valid.*reads a size"
    ),
    "complex layers": Case(ComplexLayers, ((1, 2048),), (64, 200, 333)),
    "beamformer": Case(Beamformer, ((1, 4, 4000),), SOUND),
    "covariance": Case(Covariance, ((1, 2, 1000),), (32, 100, 333), {"time": {"x": 2}}),
    "band split": Case(BandSplit, ((1, 4000),), SOUND),
    "subtraction": Case(Subtraction, ((1, 4000),), (448, 600, 901), {"set": {"T": "448+n"}}),
    "rounds": Case(Rounds, ((1, 33, 60),), (4, 9, 30)),
    "overlap-add": Case(OverlapAdd, ((1, 1000),), (20, 100, 333)),
    "complex attention": Case(ComplexAttention, ((1, 40, 5, 8, 2),), options={"time": {"x": 1}}),
}
