"""For all tests: caches of any size are kept as rings, so that the small models here show what large ones do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsify.backends.ort import ring
from tests.selection import share


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share(items)


@pytest.fixture(autouse=True, scope="session")
def rings_of_any_size() -> Iterator[None]:
    before, ring.SMALLEST = ring.SMALLEST, 0
    yield
    ring.SMALLEST = before
