"""Stand-ins: networks of the structure of published ones, written anew."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class KeywordSpotter(nn.Module):
    """Spectrum, mel bands, a convolution, a GRU, classes per frame."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("mel", torch.rand(257, 40))
        self.conv = nn.Conv1d(40, 64, 3, padding=1)
        self.gru = nn.GRU(64, 64, batch_first=True)
        self.out = nn.Linear(64, 12)

    def forward(self, x: Any) -> Any:
        spec = torch.stft(x, 512, 160, 400, self.window, return_complex=True)
        mel = torch.log(spec.abs().pow(2).transpose(1, 2) @ self.mel + 1e-6)
        hidden = F.relu(self.conv(mel.transpose(1, 2))).transpose(1, 2)
        hidden, _ = self.gru(hidden)
        return self.out(hidden).softmax(-1)


class MaskEnhancer(nn.Module):
    """Complex masks from an LSTM, back to as many samples."""

    def __init__(self, n_fft: int = 320, hop: int = 160, hidden: int = 128) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.rnn = nn.LSTM(n_fft // 2 + 1, hidden, 2, batch_first=True)
        self.mask = nn.Linear(hidden, 2 * (n_fft // 2 + 1))

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, self.n_fft, self.hop, window=self.window, return_complex=True)
        hidden, _ = self.rnn(torch.log1p(z.abs()).transpose(1, 2))
        real, imag = torch.tanh(self.mask(hidden)).transpose(1, 2).chunk(2, 1)
        return torch.istft(z * torch.complex(real, imag), self.n_fft, self.hop, window=self.window, length=x.shape[-1])


class DualPath(nn.Module):
    """A GRU over bands in every frame, and one over time in every band."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.intra = nn.GRU(channels, channels // 2, batch_first=True, bidirectional=True)
        self.intra_out = nn.Linear(channels, channels)
        self.intra_norm = nn.LayerNorm(channels)
        self.inter = nn.GRU(channels, channels, batch_first=True)
        self.inter_out = nn.Linear(channels, channels)
        self.inter_norm = nn.LayerNorm(channels)

    def forward(self, x: Any) -> Any:  # [B, C, T, F]
        b, c, t, f = x.shape
        y = x.permute(0, 2, 3, 1)
        rows = y.reshape(b * t, f, c)
        y = y + self.intra_norm(self.intra_out(self.intra(rows)[0])).reshape(b, t, f, c)
        columns = y.permute(0, 2, 1, 3).reshape(b * f, t, c)
        z = self.inter_norm(self.inter_out(self.inter(columns)[0])).reshape(b, f, t, c)
        y = y + z.permute(0, 2, 1, 3)
        return y.permute(0, 3, 1, 2)


class DeepFilter(nn.Module):
    """Complex filters of several frames for the lower bins, a gain for bands of all."""

    def __init__(self, order: int = 5, bins: int = 64, n_fft: int = 320, hop: int = 160, bands: int = 32) -> None:
        super().__init__()
        self.order, self.bins, self.n_fft, self.hop = order, bins, n_fft, hop
        total = n_fft // 2 + 1
        self.register_buffer("window", torch.from_numpy(np.sqrt(np.hanning(n_fft + 1)[:-1]).astype("float32")))
        self.register_buffer("bands", torch.rand(total, bands) / total)
        self.register_buffer("bands_back", torch.rand(bands, total) / bands)
        self.erb_conv = nn.Conv2d(1, 16, (3, 3), padding=(0, 1))
        self.df_conv = nn.Conv2d(2, 16, (3, 3), padding=(0, 1))
        self.erb_path, self.df_path = DualPath(16), DualPath(16)
        self.gains = nn.Conv2d(16, 1, 1)
        self.coefficients = nn.Conv2d(16, 2 * order, 1)
        self.alpha = nn.Linear(16 * bins, 1)

    def forward(self, x: Any) -> Any:
        spec = torch.stft(x, self.n_fft, self.hop, window=self.window, return_complex=True).transpose(1, 2)
        power = spec.real.square() + spec.imag.square()
        erb = 10 * torch.log10(power @ self.bands + 1e-10)[:, None]
        low = torch.view_as_real(spec[:, :, : self.bins]).permute(0, 3, 1, 2)
        erb = self.erb_path(F.relu(self.erb_conv(F.pad(erb, (0, 0, 2, 0)))))
        low = self.df_path(F.relu(self.df_conv(F.pad(low, (0, 0, 2, 0)))))
        gain = torch.sigmoid(self.gains(erb))[:, 0] @ self.bands_back
        b, _, t, f = low.shape
        taps = torch.tanh(self.coefficients(low)).view(b, self.order, 2, t, f).permute(0, 1, 3, 4, 2)
        taps = torch.view_as_complex(taps.contiguous())
        alpha = torch.sigmoid(self.alpha(low.permute(0, 2, 1, 3).flatten(2)))
        padded = F.pad(torch.view_as_real(spec[..., : self.bins]), (0, 0, 0, 0, self.order - 1, 0))
        frames = torch.view_as_complex(padded).unfold(1, self.order, 1)
        filtered = torch.einsum("btfk,bktf->btf", frames, taps)
        masked = spec * gain
        masked = torch.cat([filtered * alpha + masked[..., : self.bins] * (1 - alpha), masked[..., self.bins :]], -1)
        return torch.istft(masked.transpose(1, 2), self.n_fft, self.hop, window=self.window, length=x.shape[-1])


class HybridSeparator(nn.Module):
    """A waveform branch and a spectral one, LSTMs with a memory they share, several sources."""

    def __init__(self, sources: int = 4, n_fft: int = 512, hop: int = 256, hidden: int = 128) -> None:
        super().__init__()
        self.sources, self.n_fft, self.hop = sources, n_fft, hop
        bins = n_fft // 2 + 1
        self.register_buffer("window", torch.hann_window(n_fft))
        self.encode = nn.Conv1d(2, hidden, n_fft, stride=hop, padding=n_fft // 2)
        self.wave_in, self.spec_in = (
            nn.LSTM(hidden, hidden, batch_first=True),
            nn.LSTM(2 * bins, hidden, batch_first=True),
        )
        self.shared = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.wave_mask = nn.Linear(2 * hidden, sources * hidden)
        self.spec_mask = nn.Linear(2 * hidden, sources * 2 * bins)
        self.decode = nn.ConvTranspose1d(hidden, 2, n_fft, stride=hop, padding=n_fft // 2)

    def forward(self, x: Any) -> Any:  # [B, 2, T]
        b, c, t = x.shape
        z = torch.stft(x.reshape(b * c, t), self.n_fft, self.hop, window=self.window, return_complex=True)
        z = z.reshape(b, c, *z.shape[1:])
        wave = self.encode(x)
        spec = z.abs().flatten(1, 2)
        frames = wave.shape[-1]
        wave_hidden, _ = self.wave_in(wave.transpose(1, 2))
        spec_hidden, _ = self.spec_in(spec.transpose(1, 2))
        shared, _ = self.shared(torch.cat([wave_hidden, spec_hidden], -1))
        wave_mask = torch.relu(self.wave_mask(torch.cat([wave_hidden, shared], -1)))
        spec_mask = torch.sigmoid(self.spec_mask(torch.cat([spec_hidden, shared], -1)))
        wave_mask = wave_mask.view(b, frames, self.sources, -1).permute(0, 2, 3, 1)
        spec_mask = spec_mask.view(b, frames, self.sources, c, -1).permute(0, 2, 3, 4, 1)
        waves = self.decode((wave[:, None] * wave_mask).flatten(0, 1))
        spectra = (z[:, None] * spec_mask).flatten(0, 2)
        sound = torch.istft(spectra, self.n_fft, self.hop, window=self.window)
        waves = waves.reshape(b, self.sources, c, -1)
        return waves + sound.reshape(b, self.sources, c, -1)


class FullSubBand(nn.Module):
    """A network over all bands, one over every band with its neighbours; a compressed complex mask; looking ahead."""

    def __init__(self, n_fft: int = 256, hop: int = 128, neighbours: int = 7, look_ahead: int = 2) -> None:
        super().__init__()
        self.n_fft, self.hop, self.neighbours, self.look_ahead = n_fft, hop, neighbours, look_ahead
        bins = n_fft // 2 + 1
        self.full = nn.LSTM(bins, 128, 2, batch_first=True)
        self.full_out = nn.Linear(128, bins)
        self.sub = nn.LSTM(2 * neighbours + 2, 48, 2, batch_first=True)
        self.sub_out = nn.Linear(48, 2)

    def neighbourhood(self, x: Any) -> Any:  # [B, 1, F, T] -> [B, F, 2n+1, T]
        padded = F.pad(x, (0, 0, self.neighbours, self.neighbours), mode="reflect")
        bands = padded.unfold(2, 2 * self.neighbours + 1, 1)
        return bands.squeeze(1).permute(0, 1, 3, 2)

    def forward(self, wave: Any) -> Any:
        spec = torch.stft(
            wave, self.n_fft, self.hop, window=torch.hann_window(self.n_fft, device=wave.device), return_complex=True
        )
        mag = F.pad(spec.abs(), (0, self.look_ahead))[:, None]
        b, _, f, t = mag.shape
        full = torch.relu(self.full_out(self.full(mag[:, 0].transpose(1, 2))[0])).transpose(1, 2)[:, None]
        sub = torch.cat([self.neighbourhood(mag), full.permute(0, 2, 1, 3)], 2)
        sub = sub.reshape(b * f, 2 * self.neighbours + 2, t).transpose(1, 2)
        mask = self.sub_out(self.sub(sub)[0]).reshape(b, f, t, 2)[:, :, self.look_ahead :]
        mask = -10 * torch.log((10 - mask.clamp(-9.9, 9.9)) / (10 + mask.clamp(-9.9, 9.9)))
        real = mask[..., 0] * spec.real - mask[..., 1] * spec.imag
        imag = mask[..., 1] * spec.real + mask[..., 0] * spec.imag
        out = torch.complex(real, imag)
        return torch.istft(out, self.n_fft, self.hop, window=torch.hann_window(self.n_fft), length=wave.size(-1))


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 3 * channels), nn.Linear(3 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.3))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).transpose(1, 2))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).transpose(1, 2)


class SpectralVocoder(nn.Module):
    """ConvNeXt blocks over mel bands, magnitude and phase, an inverse transform padded to "same"."""

    def __init__(self, padding: str, blocks: int = 4, n_fft: int = 256, hop: int = 64) -> None:
        super().__init__()
        self.padding, self.n_fft, self.hop = padding, n_fft, hop
        self.embed = nn.Conv1d(40, 96, 7, padding=3)
        self.blocks = nn.ModuleList([ConvNeXt(96) for _ in range(blocks)])
        self.norm = nn.LayerNorm(96, eps=1e-6)
        self.out = nn.Linear(96, n_fft + 2)
        self.register_buffer("window", torch.hann_window(n_fft))

    def same(self, spec: Any) -> Any:
        pad = (self.n_fft - self.hop) // 2
        frames = torch.fft.irfft(spec, self.n_fft, dim=1, norm="backward") * self.window[None, :, None]
        size = (spec.shape[-1] - 1) * self.hop + self.n_fft
        y = F.fold(frames, output_size=(1, size), kernel_size=(1, self.n_fft), stride=(1, self.hop))[:, 0, 0, pad:-pad]
        square = self.window.square().expand(1, spec.shape[-1], -1).transpose(1, 2)
        weight = F.fold(square, output_size=(1, size), kernel_size=(1, self.n_fft), stride=(1, self.hop))
        return y / weight.squeeze()[pad:-pad]

    def forward(self, mel: Any) -> Any:
        x = self.embed(mel)
        for block in self.blocks:
            x = block(x)
        magnitude, phase = self.out(self.norm(x.transpose(1, 2))).transpose(1, 2).chunk(2, dim=1)
        magnitude = torch.clip(torch.exp(magnitude), max=1e2)
        spec = magnitude * (torch.cos(phase) + 1j * torch.sin(phase))
        if self.padding == "center":
            return torch.istft(spec, self.n_fft, self.hop, self.n_fft, self.window, center=True)
        return self.same(spec)


def low_pass(cutoff: float, half_width: float, taps: int) -> Any:
    """A Kaiser-windowed sinc."""
    amplitude = 2.285 * (taps // 2 - 1) * math.pi * 4 * half_width + 7.95
    beta = (
        0.1102 * (amplitude - 8.7) if amplitude > 50 else 0.5842 * (amplitude - 21) ** 0.4 + 0.07886 * (amplitude - 21)
    )
    time = torch.arange(-taps // 2, taps // 2) + 0.5
    kernel = 2 * cutoff * torch.kaiser_window(taps, periodic=False, beta=beta) * torch.sinc(2 * cutoff * time)
    return (kernel / kernel.sum())[None, None]


class Snake(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Any) -> Any:
        alpha, beta = self.alpha[None, :, None].exp(), self.beta[None, :, None].exp()
        return x + torch.sin(x * alpha).pow(2) / (beta + 1e-9)


class AntiAliased(nn.Module):
    """Twice the rate, an activation, and back, by filters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.act, self.channels = Snake(channels), channels
        self.register_buffer("filter", low_pass(0.25, 0.3, 12))

    def forward(self, x: Any) -> Any:
        x = F.pad(x, (5, 5), mode="replicate")
        kernel = self.filter.expand(self.channels, -1, -1)
        x = 2 * F.conv_transpose1d(x, kernel, stride=2, groups=self.channels)[..., 15:-15]
        x = F.pad(self.act(x), (5, 6), mode="replicate")
        return F.conv1d(x, kernel, stride=2, groups=self.channels)


class AmpBlock(nn.Module):
    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...] = (1, 3, 5)) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = nn.ModuleList(
            [norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel // 2))) for d in dilations]
        )
        self.second = nn.ModuleList(
            [norm(nn.Conv1d(channels, channels, kernel, padding=kernel // 2)) for _ in dilations]
        )
        self.acts = nn.ModuleList([AntiAliased(channels) for _ in range(2 * len(dilations))])

    def forward(self, x: Any) -> Any:
        for one, two, before, after in zip(self.first, self.second, self.acts[::2], self.acts[1::2], strict=True):
            x = x + two(after(one(before(x))))
        return x


class AmpVocoder(nn.Module):
    """Transposed convolutions, three residual stacks a stage, periodic activations between resampling filters."""

    def __init__(self, channels: int = 512, rates: tuple[int, ...] = (8, 8, 2, 2), bands: int = 80) -> None:
        super().__init__()
        self.pre = nn.Conv1d(bands, channels, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for i, rate in enumerate(rates):
            a, b = channels >> i, channels >> (i + 1)
            self.ups.append(nn.ConvTranspose1d(a, b, 2 * rate, rate, padding=rate // 2))
            self.blocks.append(nn.ModuleList([AmpBlock(b, k) for k in (3, 7, 11)]))
        last = channels >> len(rates)
        self.act, self.post = AntiAliased(last), nn.Conv1d(last, 1, 7, padding=3, bias=False)

    def forward(self, mel: Any) -> Any:
        x = self.pre(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(x)
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.clamp(self.post(self.act(x)), -1.0, 1.0)


class PlainGru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(40, 64, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return self.out(self.gru(x)[0])


SOUND = (161, 320, 1000, 1777)
PUBLISHED: Modules = {
    "keyword spotter": Case(KeywordSpotter, ((1, 8000),), (257, 400, 1000, 1777)),
    "mask enhancer": Case(MaskEnhancer, ((1, 16000),), SOUND),
    "deep filter": Case(DeepFilter, ((1, 16000),), SOUND),
    "hybrid separator": Case(HybridSeparator, ((1, 2, 16000),), (257, 512, 1500, 2000)),
    "full and sub band": Case(FullSubBand, ((1, 8000),), (129, 256, 1000, 1500)),
    "vocoder, centred": Case(lambda: SpectralVocoder("center"), ((1, 40, 100),), (2, 5, 30, 41)),
    "vocoder, same": Case(lambda: SpectralVocoder("same"), ((1, 40, 100),), (1, 2, 5, 30, 41)),
    "plain gru": Case(PlainGru, ((1, 1000, 40),), (1, 2, 17, 50)),
    "periodic vocoder, small": Case(lambda: AmpVocoder(16, (4,), 20), ((1, 20, 40),), (1, 2, 5, 12)),
    "periodic vocoder": Case(AmpVocoder, ((1, 80, 64),), (1, 5), large=True),
}
