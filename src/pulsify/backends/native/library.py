"""From C text to something that can be called: a compiler is looked for, and what it made is kept by content."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from pulsify.core.cache import user_cache
from pulsify.core.errors import CompileFailed, InvalidArgument
from pulsify.core.progress import tell

FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-w")
TIMEOUT = 600.0  # seconds
KEPT = 512  # libraries in the cache


def compiler() -> tuple[str, ...]:
    """$CC, cc, gcc, clang, or the one that ziglang brings."""
    asked = os.environ.get("CC", "").strip()
    if asked:
        words = tuple(shlex.split(asked))
        if shutil.which(words[0]) is None:
            raise InvalidArgument(f"CC={asked!r}: there is no such program; unset CC or name a C compiler")
        return words
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    if importlib.util.find_spec("ziglang") is not None:
        return sys.executable, "-m", "ziglang", "cc"
    raise InvalidArgument(
        "the back end 'native' needs a C compiler, and there is none: install one (cc, or name it in CC), "
        "or pip install 'pulsify[native]', which brings one"
    )


def available() -> bool:
    """Is there a compiler?"""
    try:
        return bool(compiler())
    except InvalidArgument:
        return False


@cache
def _version(words: tuple[str, ...]) -> str:
    try:
        said = subprocess.run([*words, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileFailed(f"{shlex.join(words)} does not run: {error}") from error
    return said.stdout + said.stderr


@cache
def _machine() -> str:
    """What -march=native depends on: a folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kept = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return "\n".join([platform.machine(), platform.processor(), *kept])


def cache_folder() -> Path:
    own = os.environ.get("PULSIFY_CACHE")
    if own:
        return Path(own)
    return user_cache() / "native"


def library(text: str) -> ctypes.CDLL:
    """The text compiled for this machine: taken from the cache if it is there and whole, else made, and kept."""
    words = compiler()
    key = hashlib.sha256("\0".join([text, *words, *FLAGS, _version(words), _machine()]).encode()).hexdigest()
    folder = cache_folder()
    kept = folder / f"{key}.so"
    if _whole(kept):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(kept))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = _compiled(text, words, Path(place))
            return _loaded(_kept(made, kept))
    except OSError as error:  # a full disk, or a folder that cannot be written
        return _elsewhere(text, words, error)


def _elsewhere(text: str, words: tuple[str, ...], why: OSError) -> ctypes.CDLL:
    """Without the cache; the file is gone once it is loaded."""
    try:
        with tempfile.TemporaryDirectory() as place:
            return _loaded(_compiled(text, words, Path(place)))
    except OSError as error:
        raise CompileFailed(
            f"the compiled step can be written neither to {cache_folder()} ({why}) nor to {tempfile.gettempdir()} "
            f"({error}): make room, or name another folder in PULSIFY_CACHE"
        ) from error


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileFailed(f"the compiled step cannot be loaded: {error}") from error


def _compiled(text: str, words: tuple[str, ...], place: Path) -> Path:
    tell("compiling the step as C")
    source, made = place / "step.c", place / "step.so"
    source.write_text(text, encoding="utf-8")
    said = ""
    for tuned in ("-march=native", "-mcpu=native", None):  # some compilers know the one, some the other
        command = [*words, *FLAGS, *([tuned] if tuned else []), str(source), "-o", str(made), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise CompileFailed(f"{shlex.join(words)} does not run: {error}") from error
        if done.returncode == 0 and made.exists():
            return made
        said = done.stderr
        if "No space left" in said:
            raise OSError(28, "no space left on device")
    raise CompileFailed(f"{shlex.join(words)} does not compile the step: {said.strip()[:2000]}")


def _whole(path: Path) -> bool:
    """Is it what was written? A library that is not could end the process."""
    try:
        said = path.with_suffix(".sum").read_text(encoding="ascii")
        return said == hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, UnicodeDecodeError):
        return False


def _kept(made: Path, target: Path) -> Path:
    """Moved into place in one go: another process sees all of it or nothing."""
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    said = made.with_suffix(".sum")
    said.write_text(digest, encoding="ascii")
    os.replace(made, target)
    os.replace(said, target.with_suffix(".sum"))
    _trim(target.parent)
    return target


def _trim(folder: Path) -> None:
    """The oldest go; what is loaded somewhere stays loaded."""
    with contextlib.suppress(OSError):
        found = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime)
        for path in found[:-KEPT]:
            path.unlink(missing_ok=True)
            path.with_suffix(".sum").unlink(missing_ok=True)
