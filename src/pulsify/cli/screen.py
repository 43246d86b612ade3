"""Where things are shown: tables on stdout, progress on stderr and only where someone watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from pulsify.cli.options import QUIET
from pulsify.core.progress import Listener
from pulsify.core.status_line import short_name, showing

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
def working(text: str, quiet: bool = False) -> Iterator[Listener]:
    """A line on stderr that shows what is being done, from the start; yields a function that changes it."""
    with showing(text, quiet or hushed(), delay=0.0) as say:
        yield say


short = short_name
