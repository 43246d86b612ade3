"""Where things are shown: tables on stdout, progress on stderr and only where someone watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from pulsify.cli.options import QUIET
from pulsify.core.progress import heard

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPED_WIDTH = 80


def show(parts: Iterable[RenderableType]) -> None:
    """Print one part after the other, a blank line between them."""
    if hushed():
        return
    from pulsify.report.sheet import Sheet

    console = _console()
    for i, part in enumerate(parts):
        if i:
            console.print()
        console.print(part, soft_wrap=isinstance(part, Sheet))  # fits, or is wider on purpose


def line(text: str) -> None:
    """Print text as it is, however wide."""
    if not hushed():
        click.echo(text)


def hushed() -> bool:
    """Did the command get --quiet?"""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def _console() -> Console:
    from rich.console import Console

    # Names hold brackets and slashes: no markup, no guessing at what to colour.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


@contextmanager
def working(text: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is going on, and how far it has come; the function given changes it."""
    if quiet or hushed() or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, emoji=False).status(text) as status:
        now = text

        def say(what: str) -> None:
            nonlocal now
            now = what
            status.update(what)

        with heard(lambda far: status.update(f"{now}: {far}")):
            yield say


def short(path: str) -> str:
    """A file's name alone: a line of progress has no room for folders."""
    return os.path.basename(path) or path
