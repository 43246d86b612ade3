"""SIGHUP: tokens and certificates are read again, and nothing else changes.

signal ── Hangups ── loop ──> Reloads ── a thread for each part: read ──> loop: take it, or keep what was there
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pulsify.core.errors import InvalidArgument
from pulsify.serve.opening import in_thread
from pulsify.serve.tokens import Tokens

if TYPE_CHECKING:
    from pulsify.serve.certificates import Certificates
    from pulsify.serve.service import Service

PATIENCE = 10.0  # seconds for files to be read
Part = Callable[[], Callable[[], str]]  # reads, in any thread; what it gives takes effect on the loop, and says so
log = logging.getLogger("pulsify.serve")


class Hangups:
    """The signal, from as early on as possible: by default it ends the process."""

    def __init__(self) -> None:
        self._call: Callable[[], object] | None = None
        self._missed = False
        self._terminal = os.isatty(0)

    def catch(self) -> None:
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, self._signalled)

    def ignore(self) -> None:
        """The process ends: a late one must not be taken for the reason."""
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def tell(self, call: Callable[[], object]) -> None:
        """Call it at every one of them, and now if there was one already. call: as a signal handler."""
        self._call = call
        if self._missed:
            self._missed = False
            self._signalled()

    @property
    def terminal_closed(self) -> bool:
        """Was it the terminal that this process was started from?"""
        return self._terminal and not os.isatty(0)

    def _signalled(self, *_: Any) -> None:
        if self._call is None:
            self._missed = True
            return
        with suppress(RuntimeError):  # the loop is closed: the process ends anyway
            self._call()


HANGUPS = Hangups()


class Reloads:
    """One reload at a time; however often it is asked for meanwhile, there is one more."""

    def __init__(self, service: Service, parts: Mapping[str, Part]) -> None:
        self._service, self._parts = service, dict(parts)
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def ask(self) -> None:
        """On the loop."""
        if self._task is not None and not self._task.done():
            self._again = True
        else:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._again = False
            well = [await self._reload(name, part) for name, part in self._parts.items()]
            self._service.figures.reloaded = all(well)
            if not self._again:
                return

    async def _reload(self, name: str, part: Part) -> bool:
        try:
            take = await asyncio.wait_for(in_thread(part, f"pulsify-reload-{name}"), PATIENCE)
            log.info("reloaded: %s", take())
        except TimeoutError:
            log.error("%s not reloaded: their files could not be read within %g s; the old ones stay", name, PATIENCE)
        except InvalidArgument as error:
            log.error("%s not reloaded: %s; the old ones stay", name, error)
        except Exception:
            log.exception("%s not reloaded; the old ones stay", name)
        else:
            return True
        return False


def tokens_part(service: Service, read: Callable[[], Tokens]) -> Part:
    """read: those of now. A server that asks for a token never stops asking."""

    def part() -> Callable[[], str]:
        tokens = read()
        if service.tokens and not tokens:
            raise InvalidArgument("there are none any more, and everyone could come")

        def take() -> str:
            service.tokens = tokens
            return f"tokens: {', '.join(name for name, _ in tokens.hashes[:20]) or 'none'}"

        return take

    return part


def certificates_part(certificates: Certificates) -> Part:
    def part() -> Callable[[], str]:
        context = certificates.read()

        def take() -> str:
            certificates.context = context
            return "certificate"

        return take

    return part
