"""The recogniser that comes with the package: live and offline say the same, and what was said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import pulsify.demo
from pulsify.asr.recogniser import Recogniser
from pulsify.cli.main import main

FOLDER = Path(pulsify.demo.__file__).parent / "recogniser"
SAID = {"lights.wav": "light on play music louder", "numbers.wav": "go left three seven stop"}


def sound(name: str) -> np.ndarray:  # type: ignore[type-arg]
    import wave

    with wave.open(str(FOLDER / name)) as file:
        assert (file.getframerate(), file.getnchannels()) == (16000, 1)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser.open(FOLDER / "model.toml")


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("chunk", [80, 1280, 16000])
def test_what_was_said(recogniser: Recogniser, name: str, chunk: int) -> None:
    samples, transcriber = sound(name), recogniser.transcriber()
    for start in range(0, len(samples), chunk):
        transcriber.push(samples[start : start + chunk])
    transcriber.flush()
    assert transcriber.text == SAID[name]


def test_a_stream_longer_than_the_table_of_positions(recogniser: Recogniser) -> None:
    """The batch model takes 768 tokens, about a minute; the stream goes on."""
    samples, transcriber = sound("numbers.wav"), recogniser.transcriber()
    silence = np.zeros(16000, np.float32)
    for _ in range(17):
        transcriber.push(samples)
        transcriber.push(silence)
    transcriber.flush()
    words = transcriber.text.split()
    assert len(words) >= 17 * 4
    assert set(words) <= set((FOLDER / "vocabulary.txt").read_text().split())


@pytest.mark.parametrize("chunk", [160, 1280, 5120])
def test_the_delay(recogniser: Recogniser, chunk: int) -> None:
    """As computed, and as seen: how late a stretch of frames comes out, at the most."""
    transcriber, late, given = recogniser.transcriber(), 0.0, 0
    for samples in range(chunk, 20 * 5120, chunk):
        rows = transcriber._passed(0, np.zeros((1, chunk), np.float32))
        out = rows.shape[1]
        if out:
            late = max(late, samples / 16000 - (given + 1) * 0.08)
            given += out
    assert recogniser.delay(chunk) == pytest.approx(late)
    assert late <= 0.33 + chunk / 16000


def test_on_the_command_line() -> None:
    arguments = ["asr", str(FOLDER / "lights.wav"), "-m", str(FOLDER / "model.toml"), "--no-realtime", "--batch-check"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0
    assert SAID["lights.wav"] in done.output
    assert "agrees" in done.output
    assert "320 ms after its sound at the latest" in done.output


def test_it_is_small() -> None:
    models = sum((FOLDER / f"{n}.onnx").stat().st_size for n in ("preprocessor", "encoder"))
    assert models <= 2_000_000
    assert sum((FOLDER / n).stat().st_size for n in SAID) < 300_000
