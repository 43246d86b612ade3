"""One line that shows what long work is doing: in terminals and notebooks, once it has taken two seconds.

`showing` is the line; `core/progress.py` is how the work reports. The command line and the Python API both use it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial, wraps
from html import escape
from threading import Lock, Timer
from typing import Any, ParamSpec, Protocol, TextIO, TypeVar

from pulsify.core.progress import Listener, heard, listener, tell

P = ParamSpec("P")
R = TypeVar("R")
DELAY = 2.0  # seconds of work before the line appears
BETWEEN = 0.2  # seconds between two messages to a notebook, each of which is sent to the browser
_SHOWN = Lock()  # held by the one line of this process


class Display(Protocol):
    """A line that is on screen."""

    def update(self, text: str) -> None: ...

    def close(self) -> None: ...


class TerminalLine:
    """A line of rich on a terminal, with a spinner; it is gone when the work is done.

    stderr is not redirected: PyTorch's exporters run with a stderr of their own, which would be put back too late.
    """

    def __init__(self, stream: TextIO, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        self._text = Text
        self._spinner = Spinner("dots", Text(text))
        console = Console(file=stream, force_terminal=True, force_jupyter=False)
        self._live = Live(
            self._spinner, console=console, transient=True, refresh_per_second=12.5, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip
        self._live.start(refresh=True)

    def update(self, text: str) -> None:
        self._spinner.update(text=self._text(text))

    def close(self) -> None:
        self._live.stop()


class NotebookLine:
    """A line of output in a notebook's cell, empty when the work is done. It needs no widgets."""

    def __init__(self, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        from IPython.display import display

        self._clock, self._sent = clock, clock()
        self._handle = display(_bundle(text), raw=True, display_id=True)

    def update(self, text: str) -> None:
        if self._clock() - self._sent >= BETWEEN:
            self._sent = self._clock()
            self._handle.update(_bundle(text), raw=True)

    def close(self) -> None:
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)


def _bundle(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": f"<i>{escape(text)}</i>"}


def audience() -> Callable[[str], Display] | None:
    """What draws a line where this runs; None if the output is neither a terminal nor a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return NotebookLine
    stream = sys.stderr
    return partial(TerminalLine, stream) if stream is not None and stream.isatty() else None


def later(seconds: float, action: Callable[[], None]) -> Callable[[], None]:
    """Do it after so many seconds, in a thread; what is returned cancels it."""
    timer = Timer(seconds, partial(copy_context().run, action))  # a notebook's cell is known by the context
    timer.daemon = True
    timer.start()
    return timer.cancel


class StatusLine:
    """What to show, and the display once there is one."""

    def __init__(self, text: str, draw: Callable[[str], Display], delay: float) -> None:
        self._text, self._draw, self._lock = text, draw, Lock()
        self._display: Display | None = None
        self._closed = False
        self._cancel: Callable[[], None] = lambda: None
        if delay > 0:
            self._cancel = later(delay, self._open)
        else:
            self._open()

    def update(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._display is not None:
                self._display.update(text)

    def close(self) -> None:
        self._cancel()
        with self._lock:
            self._closed = True
            if self._display is not None:
                self._display.close()
                self._display = None

    def _open(self) -> None:
        with self._lock:
            if not self._closed:
                self._display = self._draw(self._text)


@contextmanager
def showing(text: str, quiet: bool = False, delay: float | None = None) -> Iterator[Listener]:
    """Show `text`, and behind it whatever is reported inside; yields a function that changes the text.

    Inside another `showing` there is one line only, the outer one. Nothing is shown if the output is neither a
    terminal nor a notebook, or with quiet=True, which also holds for everything inside.
    """
    if quiet:
        with heard(_ignore):
            yield _ignore
        return
    if listener() is not None:
        yield tell
        return
    draw = audience()
    if draw is None or not _SHOWN.acquire(blocking=False):  # two threads at work: the second one is not shown
        yield _ignore
        return
    try:
        line = StatusLine(text, draw, DELAY if delay is None else delay)
        title = text

        def rename(name: str) -> None:
            nonlocal title
            title = name
            line.update(name)

        try:
            with heard(lambda detail: line.update(f"{title}: {detail}")):
                yield rename
        finally:
            line.close()
    finally:
        _SHOWN.release()


def watched(text: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show that a function is at work: `{}` in the text is its first argument's name; quiet=True hides it."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **options: P.kwargs) -> R:
            subject = next(iter(args), next(iter(options.values()), None))
            with showing(text.format(short_name(subject)), quiet=bool(options.get("quiet"))):
                return function(*args, **options)

        return run

    return decorate


def short_name(subject: Any) -> str:
    """A file's name without folders, for which a line has no room; of anything else its type."""
    if isinstance(subject, (str, os.PathLike)):
        path = os.fspath(subject)
        return os.path.basename(path) or str(path)
    return type(subject).__name__


def _ignore(text: str) -> None:
    """Nobody is shown anything."""
