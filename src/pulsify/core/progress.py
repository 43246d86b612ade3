"""How far long work has come: reported wherever it is done, passed on to whoever listens; else it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Listener = Callable[[str], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("_LISTENER", default=None)


@contextmanager
def heard(by: Listener) -> Iterator[None]:
    """Whatever is reported inside goes to `by`."""
    before = _LISTENER.set(by)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def listener() -> Listener | None:
    """Who listens to what is reported here."""
    return _LISTENER.get()


def tell(text: str) -> None:
    """Report what is being done."""
    if (by := _LISTENER.get()) is not None:
        by(text)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Whatever is reported inside is reported of this stage: `name: text`."""
    outer = _LISTENER.get()
    if outer is None:
        yield
        return
    outer(name)
    with heard(lambda text: outer(f"{name}: {text}")):
        yield


def counted(what: str, items: Iterable[Item]) -> Iterator[Item]:
    """The items; before each, which one of how many it is."""
    listed = list(items)
    for number, item in enumerate(listed, 1):
        tell(f"{what} {number} of {len(listed)}")
        yield item
