"""Trains the enhancer on the sounds of `speech`.

python -m examples.enhancer.train /tmp/enhancer weights.pt       (15 minutes on one core of a CPU)
"""

# torch is not typed.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from examples.enhancer.model import BINS, Enhancer
from examples.enhancer.speech import Random, timeline
from examples.recogniser.speech import RATE

QUIET = 1e-3  # an error below this part of the sound counts for nothing


class Mixtures:
    """Speech and noise at random levels, from a random generator of its own."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.rng: Random = np.random.default_rng(seed)
        self.speech = timeline(folder / "train.npz", self.rng)
        self.noises = np.load(folder / "noises.npz")["noises"]
        self.size = int(seconds * RATE)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        """What is heard and the speech in it, [count, 1, samples] each."""
        rng, size = self.rng, self.size
        clean, noise = (np.empty((count, size), np.float32) for _ in range(2))
        for row in range(count):
            start = rng.integers(len(self.speech) - size)
            clean[row] = self.speech[start : start + size]
            noise[row] = self._noise() + (self._noise() * rng.uniform(0.2, 1) if rng.random() < 0.3 else 0)
        clean = self._microphone(_unit(clean)) * 10 ** (rng.uniform(-36, -12, (count, 1)) / 20)
        clean *= rng.random((count, 1)) > 0.03  # noise alone
        level = 10 ** (rng.uniform(-36, -12, (count, 1)) / 20)
        level = np.where(clean.any(1, keepdims=True), _rms(clean), level)
        snr = np.where(rng.random((count, 1)) < 0.05, 45, rng.uniform(-5, 22, (count, 1)))
        heard = clean + _unit(noise) * level * 10 ** (-snr / 20)
        return torch.from_numpy(heard).float()[:, None], torch.from_numpy(clean).float()[:, None]

    def _noise(self) -> np.ndarray:  # type: ignore[type-arg]
        row = self.noises[self.rng.integers(len(self.noises))].astype(np.float32)
        start = self.rng.integers(len(row) - self.size + 1)
        return row[start : start + self.size]

    def _microphone(self, x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        """A smooth response within some decibels of flat, another for each row."""
        frequency = np.fft.rfftfreq(self.size, 1 / RATE)
        octave = np.log2(np.maximum(frequency, 60) / 60) / 7
        turns = self.rng.uniform(0, 6.3, (3, len(x), 1))
        decibels = sum(
            self.rng.uniform(-4, 4, (len(x), 1)) * np.cos(np.pi * (k + 1) * octave + turn)
            for k, turn in enumerate(turns)
        )
        return np.fft.irfft(np.fft.rfft(x) * 10 ** (decibels / 20), self.size)


def _rms(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.sqrt(np.mean(np.square(x), 1, keepdims=True))


def _unit(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return x / np.maximum(_rms(x), 1e-9)


def loss_of(model: Enhancer, heard: Tensor, clean: Tensor) -> Tensor:
    """Decibels of the error, and the distance of compressed spectra, which minds what is quiet as well."""
    spectrum, wanted = model.spectrum(heard), model.spectrum(clean)
    got = model.masked(spectrum)
    target, error = wanted.square().sum((1, 2)), (got - wanted).square().sum((1, 2))
    decibels = 10 * torch.log10(error + QUIET * target + 1e-5 * spectrum.square().sum((1, 2)) + 1e-9)
    level = 10 * torch.log10(spectrum.square().sum((1, 2)) + 1e-9)
    scale = spectrum.square().mean((1, 2), keepdim=True).sqrt() + 1e-6
    distance = (_compressed(got / scale) - _compressed(wanted / scale)).square().mean()
    return (decibels - level).mean() + 20 * distance


def _compressed(spectrum: Tensor) -> Tensor:
    real, imaginary = spectrum.split(BINS, 1)
    return (real.square() + imaginary.square() + 1e-5) ** 0.15


def train(folder: Path, out: Path, *, steps: int, batch: int, rate: float, seed: int) -> None:
    torch.manual_seed(seed)
    mixtures, model = Mixtures(folder, seed, 3.0), Enhancer(seed)
    averaged = copy.deepcopy(model)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    began, shown = time.time(), 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 100, 0.51 + 0.49 * math.cos(math.pi * step / steps))
        loss = loss_of(model, *mixtures.batch(batch))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        keep = min(0.995, step / (step + 50))
        with torch.no_grad():
            torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - keep)
        shown += loss.item()
        if step % 50 == 49 or step == steps - 1:
            spent = time.time() - began
            print(f"{step + 1}: {spent:.0f} s, loss {shown / (step % 50 + 1):.3f}", flush=True)
            shown = 0.0
            torch.save(averaged.state_dict(), out)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder that `speech` wrote")
    parser.add_argument("out", type=Path, help="the weights")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    train(args.data, args.out, steps=args.steps, batch=args.batch, rate=args.rate, seed=args.seed)


if __name__ == "__main__":
    main()
