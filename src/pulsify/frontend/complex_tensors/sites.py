"""Places in the user's code: which line called the torch function that is being looked at."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch

PACKAGES = Path(str(torch.__file__)).parents[1]
STANDARD = f"{sysconfig.get_path('stdlib')}/"
INTERNAL = (*(f"{PACKAGES / name}/" for name in ("torch", "numpy", "onnxruntime", "onnx", "onnxscript", "onnx_ir")),
            f"{Path(__file__).parents[2]}/")  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A line of the user's code."""

    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        where = f"{self._shown()}:{self.line}" + (f", in {self.function}" if self.function else "")
        return f"{where}: `{self.source}`" if self.source else where

    def _shown(self) -> str:
        path = Path(self.file)
        return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


@dataclass(frozen=True)
class Fixed:
    """A number that the trace holds as a constant: where it was read, what it was read for, and its value."""

    site: Site | None
    purpose: str
    value: float


_fixed: ContextVar[list[Fixed] | None] = ContextVar("fixed", default=None)


def user_site() -> Site | None:
    """The innermost frame outside torch, numpy, Python's own library and pulsify."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_internal(name):
            return Site(name, frame.f_lineno, frame.f_code.co_qualname)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def site_of(error: BaseException) -> Site | None:
    """The innermost frame of an error, likewise."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_internal(f.filename)]
    if not frames:
        return None
    return Site(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)


STACKS = (  # how torch writes the frames of a call: the innermost first; last; a scripted function's own
    (re.compile(r"^\s*(?:\(node defined in )?(?P<file>\S.*)\((?P<line>\d+)\): (?P<function>.+)$", re.M), 1),
    (re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.M), -1),
    (re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)()(?P<function>)$', re.M), 1),
)


def site_in(text: str) -> Site | None:
    """The innermost frame outside torch and pulsify of a stack that torch wrote down."""
    for pattern, order in STACKS:
        for frame in list(pattern.finditer(text))[::order]:
            if not _is_internal(frame["file"]):
                return Site(frame["file"], int(frame["line"]), frame["function"])
    return None


def _is_internal(file: str) -> bool:
    return file.startswith(("<", *INTERNAL)) or (file.startswith(STANDARD) and "/site-packages/" not in file)


def record(purpose: str, value: float) -> None:
    """A number became a constant of the trace here."""
    if (found := _fixed.get()) is not None:
        found.append(Fixed(user_site(), purpose, value))


@contextmanager
def recording() -> Iterator[list[Fixed]]:
    """The list that `record` appends to."""
    entries: list[Fixed] = []
    token = _fixed.set(entries)
    try:
        yield entries
    finally:
        _fixed.reset(token)
