"""How far long work has come: told from wherever it is done, heard by whoever shows it; else it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
_HEARD: ContextVar[Callable[[str], None] | None] = ContextVar("_HEARD", default=None)


@contextmanager
def heard(by: Callable[[str], None]) -> Iterator[None]:
    """What is told inside goes to `by`."""
    before = _HEARD.set(by)
    try:
        yield
    finally:
        _HEARD.reset(before)


def tell(text: str) -> None:
    if (by := _HEARD.get()) is not None:
        by(text)


def counted(what: str, items: Iterable[Item]) -> Iterator[Item]:
    """The items; before each it is told which of how many it is."""
    listed = list(items)
    for at, item in enumerate(listed, 1):
        tell(f"{what} {at} of {len(listed)}")
        yield item
