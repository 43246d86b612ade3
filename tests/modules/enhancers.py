"""Speech enhancement and separation, as users write it."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules


class Spectral(nn.Module):
    """A window, and both transforms."""

    def __init__(self, n_fft: int = 128, hop: int = 64) -> None:
        super().__init__()
        self.n_fft, self.hop, self.bins = n_fft, hop, n_fft // 2 + 1
        self.register_buffer("window", torch.hann_window(n_fft))

    def analyse(self, x: Any) -> Any:
        return torch.stft(x, self.n_fft, self.hop, self.n_fft, self.window, return_complex=True)

    def synthesise(self, z: Any, length: Any = None) -> Any:
        return torch.istft(z, self.n_fft, self.hop, self.n_fft, self.window, length=length)


class PhaseKept(Spectral):
    """A mask on the magnitude, the phase by an exponential."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc = nn.GRU(self.bins, 32, batch_first=True), nn.Linear(32, self.bins)

    def forward(self, x: Any) -> Any:
        z = self.analyse(x)
        mag, phase = z.abs(), z.angle()
        mask = torch.sigmoid(self.fc(self.gru(mag.transpose(1, 2))[0])).transpose(1, 2)
        return self.synthesise(mag * mask * torch.exp(1j * phase), x.shape[-1])


class PolarBack(Spectral):
    def forward(self, x: Any) -> Any:
        z = self.analyse(x)
        level = torch.log1p(z.abs())
        return self.synthesise(torch.polar(torch.expm1(level * 0.8), z.angle()))


class ComplexConv(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.re, self.im = nn.Conv2d(a, b, (3, 2), (2, 1), (1, 0)), nn.Conv2d(a, b, (3, 2), (2, 1), (1, 0))

    def forward(self, z: Any) -> Any:
        z = torch.complex(F.pad(z.real, (1, 0)), F.pad(z.imag, (1, 0)))
        return torch.complex(self.re(z.real) - self.im(z.imag), self.re(z.imag) + self.im(z.real))


class ComplexRecurrent(Spectral):
    """Complex convolutions and an LSTM for each part, a complex ratio mask."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = ComplexConv(1, 4), ComplexConv(4, 8)
        self.real, self.imag = nn.LSTM(8 * 17, 24, batch_first=True), nn.LSTM(8 * 17, 24, batch_first=True)
        self.out = nn.Linear(24, self.bins, dtype=torch.complex64)

    def forward(self, x: Any) -> Any:
        z = self.analyse(x)
        h = self.two(self.one(z[:, None]))
        h = h.flatten(1, 2).transpose(1, 2)
        re = self.real(h.real)[0] - self.imag(h.imag)[0]
        im = self.real(h.imag)[0] + self.imag(h.real)[0]
        mask = self.out(torch.complex(re, im)).transpose(1, 2)
        mask = torch.tanh(mask.abs()) * torch.exp(1j * mask.angle())
        return self.synthesise(z * mask, length=x.size(1))


class CausalNorm(nn.Module):
    """Over channels of every frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Any) -> Any:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class TasNet(nn.Module):
    """Learned frames, a causal dilated network, masks, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, 32, 16, stride=8, bias=False)
        self.blocks = nn.ModuleList()
        for i in range(4):
            conv = nn.Conv1d(32, 32, 3, dilation=2**i, groups=32)
            self.blocks.append(
                nn.Sequential(nn.Conv1d(32, 32, 1), nn.PReLU(), CausalNorm(32), conv, nn.Conv1d(32, 32, 1))
            )
        self.mask = nn.Conv1d(32, 64, 1)
        self.decoder = nn.ConvTranspose1d(32, 1, 16, stride=8, bias=False)

    def forward(self, x: Any) -> Any:
        w = F.relu(self.encoder(x.unsqueeze(1)))
        y = w
        for i, block in enumerate(self.blocks):
            y = y + block(F.pad(y, (2 * 2**i, 0)))
        masks = torch.sigmoid(self.mask(y)).view(w.shape[0], 2, 32, -1)
        out = self.decoder((w.unsqueeze(1) * masks).flatten(0, 1))
        return out.view(w.shape[0], 2, -1)


class WaveUnet(nn.Module):
    """Strided convolutions with gates, an LSTM between, and skips on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv1d(c, 16, 8, 4) for c in (1, 8)])
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True)
        self.up = nn.ModuleList([nn.ConvTranspose1d(4, c, 8, 4) for c in (8, 1)])
        self.gate = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        y, skips = x[:, None], []
        for down in self.down:
            y = F.glu(down(y), 1)
            skips.append(y)
        y = self.lstm(y.transpose(1, 2))[0].transpose(1, 2)
        for up, gate in zip(self.up, self.gate, strict=True):
            skip = skips.pop()
            y = y + skip[..., : y.shape[-1]]
            y = up(F.glu(gate(y), 1))
        return y[:, 0]


class CrnUnet(Spectral):
    """2-D convolutions over bands and time, an LSTM at the bottom."""

    def __init__(self) -> None:
        super().__init__(n_fft=126, hop=63)
        self.down = nn.ModuleList([nn.Conv2d(a, b, (2, 4), (1, 2), (0, 1)) for a, b in ((1, 6), (6, 8))])
        self.norms = nn.ModuleList([nn.BatchNorm2d(c) for c in (6, 8)])
        self.rnn = nn.LSTM(8 * 16, 8 * 16, batch_first=True)
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * a, b, (2, 4), (1, 2), (0, 1)) for a, b in ((8, 6), (6, 1))])

    def forward(self, x: Any) -> Any:
        z = self.analyse(x)
        y = z.abs().transpose(1, 2)[:, None]
        skips = []
        for conv, norm in zip(self.down, self.norms, strict=True):
            y = F.elu(norm(conv(F.pad(y, (0, 0, 1, 0)))))
            skips.append(y)
        b, c, t, f = y.shape
        h = self.rnn(y.permute(0, 2, 1, 3).reshape(b, t, c * f))[0]
        y = h.reshape(b, t, c, f).permute(0, 2, 1, 3)
        for conv in self.up:
            y = conv(torch.cat([y, skips.pop()], 1))[:, :, :-1]
        mask = torch.sigmoid(y[:, 0]).transpose(1, 2)
        return self.synthesise(z * mask, x.shape[-1]), mask


class LowCut(Spectral):
    """Bins written in place."""

    def forward(self, x: Any) -> Any:
        z = self.analyse(x).clone()
        z[:, :3] = 0
        z[:, 3:6] *= 0.5
        z[:, -1, :] = z[:, -1, :].real + 0j
        return self.synthesise(z, x.shape[-1])


class Gate(Spectral):
    def forward(self, x: Any) -> Any:
        z = self.analyse(x)
        return self.synthesise(torch.where(z.abs() > 1.0, z, 0.1 * z), x.shape[-1])


class Beamformer(Spectral):
    """Complex weights for every bin and microphone, learned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.bins, 3, dtype=torch.complex64) / 3)

    def forward(self, x: Any) -> Any:  # [B, M, T]
        b, m, t = x.shape
        z = self.analyse(x.reshape(-1, t)).unflatten(0, (b, m))
        return self.synthesise(torch.einsum("bmft,fm->bft", z, self.weight.conj()), length=t)


class MaskBeamformer(Spectral):
    """Steered by masks frame by frame: a covariance of neighbours in frequency, one power iteration."""

    def forward(self, x: Any) -> Any:
        b, m, t = x.shape
        z = self.analyse(x.reshape(b * m, t)).reshape(b, m, self.bins, -1).permute(0, 2, 3, 1)
        cov = z.unsqueeze(-1) * z.conj().unsqueeze(-2)
        cov = cov + F.pad(cov, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1]
        v = torch.matmul(cov, torch.ones(m, 1, dtype=torch.complex64))
        v = v / (torch.linalg.vector_norm(v, dim=-2, keepdim=True) + 1e-3)
        y = (v.mH @ z.unsqueeze(-1)).squeeze(-1).squeeze(-1)
        return self.synthesise(y, t)


class Wiener(Spectral):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.rand(65, 1))

    def forward(self, x: Any) -> Any:
        z = self.analyse(x)
        power = (z * z.conj()).real
        return self.synthesise(z * (power / (power + self.noise)), x.shape[-1])


class ShortWindow(nn.Module):
    """win_length below n_fft, no length given back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(65, 65)

    def forward(self, x: Any) -> Any:
        options = {"n_fft": 128, "hop_length": 40, "win_length": 100, "window": torch.hann_window(100)}
        z = torch.stft(x, **options, return_complex=True)
        gain = torch.sigmoid(self.fc(z.abs().mT)).mT
        return torch.istft(z * gain, **options)


class ByHand(nn.Module):
    """Frames, a transform, and overlap-add by F.fold."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64).sqrt())
        self.gru, self.fc = nn.GRU(33, 16, batch_first=True), nn.Linear(16, 33)

    def forward(self, x: Any) -> Any:
        frames = F.pad(x, (48, 0)).unfold(1, 64, 16) * self.window
        z = torch.fft.rfft(frames)
        z = z * torch.sigmoid(self.fc(self.gru(z.abs())[0]))
        y = (torch.fft.irfft(z, n=64) * self.window).transpose(1, 2)
        size = (y.shape[2] - 1) * 16 + 64
        y = F.fold(y, (1, size), (1, 64), stride=(1, 16))
        return y[:, 0, 0, 48:] / 2


class TwoResults(Spectral):
    """Sound, and what was taken off, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(65, 32, batch_first=True)
        self.fc = nn.Linear(32, 130)

    def forward(self, noisy: Any) -> Any:
        z = self.analyse(noisy)
        h = self.fc(self.lstm(torch.log(z.abs() + 1e-2).transpose(1, 2))[0])
        mask = torch.view_as_complex(torch.tanh(h).unflatten(-1, (65, 2)).contiguous()).transpose(1, 2)
        clean = self.synthesise(z * mask, noisy.shape[-1])
        return {"clean": clean, "noise": noisy - clean}


class Doubles(Spectral):
    def forward(self, x: Any) -> Any:
        z = torch.stft(x, 64, 32, window=self.window[::2].double(), return_complex=True)
        return (z.abs() ** 0.3).sum(1)


SOUND = ((1, 4000),)
LENGTHS = (65, 128, 700, 1111)
ENHANCERS: Modules = {
    "phase kept": Case(PhaseKept, SOUND, LENGTHS),
    "polar back": Case(PolarBack, SOUND, (128, 700, 1111)),
    "complex recurrent": Case(ComplexRecurrent, SOUND, LENGTHS),
    "tasnet": Case(TasNet, SOUND, (16, 24, 200, 401)),
    "wave unet": Case(WaveUnet, ((1, 3220),), (52, 100, 500)),
    "crn": Case(CrnUnet, SOUND, (64, 128, 700, 1111)),
    "low cut": Case(LowCut, SOUND, LENGTHS),
    "gate": Case(Gate, SOUND, LENGTHS),
    "beamformer": Case(Beamformer, ((1, 3, 4000),), LENGTHS),
    "mask beamformer": Case(MaskBeamformer, ((1, 3, 4000),), LENGTHS, {"time": {"x": 2}}, tolerance=1e-3),
    "wiener": Case(Wiener, SOUND, LENGTHS),
    "short window": Case(ShortWindow, SOUND, (80, 128, 700, 1111)),
    "overlap-add by hand": Case(ByHand, SOUND, (16, 64, 300, 555)),
    "two results": Case(TwoResults, SOUND, LENGTHS),
    "doubles": Case(lambda: Doubles().double(), lambda n: torch.randn(1, 2000, dtype=torch.float64), (64, 300, 555)),
}
