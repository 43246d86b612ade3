"""Files to arrays: sound of every width, arrays of other types, and what cannot be meant."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulsify.api import Stream
from pulsify.asr.wav import read_wav
from pulsify.cli.feed import as_dtype, check_output, read_feeds, save_results
from pulsify.core.errors import InvalidArgument, InvalidChunk
from tests.models import Array
from tests.unit.specs import a_stream, an_input, an_output, remembers

F32 = np.dtype(np.float32)


def sound(path: Path, raw: bytes, width: int, channels: int = 1) -> str:
    with wave.open(str(path / "a.wav"), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(raw)
    return str(path / "a.wav")


@pytest.mark.parametrize(
    ("width", "raw"),
    [
        (1, bytes([0, 128, 255])),
        (2, np.array([-(1 << 15), 0, (1 << 15) - 1], "<i2").tobytes()),
        (3, b"\x00\x00\x80" + b"\x00\x00\x00" + b"\xff\xff\x7f"),
        (4, np.array([-(1 << 31), 0, (1 << 31) - 1], "<i4").tobytes()),
    ],
)
def test_samples_of_every_width_lie_between_minus_one_and_one(width: int, raw: bytes, tmp_path: Path) -> None:
    samples, rate = read_wav(sound(tmp_path, raw, width))
    assert rate == 8000 and samples.dtype == np.float32
    assert samples[0] == -1 and samples[1] == 0 and 1 - 2.0 ** (1 - 8 * min(width, 3)) * 2 <= samples[2] < 1


def test_of_several_channels_one_is_named_or_all_are_taken(tmp_path: Path) -> None:
    path = sound(tmp_path, np.array([1, 2, 3, 4], "<i2").tobytes(), 2, channels=2)
    np.testing.assert_array_equal(read_wav(path)[0] * 2**15, [1.5, 3.5])
    with pytest.raises(InvalidArgument, match="has only 2, counted from 0"):
        read_wav(path, 2)
    np.testing.assert_array_equal(read_wav(path, 1)[0] * 2**15, [2, 4])


def mono() -> Stream:
    return Stream(remembers()[0], a_stream(inputs=(an_input(dims=(1, 1, 4)),)))


def test_a_file_is_what_the_model_takes_or_told_what_would_be(tmp_path: Path) -> None:
    path = sound(tmp_path, np.arange(5, dtype="<i2").tobytes(), 2)
    feeds, rate = read_feeds(path, mono())
    assert feeds["x"].shape == (1, 1, 5) and rate == 8000
    np.save(tmp_path / "a.npy", np.zeros((1, 2, 9)))
    assert read_feeds(str(tmp_path / "a.npy"), Stream(*remembers()))[0]["x"].dtype == np.float32
    for name, says in (("none.npy", "no such input file"), ("a.txt", "must be a .npy, .npz or .wav")):
        (tmp_path / "a.txt").touch()
        with pytest.raises(InvalidChunk, match=says):
            read_feeds(str(tmp_path / name), mono())
    with pytest.raises(InvalidChunk, match=r"takes \[1, 1, time\], the file holds \[1, 2, 9\]"):
        read_feeds(str(tmp_path / "a.npy"), mono())
    np.savez(tmp_path / "a.npz", z=np.zeros(3))
    with pytest.raises(InvalidChunk, match=r"missing: \['x'\]; unknown: \['z'\]"):
        read_feeds(str(tmp_path / "a.npz"), mono())


@pytest.mark.parametrize(
    ("array", "dtype", "fine"),
    [
        (np.array([1.5]), np.float32, True),
        (np.array([3]), np.float32, True),
        (np.array([2**24 + 1]), np.float32, False),  # not that number any more
        (np.array([1.5]), np.int64, False),
        (np.array([300]), np.int8, False),
        (np.array([True]), np.int64, True),
    ],
)
def test_types_change_where_values_do_not(array: Array, dtype: Any, fine: bool) -> None:
    if fine:
        assert as_dtype("x", array, np.dtype(dtype)).dtype == dtype
    else:
        with pytest.raises(InvalidChunk, match="convert it first"):
            as_dtype("x", array, np.dtype(dtype))


def test_results_are_saved_as_they_can_be_and_that_is_said_before(tmp_path: Path) -> None:
    two = Stream(remembers()[0], a_stream(outputs=(an_output("y"), an_output("z"))))
    check_output(None, two)
    check_output("a.npz", two)
    for path, stream, says in (
        ("a.npy", two, r"\.npz"),
        ("a.mp3", mono(), r"\.npz"),
        ("a.wav", mono(), r"'y' is float32 .*not one channel of sound: save it as \.npy"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            check_output(path, stream)
    save_results(str(tmp_path / "one.npy"), {"y": np.arange(3)})
    save_results(str(tmp_path / "two.npz"), {"y": np.arange(3), "z": np.arange(2)})
    assert np.load(tmp_path / "one.npy").tolist() == [0, 1, 2] and np.load(tmp_path / "two.npz")["z"].tolist() == [0, 1]


def test_whole_samples_are_not_taken_for_sound_of_another_scale(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((1, 1, 9), 9000, np.int16))
    with pytest.raises(InvalidChunk, match=r"takes float32, the file holds int16: sound is scaled .*32768"):
        read_feeds(str(tmp_path / "a.npy"), mono())


def test_outputs_are_saved_whatever_they_are_called(tmp_path: Path) -> None:
    """As `file` and `allow_pickle`, which np.savez has for itself."""
    results = {name: np.arange(3) for name in ("file", "allow_pickle", "y")}
    save_results(str(tmp_path / "a.npz"), results)
    found = np.load(tmp_path / "a.npz")
    assert {n: found[n].tolist() for n in found.files} == {n: [0, 1, 2] for n in results}
