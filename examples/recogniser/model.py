"""The recogniser: log-mel preprocessor, FastConformer encoder, CTC over whole words."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.fastconformer.model import Config, build
from examples.recogniser.speech import RATE, WORDS

BLANK = len(WORDS)
HOP, WINDOW, FFT = 160, 400, 512
CONFIG = Config(
    mels=40, channels=32, width=64, layers=5, heads=4, expansion=2, context=(28, 3), bias=True, positions=768
)


class Preprocessor(nn.Module):
    """audio [B, S] -> features [B, mels, S // 160 + 1]: pre-emphasis, centred zero-padded frames, power, mel, log.

    The logarithms are shifted and scaled by constants, to be near 0 and 1.
    """

    window: Tensor
    mel: Tensor

    def __init__(self, mels: int = CONFIG.mels) -> None:
        super().__init__()
        side = (FFT - WINDOW) // 2
        self.register_buffer("window", F.pad(torch.hann_window(WINDOW, periodic=False), (side, side)))
        self.register_buffer("mel", mel_bands(mels))

    def forward(self, audio: Tensor) -> Tensor:
        x = audio - 0.97 * F.pad(audio, (1, 0))[:, :-1]
        x = F.pad(x, (FFT // 2, FFT // 2))
        x = torch.stft(x, FFT, HOP, FFT, self.window, center=False, return_complex=True)
        power = torch.view_as_real(x).square().sum(-1)
        return ((self.mel @ power + 2**-24).log() + 6.0) / 4.0


def mel_bands(mels: int) -> Tensor:
    """[mels, bins]: triangles of unit area (in hertz) between 20 and 7600 Hz."""
    low, high = (2595 * np.log10(1 + f / 700) for f in (20, 7600))
    edges = 700 * (10 ** (np.linspace(low, high, mels + 2) / 2595) - 1)
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    rise = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    bands = np.maximum(0, np.minimum(rise, fall)) * 2 / (edges[2:] - edges[:-2])[:, None]
    return torch.from_numpy(bands).float()


class Recogniser(nn.Module):
    """audio_signal [B, mels, T], length [B] -> log_probs [B, T', words + blank], encoded_lengths [B]."""

    def __init__(self, config: Config = CONFIG, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.encoder = build(config, seed)
        torch.manual_seed(seed)
        self.head = nn.Linear(config.width, BLANK + 1)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        x, tokens = self.encoder(audio_signal, length)
        return self.head(x.transpose(1, 2)).log_softmax(-1), tokens


def words_of(labels: list[int]) -> list[str]:
    """Greedy CTC: repeats merge, blanks go."""
    return [WORDS[b] for a, b in zip([BLANK, *labels], labels) if b not in (a, BLANK)]


def errors(said: list[str], heard: list[str]) -> int:
    """Words substituted, inserted or left out."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
