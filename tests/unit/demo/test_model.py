"""The built-in enhancer: small, causal but for the frame it looks ahead, and it removes noise."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.asr.wav import read_wav
from pulsify.demo.model import ENHANCER, HOP, SAMPLE_RATE, enhancer
from tests.models import frames, run_batch


def test_it_is_a_valid_model_and_small() -> None:
    onnx.checker.check_model(enhancer(), full_check=True)
    assert ENHANCER.stat().st_size < 1_000_000


@pytest.mark.parametrize("length", [HOP + 1, 5 * HOP, 5 * HOP + 7])
def test_sound_comes_out_as_long_as_it_went_in_but_for_a_frame_that_is_not_whole(length: int) -> None:
    clean = run_batch(enhancer(), frames(2, 1, length))["clean"]
    assert clean.shape == (2, 1, length // HOP * HOP) and np.isfinite(clean).all() and clean.std() > 0


def test_it_looks_a_window_and_a_frame_ahead() -> None:
    x = frames(1, 1, 100 * HOP) * np.float32(0.1)
    other, begin = x.copy(), 50 * HOP
    other[..., begin:] = 0
    differs = np.flatnonzero((run_batch(enhancer(), x)["clean"] != run_batch(enhancer(), other)["clean"])[0, 0])
    assert begin - 2 * HOP <= differs[0] < begin - HOP


def test_noise_is_removed_and_speech_is_kept() -> None:
    """The recording has 0.6 s of a fan alone at both ends, and is 5 dB louder with speech."""
    noisy, rate = read_wav(str(ENHANCER.parent / "noisy.wav"))
    clean = run_batch(enhancer(), noisy[None, None])["clean"][0, 0]
    assert rate == SAMPLE_RATE
    alone, spoken = slice(SAMPLE_RATE // 10, SAMPLE_RATE // 2), slice(6 * SAMPLE_RATE // 10, -6 * SAMPLE_RATE // 10)
    assert decibels(clean[alone]) <= decibels(noisy[alone]) - 12
    assert decibels(clean[spoken]) >= decibels(noisy[spoken]) - 4


def decibels(x: np.ndarray) -> float:  # type: ignore[type-arg]
    return float(10 * np.log10(np.mean(np.square(x.astype(np.float64))) + 1e-12))
