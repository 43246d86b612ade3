"""The built-in recogniser, opened once for all tests of a process, and what it hears."""

from __future__ import annotations

import wave
from functools import lru_cache

import numpy as np

from pulsify.asr.recogniser import Recogniser
from pulsify.serve.sources import BUILT_IN, Served, of_recogniser
from tests.serve.live import Array


@lru_cache(1)
def recogniser() -> Recogniser:
    return Recogniser.open(BUILT_IN, verify=False)


def served() -> Served:
    return of_recogniser("recogniser", recogniser())


@lru_cache(4)
def sound(name: str = "lights") -> Array:
    """Samples, int16 at 16000 Hz."""
    with wave.open(str(BUILT_IN.parent / f"{name}.wav"), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def said(samples: Array) -> str:
    """What the offline path makes of it."""
    return recogniser().batch(samples.astype(np.float32) / np.float32(32768)).text
