"""Converted streams of what comes with pulsify are kept, and used only if all is as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.asr import kept as keeping
from pulsify.asr.kept import FILE, kept
from tests.models import frames, look_ahead

PROTO = look_ahead("B")


class Converting:
    """Converts, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> pulsify.Stream:
        self.count += 1
        return pulsify.stream(PROTO, 4, verify=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PULSIFY_CACHE", str(tmp_path / "cache"))
    onnx.save(PROTO, tmp_path / "m.onnx")
    return tmp_path


def only(folder: Path) -> Path:
    (place,) = (p for p in (folder / "cache/streams").iterdir() if not p.name.startswith("."))
    return place


def test_a_kept_stream_is_the_one_that_was_made(folder: Path) -> None:
    convert, x = Converting(), frames(1, 2, 45)
    first, second = (kept(folder / "m.onnx", ("pulse", 4), convert) for _ in range(2))
    assert convert.count == 1
    np.testing.assert_array_equal(first.run(x), second.run(x))


def test_other_options_and_another_model_are_converted(folder: Path) -> None:
    convert = Converting()
    kept(folder / "m.onnx", ("pulse", 4), convert)
    kept(folder / "m.onnx", ("pulse", 8), convert)
    (folder / "n.onnx").write_bytes((folder / "m.onnx").read_bytes() + b"\x32\x00")
    kept(folder / "n.onnx", ("pulse", 4), convert)
    assert convert.count == 3


def test_another_pulsify_converts_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = Converting()
    kept(folder / "m.onnx", (), convert)
    monkeypatch.setattr(keeping, "_made_by", lambda: "another")
    kept(folder / "m.onnx", (), convert)
    assert convert.count == 2


def test_a_damaged_file_is_converted_again_and_replaced(folder: Path) -> None:
    convert = Converting()
    kept(folder / "m.onnx", (), convert)
    file = only(folder) / FILE
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))
    kept(folder / "m.onnx", (), convert)
    assert convert.count == 2
    kept(folder / "m.onnx", (), convert)
    assert convert.count == 2


def test_without_a_place_to_keep_it_in_it_is_converted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("no folder")
    monkeypatch.setenv("PULSIFY_CACHE", str(folder / "file"))
    convert = Converting()
    assert kept(folder / "m.onnx", (), convert).pulse == 4
    assert convert.count == 1


def test_only_so_many_are_kept(folder: Path) -> None:
    convert = Converting()
    for number in range(keeping.MOST + 2):
        kept(folder / "m.onnx", number, convert)
    assert len(list((folder / "cache/streams").iterdir())) == keeping.MOST
