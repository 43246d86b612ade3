"""Speech that espeak-ng synthesises, and what spoils it: the recogniser's data.

python -m examples.recogniser.speech /tmp/recogniser        (needs espeak-ng; a few minutes on 2 cores)

writes train.npz, test.npz (voices never trained on) and accent.npz (nor their accent): int16 samples at 16 kHz end to
end, `ends` of the utterances, their texts and voices. Everything follows from the seeds.
"""

# ruff: noqa: SIM905

from __future__ import annotations

import argparse
import io
import math
import os
import subprocess
import wave
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

RATE = 16000
WORDS = (
    "zero one two three four five six seven eight nine start stop left right up down yes no go back "
    "open close light on off music louder quieter play pause"
).split()
ACCENTS = "en-us en-gb en-gb-scotland en-gb-x-gbclan en-gb-x-rp en-029 en-us-nyc".split()
VARIANTS = (
    "f1 f2 f3 f5 m1 m2 m3 m4 m6 m7 klatt klatt2 klatt3 klatt4 adam Alicia Andrea antonio aunty belinda benjamin boris "
    "caleb david Denis Diogo ed Gene grandma grandpa gustave Henrique Hugo iven iven2 iven3 Jacky john Lee marcelo "
    "Marco Mario max michel miguel Mike pablo paul pedro rob robert sandro shelby Storm travis victor zac anika croak "
    "whisper RicishayMax Nguyen kaukovalta Tweaky"
).split()
HELD_ACCENT = "en-gb-x-gbcwmd"
HELD_VARIANTS = "f4 m5 m8 Annie Alex Andy linda Michael norbert quincy steph edward".split()


@dataclass(frozen=True)
class Utterance:
    text: str
    voice: str  # accent+variant
    speed: int  # words a minute
    pitch: int
    volume: int
    gap: int  # between words, in 10 ms
    warp: float  # played slower and deeper: a longer throat


def plan(count: int, seed: int, accents: list[str], variants: list[str]) -> list[Utterance]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        words = rng.choice(WORDS, rng.integers(1, 6))
        text = "".join(str(w) + (", " if rng.random() < 0.25 else " ") for w in words).strip(" ,")
        voice = f"{rng.choice(accents)}+{rng.choice(variants)}"
        speed, pitch, volume = (int(rng.integers(*r)) for r in ((100, 231), (15, 86), (40, 120)))
        gap = int(rng.integers(0, 16)) if rng.random() < 0.5 else 0
        made.append(Utterance(text, voice, speed, pitch, volume, gap, float(rng.uniform(0.88, 1.14))))
    return made


def speak(u: Utterance) -> np.ndarray[Any, Any]:
    """int16 samples. $ESPEAK names the program and $ESPEAK_DATA its data, where they are not installed as usual."""
    program = [os.environ.get("ESPEAK", "espeak-ng"), f"--path={os.environ.get('ESPEAK_DATA', '')}", "--stdout"]
    options = ["-v", u.voice, "-s", u.speed, "-p", u.pitch, "-a", u.volume, "-g", u.gap, u.text]
    command = [c for c in program if c != "--path="] + [str(o) for o in options]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(output)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(1 << 30), np.int16).astype(np.float64)
    heard = np.flatnonzero(np.abs(samples) > 50)
    if not heard.size:
        raise RuntimeError(f"silence: {u}")
    samples = resampled(samples[heard[0] : heard[-1] + 1], RATE / rate * u.warp)
    return np.clip(np.rint(samples), -32768, 32767).astype(np.int16)


def resampled(x: np.ndarray[Any, Any], ratio: float) -> np.ndarray[Any, Any]:
    """Band-limited, by cutting or padding the spectrum."""
    edge = 256
    x = np.pad(x, edge)
    size = round(len(x) * ratio)
    spectrum = np.fft.rfft(x)
    out = np.zeros(size // 2 + 1, complex)
    kept = min(len(out), len(spectrum))
    out[:kept] = spectrum[:kept]
    cut = round(edge * ratio)
    return np.fft.irfft(out, size)[cut : size - cut] * (size / len(x))


def synthesise(path: Path, utterances: list[Utterance], jobs: int) -> None:
    with ProcessPoolExecutor(jobs) as pool:
        spoken = list(pool.map(speak, utterances, chunksize=64))
    texts = [u.text.replace(",", "") for u in utterances]
    ends = np.cumsum([len(s) for s in spoken])
    np.savez(path, samples=np.concatenate(spoken), ends=ends, texts=texts, voices=[u.voice for u in utterances])
    print(f"{path}: {len(texts)} utterances, {ends[-1] / RATE / 3600:.1f} h", flush=True)


# ---- utterances as batches, clean or spoilt


class Corpus:
    def __init__(self, path: Path, device: str = "cpu") -> None:
        data = np.load(path)
        self.samples = torch.from_numpy(data["samples"]).to(device)
        ends = torch.from_numpy(data["ends"])
        self.starts = torch.cat([ends.new_zeros(1), ends[:-1]]).to(device)
        self.sizes = ends.to(device) - self.starts
        self.texts = [str(t).split() for t in data["texts"]]
        self.voices = [str(v) for v in data["voices"]]

    def batch(self, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Utterances between silences of random length: audio [B, S] and how many samples are real."""
        sizes, starts = self.sizes[chosen], self.starts[chosen]
        before = _uniform(generator, len(chosen), 0.05, 0.6, RATE).long()
        after = _uniform(generator, len(chosen), 0.15, 0.8, RATE).long()
        lengths = before + sizes + after
        at = torch.arange(int(lengths.max()), device=sizes.device) - before.unsqueeze(1)
        inside = (at >= 0) & (at < sizes.unsqueeze(1))
        index = (starts.unsqueeze(1) + at).clamp(0, len(self.samples) - 1)
        return self.samples[index].float() / 32768 * inside, lengths


def spoil(
    audio: Tensor, lengths: Tensor, g: torch.Generator, snr: tuple[float, float], spared: float = 0.0, mute: int = 0
) -> Tensor:
    """Rooms, microphones, coloured noise and mains hum; `spared` of them get no noise, the first `mute` no speech."""
    batch, size = audio.shape
    length = 1 << (size + RATE // 4).bit_length()
    frequency = torch.fft.rfftfreq(length, 1 / RATE, device=audio.device)
    room = _room(g, batch)
    spectrum = torch.fft.rfft(audio, length) * torch.fft.rfft(room, length) * _microphone(g, batch, frequency)
    heard = torch.fft.irfft(spectrum, length)[:, :size]
    heard = heard / heard.abs().amax(1, keepdim=True).clamp_min(1e-6) * 10 ** (_uniform(g, (batch, 1), -30, 0) / 20)
    noise = torch.randn(audio.shape, generator=g, device=audio.device)
    colour = frequency.clamp_min(20) ** (-_uniform(g, (batch, 1), 0, 1))  # white to brown
    noise = _unit(torch.fft.irfft(torch.fft.rfft(noise, length) * colour, length)[:, :size])
    noise = _unit(noise + _hum(g, batch, size) * (_uniform(g, (batch, 1), 0, 1) < 0.3) * _uniform(g, (batch, 1), 0, 2))
    level = heard.square().mean(1, keepdim=True).sqrt() * 10 ** (-_uniform(g, (batch, 1), *snr) / 20)
    heard[:mute] = 0
    heard = heard + noise * level * (_uniform(g, (batch, 1), 0, 1) >= spared)
    return heard * (torch.arange(size, device=audio.device) < lengths.unsqueeze(1))


def _room(g: torch.Generator, batch: int) -> Tensor:
    """Impulse responses of 0.2 s, of half the utterances: the direct sound and decaying noise."""
    time = torch.arange(RATE // 5, device=g.device) / RATE
    tail = torch.randn(batch, len(time), generator=g, device=g.device)
    tail = tail * torch.exp(-time * 6.9 / _uniform(g, (batch, 1), 0.1, 0.5))
    tail = tail / tail.norm(dim=1, keepdim=True) * _uniform(g, (batch, 1), 0.1, 0.8)
    tail = tail * (_uniform(g, (batch, 1), 0, 1) < 0.5)
    return torch.cat([torch.ones_like(tail[:, :1]), tail[:, 1:]], 1)


def _microphone(g: torch.Generator, batch: int, frequency: Tensor) -> Tensor:
    """A smooth response within some decibels of flat."""
    octave = torch.log2(frequency.clamp_min(60) / 60) / 7
    waves = sum(
        _uniform(g, (batch, 1), -4, 4) * torch.cos(math.pi * k * octave + _uniform(g, (batch, 1), 0, 6.3))
        for k in (1, 2, 3)
    )
    return torch.as_tensor(10 ** (waves / 20))


def _hum(g: torch.Generator, batch: int, size: int) -> Tensor:
    time = torch.arange(size, device=g.device) / RATE
    mains = 50 + 10 * (_uniform(g, (batch, 1), 0, 1) < 0.5)
    waves = [
        _uniform(g, (batch, 1), 0, 1) * torch.sin(2 * math.pi * k * mains * time + _uniform(g, (batch, 1), 0, 6.3))
        for k in range(1, 6)
    ]
    return _unit(torch.stack(waves).sum(0))


def _unit(x: Tensor) -> Tensor:
    return x / x.square().mean(1, keepdim=True).sqrt().clamp_min(1e-9)


def _uniform(g: torch.Generator, shape: Any, low: float, high: float, scale: float = 1.0) -> Tensor:
    shape = shape if isinstance(shape, tuple) else (shape,)
    return (low + (high - low) * torch.rand(shape, generator=g, device=g.device)) * scale


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--train", type=int, default=60000, help="utterances")
    parser.add_argument("--test", type=int, default=2000, help="utterances of each test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    sets = {
        "test": (args.test, ACCENTS, HELD_VARIANTS),
        "accent": (args.test, [HELD_ACCENT], HELD_VARIANTS),
        "train": (args.train, ACCENTS, VARIANTS),
    }
    for number, (name, (count, accents, variants)) in enumerate(sets.items()):
        if count:
            seed = 1000 * args.seed + number
            synthesise(args.out / f"{name}.npz", plan(count, seed, accents, variants), args.jobs)


if __name__ == "__main__":
    main()
