"""Front ends and recognisers of speech, as users write them."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn, stft
from torch.nn import functional as F

from tests.modules.case import Case, Modules


def mel_bank(bins: int = 129, bands: int = 24) -> Any:
    return torch.rand(bins, bands, generator=torch.Generator().manual_seed(7)) / bins


class LogMel(nn.Module):
    def __init__(self, n_fft: int = 256, hop: int = 80, **options: Any) -> None:
        super().__init__()
        self.n_fft, self.hop, self.options = n_fft, hop, options
        self.register_buffer("window", torch.hann_window(options.get("win_length", n_fft)), persistent=False)
        self.register_buffer("mel", mel_bank(n_fft // 2 + 1), persistent=False)

    def forward(self, x: Any) -> Any:
        spec = torch.stft(x, self.n_fft, self.hop, window=self.window, return_complex=True, **self.options)
        power = torch.abs(spec) ** 2
        return torch.log10(torch.clamp(torch.einsum("bft,fm->bmt", power, self.mel), min=1e-10))


class KaldiMel(nn.Module):
    """Frames cut by hand, emphasised, a window, a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hamming_window(200, periodic=False))
        self.register_buffer("mel", mel_bank())

    def forward(self, x: Any) -> Any:
        frames = x.unfold(-1, 200, 80)
        frames = frames - frames.mean(-1, keepdim=True)
        frames = torch.cat([frames[..., :1] * 0.03, frames[..., 1:] - 0.97 * frames[..., :-1]], -1)
        spec = torch.fft.rfft(frames * self.window, n=256)
        return (spec.abs().pow(2) @ self.mel).clamp_min(1e-8).log()


class Mfcc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mel = LogMel()
        n = torch.arange(24.0)
        dct = torch.cos(math.pi / 24 * (n + 0.5) * torch.arange(13.0)[:, None]) * math.sqrt(2 / 24)
        self.register_buffer("dct", dct)

    def forward(self, x: Any) -> Any:
        mel = self.mel(x)
        return torch.matmul(mel.transpose(1, 2), self.dct.T).transpose(1, 2)


class PhaseFeatures(nn.Module):
    """Level in dB, and the phase as cosine and sine."""

    def forward(self, x: Any) -> Any:
        z = x.stft(128, 64, window=torch.hann_window(128), return_complex=True)
        level = 20 * torch.log10(z.abs() + 1e-5)
        phase = z.angle()
        return torch.cat([level, phase.cos(), phase.sin()], dim=1)


class PhaseDifference(nn.Module):
    """Instantaneous frequency, by a complex product with the frame before."""

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, 128, 32, window=torch.hann_window(128), center=False, return_complex=True)
        turned = z[..., 1:] * z[..., :-1].conj()
        return turned.real / (turned.abs() + 1e-4)


class DeepSpeech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spec = LogMel(n_fft=256, hop=80)
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, (5, 5), stride=(2, 2), padding=(2, 2)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20)
        )
        self.rnn = nn.GRU(8 * 12, 48, num_layers=2, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(48, 29)

    def forward(self, x: Any) -> Any:
        y = self.conv(self.spec(x).unsqueeze(1))
        b, c, f, t = y.size()
        y = y.view(b, c * f, t).transpose(1, 2).contiguous()
        y, _ = self.rnn(y)
        return F.log_softmax(self.fc(y), dim=-1)


class LoudestNormalised(nn.Module):
    """As Whisper does: nothing is more than 8 below the loudest of the whole recording."""

    def __init__(self) -> None:
        super().__init__()
        self.mel = LogMel()
        self.conv = nn.Conv1d(24, 16, 3, padding=1)

    def forward(self, x: Any) -> Any:
        mel = self.mel(x)
        mel = torch.maximum(mel, mel.max() - 8.0)
        return F.gelu(self.conv((mel + 4.0) / 4.0))


class VoiceActivity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(129, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, stride=2, padding=1)
        )
        self.lstm = nn.LSTM(32, 24, batch_first=True)
        self.head = nn.Conv1d(24, 1, 1)

    def forward(self, x: Any) -> Any:
        x = F.pad(x.unsqueeze(1), (0, 64), mode="reflect").squeeze(1)
        z = torch.stft(x, 256, 128, 256, torch.hann_window(256), center=False, return_complex=True)
        y = F.relu(self.encoder(torch.sqrt(z.real**2 + z.imag**2)))
        y, (h, _) = self.lstm(y.permute(0, 2, 1))
        return torch.sigmoid(self.head(F.relu(y.permute(0, 2, 1)))), h


class Deltas(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mfcc = Mfcc()

    def delta(self, x: Any) -> Any:
        kernel = torch.arange(-2, 3, dtype=x.dtype).repeat(x.shape[1], 1, 1)
        return F.conv1d(F.pad(x, (2, 2), mode="replicate"), kernel, groups=x.shape[1]) / 10

    def forward(self, x: Any) -> Any:
        c = self.mfcc(x)
        d = self.delta(c)
        return torch.cat((c, d, self.delta(d)), 1)


class Subsampled(nn.Module):
    """Two strided 2-D convolutions, a GRU, a CTC head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 12, 3, 2), nn.ReLU(), nn.Conv2d(12, 12, 3, 2), nn.ReLU())
        self.proj = nn.Linear(12 * 9, 32)
        self.rnn, self.ctc = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 20)

    def forward(self, feats: Any) -> Any:
        x = self.conv(feats[:, None])
        b, c, t, f = x.shape
        x = self.proj(x.transpose(1, 2).reshape(b, t, c * f))
        return self.ctc(self.rnn(x)[0]).log_softmax(-1)


class Cepstrum(nn.Module):
    def forward(self, x: Any) -> Any:
        frames = x.unfold(1, 256, 128) * torch.hann_window(256)
        level = torch.log(torch.fft.rfft(frames).abs() + 1e-3)
        return torch.fft.irfft(level.to(torch.complex64))[..., :20]


class Autocorrelation(nn.Module):
    """Of every frame, by its power spectrum."""

    def forward(self, x: Any) -> Any:
        frames = x.unfold(-1, 160, 80)
        spec = torch.fft.fft(frames, n=320)
        corr = torch.fft.ifft(spec * spec.conj()).real[..., :160]
        return corr / (corr[..., :1] + 1e-3)


class ByName(nn.Module):
    """`from torch import stft`, and the spectrum as a picture with two channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, (3, 3), padding=(1, 1))

    def forward(self, x: Any) -> Any:
        z = stft(x, n_fft=128, hop_length=64, win_length=100, window=torch.hamming_window(100), return_complex=True)
        return self.conv(torch.view_as_real(z).permute(0, 3, 1, 2))


class OldStft(nn.Module):
    """Of the time when the parts were the last axis."""

    def forward(self, x: Any) -> Any:
        z = torch.stft(x, 128, 64, window=torch.hann_window(128), return_complex=False)
        return (z**2).sum(-1).add(1e-6).sqrt()


class MultiChannel(nn.Module):
    """Phase differences between microphones, from a batch of batches."""

    def forward(self, x: Any) -> Any:  # [B, M, T]
        b, m, t = x.shape
        z = torch.stft(x.reshape(b * m, t), 128, 64, window=torch.hann_window(128), return_complex=True)
        z = z.view(b, m, z.shape[-2], z.shape[-1])
        cross = z[:, 1:] * torch.conj(z[:, :1])
        return torch.cat([cross.real, cross.imag], 1) / (cross.abs().repeat(1, 2, 1, 1) + 1e-2)


@torch.jit.script
def smoothed(x: torch.Tensor, s: float) -> torch.Tensor:
    """An exponential average, frame by frame."""
    state = torch.zeros_like(x[:, :, 0])
    out: list[torch.Tensor] = []
    for t in range(x.shape[2]):
        state = (1 - s) * state + s * x[:, :, t]
        out.append(state)
    return torch.stack(out, 2)


class Pcen(nn.Module):
    """Per-channel energy normalisation, its loop scripted."""

    def forward(self, energy: Any) -> Any:
        mean = smoothed(energy.abs(), 0.04)
        return (energy.abs() / (1e-2 + mean) ** 0.98 + 2.0) ** 0.5 - 2.0**0.5


class PcenLoop(nn.Module):
    """The same, in plain Python."""

    def forward(self, energy: Any) -> Any:
        state = torch.zeros_like(energy[:, :, 0])
        out = []
        for t in range(energy.shape[2]):
            state = 0.96 * state + 0.04 * energy[:, :, t].abs()
            out.append(state)
        return energy / (1e-2 + torch.stack(out, 2))


class UtteranceNormalised(nn.Module):
    """Mean and deviation of the whole recording are taken off every frame."""

    def __init__(self) -> None:
        super().__init__()
        self.mel = LogMel()

    def forward(self, x: Any) -> Any:
        mel = self.mel(x)
        return (mel - mel.mean(2, keepdim=True)) / (mel.std(2, keepdim=True) + 1e-5)


class SpeakerEmbedding(nn.Module):
    """Statistics of all frames: known when the recording ends."""

    def __init__(self) -> None:
        super().__init__()
        self.mel, self.conv = LogMel(), nn.Conv1d(24, 32, 5, padding=2)
        self.out = nn.Linear(64, 16)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.conv(self.mel(x)))
        stats = torch.cat([y.mean(-1), y.var(-1, unbiased=False).clamp_min(1e-6).sqrt()], -1)
        return F.normalize(self.out(stats), dim=-1)


SOUND = ((1, 8000),)
LENGTHS = (129, 256, 700, 1111)
SPEECH: Modules = {
    "log mel": Case(LogMel, SOUND, LENGTHS),
    "log mel, zeros, normalized": Case(lambda: LogMel(pad_mode="constant", normalized=True), SOUND, LENGTHS),
    "log mel, short window, not centred": Case(
        lambda: LogMel(center=False, win_length=200), SOUND, (256, 300, 700, 1111)
    ),
    "kaldi mel": Case(KaldiMel, SOUND, (200, 256, 700, 1111)),
    "mfcc": Case(Mfcc, SOUND, LENGTHS),
    "phase features": Case(PhaseFeatures, SOUND, (65, 128, 700, 1111), tolerance=3e-3),
    "phase difference": Case(PhaseDifference, SOUND, (160, 256, 700, 1111)),
    "deep speech": Case(DeepSpeech, SOUND, LENGTHS),
    "loudest normalised": Case(LoudestNormalised, SOUND, refused="whole|end|all frames|later"),
    "voice activity": Case(VoiceActivity, SOUND, (192, 256, 700, 1111)),
    "deltas": Case(Deltas, SOUND, LENGTHS),
    "subsampled ctc": Case(Subsampled, ((1, 200, 40),), (7, 20, 50), {"time": {"feats": 1}}),
    "cepstrum": Case(Cepstrum, SOUND, (256, 400, 1111)),
    "autocorrelation": Case(Autocorrelation, SOUND, (160, 400, 1111)),
    "stft by name": Case(ByName, SOUND, (65, 128, 700)),
    "stft without complex numbers": Case(OldStft, SOUND, (65, 128, 700)),
    "microphones": Case(MultiChannel, ((1, 4, 4000),), (65, 128, 700), {"time": {"x": 2}}),
    "pcen, scripted": Case(Pcen, ((1, 20, 200),), options={"time": {"energy": 2}}),
    "pcen, a loop": Case(
        PcenLoop,
        ((1, 20, 200),),
        options={"time": {"energy": 2}},
        refused=r"speech\.py:\d+, in PcenLoop.*loop over time.*torch\.jit\.script",
    ),
    "utterance normalised": Case(UtteranceNormalised, SOUND, refused="whole|end|all frames|later"),
    "speaker embedding": Case(SpeakerEmbedding, SOUND, LENGTHS),
}
