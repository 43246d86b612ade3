"""Which tests of long lists belong to the default set: a fixed third; `./check --all` runs all of them.

`PULSIFY_TEST_SHARE=1` or `2` selects one of the other thirds instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import pytest

SHARES = 3
SHARE = int(os.environ.get("PULSIFY_TEST_SHARE", "0"))
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


def rotated(names: Iterable[str], of: int = SHARES) -> list[Any]:
    """Cases by name, each with its marks."""
    return [pytest.param(name, marks=turns(place, of)) for place, name in enumerate(names)]


def turns(place: int, of: int = SHARES) -> list[Any]:
    """Marks of the case at this place of a list: every `of`-th is in the default set."""
    return [] if place % of == SHARE % of else [pytest.mark.slow]


def share(items: Iterable[pytest.Item], of: int = SHARES) -> None:
    """Of tests of whole streams, chosen by a hash of the name, every `of`-th is in the default set."""
    for item in items:
        long = item.path.parent.name in WHOLE or item.path.stem.removeprefix("test_") in LONG
        if long and crc32(item.nodeid.encode()) % of != SHARE % of:
            item.add_marker(pytest.mark.slow)
