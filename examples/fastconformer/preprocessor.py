"""The log-mel preprocessor in front of the encoder, as a batch model.

    audio        [B, S]   samples, 16 kHz          features        [B, mels, F]   log-mel frames, F = S // 160 + 1
    audio_length [B]      how many are real        features_length [B]            audio_length // 160: one frame less

Frames from the length on are 0. The numbers are those of the NeMo toolkit's preprocessor without dither, padding and
normalisation. The spectrum is a convolution with cosines and sines, which every exporter and runtime knows.
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.fastconformer.model import within

RATE, HOP, WINDOW, FFT = 16000, 160, 400, 512
BINS = FFT // 2 + 1
EMPHASIS, FLOOR = 0.97, 2.0**-24

Array = npt.NDArray[Any]


class Preprocessor(nn.Module):
    """Pre-emphasis, centred frames between zeros, power, mel bands, logarithm."""

    basis: Tensor
    bands: Tensor

    def __init__(self, mels: int = 128) -> None:
        super().__init__()
        self.mels = mels
        self.register_buffer("basis", torch.from_numpy(fourier_basis()).float().unsqueeze(1))
        self.register_buffer("bands", torch.from_numpy(mel_bands(mels)).float())

    def forward(self, audio: Tensor, audio_length: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([audio[:, :1], audio[:, 1:] - EMPHASIS * audio[:, :-1]], 1)
        x = x.masked_fill(~within(audio_length, x.size(1)), 0.0)
        x = F.conv1d(F.pad(x.unsqueeze(1), (FFT // 2, FFT // 2)), self.basis, stride=HOP)
        power = x[:, :BINS].square() + x[:, BINS:].square()
        frames = torch.log(self.bands @ power + FLOOR)
        length = audio_length // HOP
        return frames.masked_fill(~within(length, frames.size(2)).unsqueeze(1), 0.0), length


def fourier_basis() -> Array:
    """[2 * BINS, FFT]: cosines, then sines, under a Hann window in the middle."""
    angle = 2 * np.pi / FFT * np.outer(np.arange(BINS), np.arange(FFT))
    window = np.pad(np.hanning(WINDOW), (FFT - WINDOW) // 2)
    return np.concatenate([np.cos(angle), -np.sin(angle)]) * window


def mel_bands(mels: int) -> Array:
    """[mels, BINS]: triangles of unit area (in hertz), spaced evenly on Slaney's scale from 0 to half the rate."""
    edges = _hertz(np.linspace(0, _mel(RATE / 2), mels + 2))[:, None]
    bins = np.linspace(0, RATE / 2, BINS)
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rise, fall)) * 2 / (edges[2:] - edges[:-2])


# Slaney's scale: 15 mel to 1 kHz, linear; 27 more for every factor of 6.4.


def _mel(hertz: float) -> float:
    return hertz * 0.015 if hertz < 1000 else float(15 + 27 * np.log(hertz / 1000) / np.log(6.4))


def _hertz(mel: Array) -> Array:
    return np.where(mel < 15, mel / 0.015, 1000 * 6.4 ** ((mel - 15) / 27))
