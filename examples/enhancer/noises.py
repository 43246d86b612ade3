"""Noises: functions of a random generator and a number of samples. Their mean square is 1 (of `shaped`: about 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from examples.recogniser.speech import RATE

Array = np.ndarray[Any, Any]
Random = np.random.Generator


def coloured(rng: Random, size: int, low: float, high: float) -> Array:
    """Its power falls with frequency to the power of something between low and high: 0 is white, 1 pink, 2 brown."""
    frequency = np.maximum(np.fft.rfftfreq(size, 1 / RATE), 20)
    return _filtered(rng, size, frequency ** (-rng.uniform(low, high) / 2))


def white(rng: Random, size: int) -> Array:
    return coloured(rng, size, 0.0, 0.3)


def pink(rng: Random, size: int) -> Array:
    return coloured(rng, size, 0.7, 1.3)


def brown(rng: Random, size: int) -> Array:
    return coloured(rng, size, 1.7, 2.2)


def shaped(rng: Random, size: int) -> Array:
    """Noise with a smooth spectrum of hills and valleys, swelling slowly."""
    octave = np.log2(np.maximum(np.fft.rfftfreq(size, 1 / RATE), 40) / 40)
    decibels = sum(rng.uniform(-9, 9) * np.cos(np.pi * k * octave / 7.6 + rng.uniform(0, 6.3)) for k in range(1, 6))
    return _filtered(rng, size, 10 ** ((decibels - 3 * octave) / 20)) * _swell(rng, size, 6.0)


def hum(rng: Random, size: int) -> Array:
    """Mains hum: harmonics of 50 or 60 Hz over a little noise."""
    mains = rng.choice([50.0, 60.0]) * rng.uniform(0.995, 1.005)
    return _unit(_tones(rng, size, mains * np.arange(1, 25), 1.0) + rng.uniform(0.05, 0.3) * pink(rng, size))


def fan(rng: Random, size: int) -> Array:
    """Air that is chopped by blades: noise and tones, both modulated by the turns."""
    turns, blades = rng.uniform(12, 40), rng.integers(3, 9)
    phase = 2 * np.pi * turns * np.arange(size) / RATE
    chopped = 1 + rng.uniform(0.1, 0.5) * np.sin(phase) + rng.uniform(0.1, 0.5) * np.sin(blades * phase)
    air = coloured(rng, size, 0.8, 1.8) * chopped
    return _unit(air + rng.uniform(0.1, 0.6) * _tones(rng, size, turns * blades * np.arange(1, 8), 0.7))


def clicks(rng: Random, size: int) -> Array:
    """Short resonances, as keys and dishes make, over a little noise."""
    out = np.zeros(size + RATE)
    for start in rng.integers(0, size, max(1, rng.poisson(rng.uniform(3, 15) * size / RATE))):
        time = np.arange(int(rng.uniform(0.004, 0.06) * RATE))
        decay = np.exp(-5 * time / len(time)) * rng.uniform(0.2, 1)
        rings = sum(np.sin(2 * np.pi * rng.uniform(400, 7000) * time / RATE + rng.uniform(0, 6.3)) for _ in range(3))
        out[start : start + len(time)] += decay * (rings + rng.normal(0, 1, len(time)))
    return _unit(_unit(out[:size]) + rng.uniform(0.05, 0.3) * pink(rng, size))


def engine(rng: Random, size: int) -> Array:
    """A saw tooth whose pitch wanders, over a rumble. Never trained on."""
    pitch = rng.uniform(30, 90) * _swell(rng, size, 2.0)
    saw = 2 * (np.cumsum(pitch) / RATE % 1) - 1
    smooth = np.fft.irfft(np.fft.rfft(saw) / (1 + np.fft.rfftfreq(size, 1 / RATE) / 800), size)
    return _unit(_unit(smooth) + rng.uniform(0.3, 0.8) * brown(rng, size))


def rain(rng: Random, size: int) -> Array:
    """Thousands of drops, now more, now fewer. Never trained on."""
    drops = np.where(rng.random(size) < 0.02 * _swell(rng, size, 6.0), rng.exponential(1, size), 0) * rng.choice(
        [-1, 1], size
    )
    time = np.arange(200) / RATE
    ring = np.exp(-time * 900) * np.sin(2 * np.pi * rng.uniform(1500, 4500) * time)
    return _unit(np.convolve(drops, ring)[:size])


def babble(rng: Random, size: int, speech: Array) -> Array:
    """Four to eight people at once, from `speech`."""
    starts = rng.integers(0, len(speech) - size, rng.integers(4, 9))
    return _unit(sum(rng.uniform(0.5, 1) * _unit(speech[s : s + size].astype(np.float64)) for s in starts))


KINDS: dict[str, Callable[[Random, int], Array]] = {
    each.__name__: each for each in (white, pink, brown, shaped, hum, fan, clicks)
}
HELD_KINDS: dict[str, Callable[[Random, int], Array]] = {each.__name__: each for each in (engine, rain)}


def _filtered(rng: Random, size: int, gain: Array) -> Array:
    return _unit(np.fft.irfft(np.fft.rfft(rng.normal(0, 1, size)) * gain, size))


def _tones(rng: Random, size: int, frequencies: Array, fall: float) -> Array:
    time = np.arange(size) / RATE
    waves = [
        rng.uniform(0.1, 1) / (k + 1) ** fall * np.sin(2 * np.pi * f * time + rng.uniform(0, 6.3))
        for k, f in enumerate(frequencies)
        if f < RATE / 2
    ]
    return _unit(np.sum(waves, axis=0))


def _swell(rng: Random, size: int, decibels: float) -> Array:
    """A gain that wanders a few times a second."""
    points = rng.uniform(-decibels, decibels, max(2, size * 2 // RATE))
    return np.asarray(10 ** (np.interp(np.linspace(0, len(points) - 1, size), np.arange(len(points)), points) / 20))


def _unit(x: Any) -> Array:
    return np.asarray(x / max(float(np.sqrt(np.mean(np.square(x)))), 1e-9))
