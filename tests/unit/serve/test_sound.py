"""Sound at any rate: the resampler does what it should, and its stream is its batch model."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.serve import sound
from pulsify.serve.protocol import Refused

PAIRS = [(48000, 16000), (44100, 16000), (8000, 16000), (24000, 16000), (16000, 22050)]


def tone(rate: int, hertz: float, seconds: float = 0.25) -> np.ndarray:  # type: ignore[type-arg]
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize(("rate", "to"), PAIRS)
def test_a_tone_stays_that_tone(rate: int, to: int) -> None:
    session = ort.InferenceSession(sound.resampler(rate, to).SerializeToString())
    (got,) = session.run(None, {"sound": tone(rate, 440.0)[None]})[0]
    want = tone(to, 440.0)
    inside = slice(to // 50, to // 5)  # away from both ends, where there is silence beside it
    assert np.abs(got[inside] - want[inside]).max() < 2e-3


def test_what_the_lower_rate_cannot_hold_is_gone() -> None:
    session = ort.InferenceSession(sound.resampler(48000, 16000).SerializeToString())
    (got,) = session.run(None, {"sound": tone(48000, 11000.0)[None]})[0]
    assert np.abs(got[400:-400]).max() < 1e-2


@pytest.mark.parametrize(("rate", "to"), [(48000, 16000), (44100, 16000), (8000, 16000)])
def test_its_stream_is_its_batch_model(rate: int, to: int) -> None:
    made = sound.resampling(rate, to, 320)
    assert pulsify.verify(sound.resampler(rate, to), made, lengths=[1, made.pulse + 7, 3 * made.pulse]).ok


@pytest.mark.parametrize(("rate", "to", "pulse"), [(48000, 16000, 160), (44100, 16000, 160), (8000, 16000, 512)])
def test_about_a_pulse_comes_out_at_a_time(rate: int, to: int, pulse: int) -> None:
    made = sound.resampling(rate, to, pulse)
    assert made.outputs[0].frames == pulse
    assert made.latency / rate <= pulse / to + 0.01


def test_rates_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(Refused, match="too little in common") as refused:
        sound.filters(16001, 16000)
    assert refused.value.code == "unsupported"


def test_samples_are_read_and_written() -> None:
    data = np.array([0, 16384, -32768, 32767], "<i2").tobytes()
    read = sound.read(data, "pcm16")
    np.testing.assert_array_equal(read, np.array([0, 0.5, -1, 32767 / 32768], np.float32))
    assert sound.write(read, "pcm16") == data
    assert sound.write(np.array([2.0, -2.0]), "pcm16") == np.array([32767, -32768], "<i2").tobytes()
    assert sound.write(read, "float32") == read.tobytes()
    np.testing.assert_array_equal(sound.read(read.tobytes(), "float32"), read)
    with pytest.raises(Refused, match="no whole number"):
        sound.read(b"123", "pcm16")
