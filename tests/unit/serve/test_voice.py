"""Where utterances begin and end, from probabilities alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.serve import detectors, sources
from pulsify.serve.detectors import detector_source, energy_model, frame_samples, silero_file
from pulsify.serve.voice import Listening, Started, Stopped, TurnDetection
from tests.serve import speech

HOW = TurnDetection(silence=60)
probabilities = st.lists(st.sampled_from([0.0, 0.3, 0.4, 0.5, 0.9]), max_size=60)


def test_speech_starts_at_once_and_stops_after_the_silence() -> None:
    frames = [0.1, 0.6, 0.4, 0.1, 0.2, 0.36, 0.1, 0.1, 0.1, 0.1, 0.7]
    assert Listening(20).push(frames, HOW) == [Started(20), Stopped(180), Started(200)]


@given(probabilities=probabilities, cut=st.integers(0, 60), silence=st.sampled_from([0, 20, 60, 500]))
def test_in_any_pieces_it_is_the_same(probabilities: list[float], cut: int, silence: int) -> None:
    how, one = TurnDetection(silence=silence), Listening(20)
    turns = one.push(probabilities[:cut], how) + one.push(probabilities[cut:], how)
    assert turns == Listening(20).push(probabilities, how)
    assert [type(turn) for turn in turns] == [(Started, Stopped)[i % 2] for i in range(len(turns))]
    assert all(stop.when - start.when > silence for start, stop in zip(turns[::2], turns[1::2], strict=False))
    assert one.speaking == bool(len(turns) % 2)


@given(probabilities=probabilities)
def test_a_higher_threshold_hears_no_more(probabilities: list[float]) -> None:
    def started(threshold: float) -> int:
        turns = Listening(20).push(probabilities, TurnDetection(threshold, silence=10_000))
        return turns[0].when if turns else 10**6

    assert started(0.2) <= started(0.5) <= started(0.9)


def loud(samples: np.ndarray, noise: float, seed: int = 0) -> np.ndarray:
    """Between a second of silence before and after, in white noise of so many decibels."""
    whole = np.concatenate([np.zeros(16000), samples / 32768, np.zeros(16000)])
    return (whole + 10 ** (noise / 20) * np.random.default_rng(seed).standard_normal(len(whole))).astype(np.float32)


@pytest.mark.parametrize("noise", [-90, -50, -35])
@pytest.mark.parametrize("name", ["lights", "numbers"])
def test_the_built_in_detector_hears_words_and_no_noise(name: str, noise: float) -> None:
    sound = loud(speech.sound(name), noise)[::2]  # half the rate
    session = ort.InferenceSession(energy_model().SerializeToString())
    (frames,) = session.run(None, {"sound": sound[None]})[0]
    words = speech.recogniser().batch(speech.sound(name).astype(np.float32) / 32768).words
    assert not (frames[:45] >= 0.5).any() and not (frames[-40:] >= 0.5).any()
    for word in words:  # somewhere in the half second up to its token
        end = int((1 + word.end) / 0.02)
        assert (frames[end - 25 : end] >= 0.5).any(), word


def test_noise_alone_is_no_speech() -> None:
    session = ort.InferenceSession(energy_model().SerializeToString())
    for seed, level in enumerate((-90, -60, -45, -40)):
        sound = 10 ** (level / 20) * np.random.default_rng(seed).standard_normal((1, 8000 * 30))
        assert (session.run(None, {"sound": sound.astype(np.float32)})[0] < 0.5).all()


@pytest.mark.parametrize("which", ["energy", "silero"])
def test_streamed_it_is_the_batch_model(which: str) -> None:
    if which == "silero" and silero_file() is None:
        pytest.skip("the package silero-vad is not installed")
    served = detector_source(which).open()
    assert served.name == detectors.NAME and served.hears
    stream = served.streams[0]
    model = energy_model() if which == "energy" else detectors.silero_model(silero_file())  # type: ignore[arg-type]
    count = 60 * frame_samples(served)
    sound = (speech.sound("numbers")[:count] / 32768).astype(np.float32)[None]
    want = ort.InferenceSession(model.SerializeToString()).run(None, {"sound": sound})[0]
    np.testing.assert_allclose(stream.run(sound, chunks=777), want, atol=1e-5)


def test_a_detector_of_ones_own(tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "mine.onnx"
    onnx.save(energy_model(), path)
    served = detector_source(f"{path}@8000").open()
    assert (served.sample_rate, frame_samples(served)) == (8000, 160)
    with pytest.raises(InvalidModel, match="at a known rate"):
        detector_source(str(path)).open()
    with pytest.raises(InvalidModel, match="one number a frame"):
        detector_source(f"{sources.BUILT_IN.parent / 'preprocessor.onnx'}@16000").open()


def test_names_of_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detectors, "silero_file", lambda: None)
    assert detector_source("auto").open is detector_source("energy").open
    with pytest.raises(InvalidArgument, match="pip install silero-vad"):
        detector_source("silero")
