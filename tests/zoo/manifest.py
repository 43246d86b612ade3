"""What the zoo holds, read from fixtures/manifest.json: no torch needed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Exporter = Literal["legacy", "dynamo"]
Family = Literal["foundation", "recurrence", "attention", "signal", "whole", "inputs"]

EXPORTERS: tuple[Exporter, ...] = get_args(Exporter)
FAMILIES: tuple[Family, ...] = get_args(Family)

FIXTURES = Path(__file__).parent / "fixtures"
MANIFEST = FIXTURES / "manifest.json"


def standard_input(shape: Sequence[int | str], length: int, seed: int = 1) -> npt.NDArray[np.float32]:
    """Seeded noise of the given shape, with `length` frames on the axis called "S"."""
    dims = [length if isinstance(d, str) else d for d in shape]
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


FOUND = ("attention_mask",)  # masks that are known to be all ones by their name
FILLS = {"ones": 1, "zeros": 0}


def mask_inputs(masks: Mapping[str, str], length: int) -> dict[str, npt.NDArray[np.int64]]:
    """[1, S] each, all of it ones or zeros."""
    return {name: np.full((1, length), FILLS[how], np.int64) for name, how in masks.items()}


@dataclasses.dataclass(frozen=True)
class Export:
    """One exporter's result for a case: a fixture, a model too large to keep, or the reason for neither."""

    file: str | None = None
    large: bool = False
    reason: str | None = None

    @property
    def exists(self) -> bool:
        return self.reason is None


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    family: Family
    shape: tuple[int | str, ...]
    axis: int
    pulse: int
    length: int
    streamable: bool
    note: str
    exports: dict[Exporter, Export]
    masks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def bind(self) -> dict[str, str]:
        """What must be said of the masks."""
        return {name: how for name, how in self.masks.items() if name not in FOUND}

    @property
    def time(self) -> str | None:
        """What must be said of time: a single open axis that comes first may be the batch."""
        return "S" if self.axis == 0 else None

    @property
    def expected(self) -> Literal["exact", "refused"]:
        return "exact" if self.streamable else "refused"

    @property
    def lengths(self) -> list[int]:
        """Whole pulses and not, long and short, down to a single pulse."""
        p = self.pulse
        return [self.length, self.length + 1, self.length + p // 2 + 1, p, 2 * p - 1, 3 * p + 1]

    def inputs(self, length: int) -> dict[str, npt.NDArray[Any]]:
        return {"x": standard_input(self.shape, length), **mask_inputs(self.masks, length)}

    def fixture(self, exporter: Exporter) -> Path:
        file = self.exports[exporter].file
        if file is None:
            raise LookupError(f"{self.name} has no {exporter} fixture")
        return FIXTURES / file


def load(path: Path = MANIFEST) -> list[Entry]:
    return [_entry(raw) for raw in json.loads(path.read_text())["cases"]]


def runnable(entries: Sequence[Entry], masks: bool = False) -> Iterator[tuple[Entry, Exporter]]:
    """Every pair of a case and an exporter that can export it. masks: those too that take masks beside x."""
    for entry in (e for e in entries if masks or not e.masks):
        for exporter in EXPORTERS:
            if entry.exports[exporter].exists:
                yield entry, exporter


def _entry(raw: dict[str, Any]) -> Entry:
    fields = {**raw, "shape": tuple(raw["shape"])}
    exports = {exporter: Export(**fields.pop(exporter)) for exporter in EXPORTERS}
    return Entry(**fields, exports=exports)
