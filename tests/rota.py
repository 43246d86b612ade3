"""Long lists of cases take turns: some of them today, all of them among the slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

import pytest

TODAY = date.today().toordinal()


def rotated(names: Iterable[str], of: int = 3) -> list[Any]:
    """Cases by name, each with its marks."""
    return [pytest.param(name, marks=turns(place, of)) for place, name in enumerate(names)]


def turns(place: int, of: int = 3) -> list[Any]:
    """Marks of the case at this place of a list: every `of`-th has its turn today."""
    return [] if place % of == TODAY % of else [pytest.mark.slow]
