"""Compilers and the cache: found or said, kept by content, and whatever lies there is never loaded blindly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsify.backends.native import library
from pulsify.core.errors import CompileFailed, InvalidArgument

TEXT = "int answer(void) { return 42; }\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PULSIFY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.so"))


def test_what_was_compiled_once_is_taken_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.library(TEXT).answer() == 42
    assert len(kept(cache)) == 1
    monkeypatch.setattr(library, "_compiled", lambda *_: pytest.fail("compiled again"))
    assert library.library(TEXT).answer() == 42


@pytest.mark.parametrize("damage", [b"", b"\x7fELF and no more", b"nothing"])
def test_a_damaged_file_is_made_anew(cache: Path, damage: bytes) -> None:
    library.library(TEXT)
    (path,) = kept(cache)
    path.unlink()  # a library that is loaded must not be written to
    path.write_bytes(damage)
    assert library.library(TEXT).answer() == 42
    assert library._whole(path)


def test_two_processes_at_once(cache: Path) -> None:
    code = f"from pulsify.backends.native.library import library; assert library({TEXT!r}).answer() == 42"
    path = os.pathsep.join(p for p in sys.path if p)
    runs = [subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}) for _ in range(4)]
    assert [run.wait(120) for run in runs] == [0] * 4
    assert len(kept(cache)) == 1 and library._whole(kept(cache)[0])
    assert not [p for p in cache.iterdir() if p.is_dir()]  # nothing is left behind


def test_the_oldest_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "KEPT", 2)
    for number in range(4):
        assert library.library(f"int answer(void) {{ return {number}; }}\n").answer() == number
    assert len(kept(cache)) == 2 and len(list(cache.glob("*.sum"))) == 2


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PULSIFY_CACHE", str(tmp_path / "file" / "cache"))
    assert library.library(TEXT).answer() == 42


def test_a_full_disk_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(library, "_compiled", full)
    with pytest.raises(CompileFailed, match=r"No space left.*PULSIFY_CACHE"):
        library.library(TEXT)


def test_no_compiler_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(library.shutil, "which", lambda _: None)
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidArgument, match=r"CC.*pulsify\[native\]"):
        library.compiler()
    assert not library.available()


def test_the_compiler_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -g")
    assert library.compiler() == ("cc", "-g")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InvalidArgument, match="no-such-compiler"):
        library.compiler()


def test_without_one_installed_it_is_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang", reason="pip install 'pulsify[native]'")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(library.shutil, "which", lambda _: None)
    assert library.compiler() == (sys.executable, "-m", "ziglang", "cc")
    assert library.library(TEXT).answer() == 42


def test_text_that_is_no_c() -> None:
    with pytest.raises(CompileFailed, match="does not compile"):
        library.library("this is no C")
