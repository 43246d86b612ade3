"""Long lists of cases take turns: some of them today, all of them among the slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any
from zlib import crc32

import pytest

TODAY = date.today().toordinal()
WHOLE = (
    "attention",
    "export",
    "inputs",
    "proof",
    "property",
    "recurrence",
    "serve",
    "signal",
    "whole",
    "zoo",
)  # folders of whole streams
LONG = ("fastconformer", "native", "asr", "flagship", "pooling", "recogniser", "rings", "bench")  # files that take long


def rotated(names: Iterable[str], of: int = 3) -> list[Any]:
    """Cases by name, each with its marks."""
    return [pytest.param(name, marks=turns(place, of)) for place, name in enumerate(names)]


def turns(place: int, of: int = 3) -> list[Any]:
    """Marks of the case at this place of a list: every `of`-th has its turn today."""
    return [] if place % of == TODAY % of else [pytest.mark.slow]


def share(items: Iterable[pytest.Item], of: int = 3) -> None:
    """Tests of whole streams take turns as well: every `of`-th of them has its turn today, by its name."""
    for item in items:
        long = item.path.parent.name in WHOLE or item.path.stem.removeprefix("test_") in LONG
        if long and crc32(item.nodeid.encode()) % of != TODAY % of:
            item.add_marker(pytest.mark.slow)
