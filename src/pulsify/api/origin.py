"""Where a stream comes from: the batch model, and the file it was loaded from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.core.weights import Stamp, stamp

if TYPE_CHECKING:
    from pulsify.api.model import Stream

UNKNOWN = (
    "this stream was loaded from a file, or sent from another process, and does not know its batch model: convert "
    "that with pulsify.stream, or run: pulsify report MODEL"
)


@dataclass(frozen=True)
class Origin:
    """The batch model as it was given, and the arguments of `stream` that say what it means."""

    source: object
    meaning: Mapping[str, object]


def write_page(stream: Stream, origin: Origin | None, path: str | os.PathLike[str], seconds: float) -> None:
    """The page of `pulsify report`. The package `report` stands above this one: it is looked up when it is called."""
    if origin is None:
        raise InvalidArgument(UNKNOWN)
    source = os.fspath(origin.source) if isinstance(origin.source, os.PathLike) else origin.source
    import_module("pulsify.report.writing").write_page(stream, source, origin.meaning, path, seconds)


@dataclass(frozen=True)
class SavedFile:
    """The file a stream was loaded from. files: what it and its weights were when it was checked."""

    path: str
    sealed: bool
    files: Mapping[str, Stamp]

    @property
    def name(self) -> str:
        return Path(self.path).name

    def unchanged(self) -> str | None:
        """The path, if it is still that file: its graph is in memory. Weights are read when needed, and must be."""
        for file, seen in self.files.items():
            if file != self.path and stamp(file) != seen:
                raise InvalidModel(
                    f"{Path(file).name!r}, the weights of {self.name!r}, has changed since the stream was loaded: "
                    "load it again"
                )
        return self.path if stamp(self.path) == self.files[self.path] else None
