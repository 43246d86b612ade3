"""The server as a process: uvicorn, signals, and an end in good order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from pulsify.core.errors import InvalidArgument
from pulsify.serve import access
from pulsify.serve.app import Application
from pulsify.serve.certificates import Certificates
from pulsify.serve.door import HEAD_BYTES, Door
from pulsify.serve.doors import raise_open_files
from pulsify.serve.listening import Options, url
from pulsify.serve.reload import HANGUPS, Reloads, certificates_part, tokens_part
from pulsify.serve.service import Service
from pulsify.serve.tokens import Tokens
from pulsify.serve.wire import Wire
from pulsify.serve.workers.child import Link, Siblings

log = logging.getLogger("pulsify.serve")
ReadTokens = Callable[[], Tokens]
SWITCH = 0.0005  # seconds: how long one thread may keep another waiting for the interpreter


class Server(uvicorn.Server):
    """On the first signal streams are given time to end, on the second they are not."""

    def __init__(
        self, config: uvicorn.Config, service: Service, certificates: Certificates | None, read: ReadTokens | None
    ) -> None:
        super().__init__(config)
        self._service, self._draining = service, False
        self._certificates = certificates
        parts = {} if read is None else {"tokens": tokens_part(service, read)}
        if certificates is not None:
            parts["certificates"] = certificates_part(certificates)
        self._reloads = Reloads(service, parts)
        self.failure: BaseException | None = None  # why it ended by itself: a model that cannot be opened

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._certificates is not None:
            self.config.ssl = self._certificates.served()  # its files are read once, there
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        HANGUPS.tell(partial(loop.call_soon_threadsafe, self._hung_up))
        if self._service.siblings is not None:
            await self._service.siblings.join(self)
        if self._service.opening is not None:
            self._service.opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            self.failure, self.should_exit = error, True

    def _hung_up(self) -> None:
        if not HANGUPS.terminal_closed:
            self._reloads.ask()
        elif not self._draining:
            self.handle_exit(signal.SIGTERM, None)

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._draining and self._service.siblings is not None:
            return  # a second one is the parent's to tell: systemd signals all processes of a service
        if self._draining or sig not in (signal.SIGTERM, signal.SIGINT):
            super().handle_exit(sig, frame)
            return
        self._draining = True
        loop = asyncio.get_event_loop()
        loop.call_soon_threadsafe(lambda: loop.create_task(self._drain()))

    async def _drain(self) -> None:
        await self._service.drain()
        self.should_exit = True


def tune() -> None:
    """This process is a server, its models open: they are not looked through again for garbage while streams wait."""
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()


def server(service: Service, options: Options, read: ReadTokens | None = None) -> Server:
    """read: tokens as they are now, at a SIGHUP."""
    if options.tls_key is not None and options.tls_cert is None:
        raise InvalidArgument("--tls-key has no --tls-cert that goes with it")
    certificates = None if options.tls_cert is None else Certificates(options.tls_cert, options.tls_key)
    config = uvicorn.Config(
        Application(service),
        host=options.host,
        port=options.port,
        ws=partial(Wire, service),  # type: ignore[arg-type]
        http=partial(Door, service),  # type: ignore[arg-type]
        h11_max_incomplete_event_size=HEAD_BYTES,
        log_config=None,
        log_level="error",  # a client that talks nonsense is no news
        lifespan="on",
        timeout_graceful_shutdown=5,
    )
    return Server(config, service, certificates, read)


def warn_if_open(service: Service, options: Options) -> None:
    """Other machines can come, and nothing is asked of them."""
    if not service.tokens and not access.is_local(options.host):
        log.warning("listening at %s without a token: whoever can reach it can use it; see --token", options.host)


def run(
    service: Service,
    options: Options,
    listening: socket.socket,
    listens: Callable[[str], None],
    read: ReadTokens | None = None,
) -> None:
    """Until a signal ends it; raises what a model cannot be opened for.

    listens: called with the URL once clients are answered, models open or not. `service.when_open` follows later.
    read: tokens as they are now, at a SIGHUP.
    """
    sys.setswitchinterval(SWITCH)
    service.when_open.insert(0, tune)
    runner = server(service, options, read)
    listening.listen(runner.config.backlog)
    listens(url(options, listening))
    warn_if_open(service, options)
    raise_open_files(_streams(service))
    runner.run([listening])
    if runner.failure is not None:
        raise runner.failure


def _streams(service: Service) -> int:
    """So many there may be."""
    return service.settings.machine.most * (len(service.models) + len(service.starting))


def run_worker(service: Service, options: Options, link: Link, read: ReadTokens | None = None) -> None:
    """The same for one of several processes: clients come from its parent."""
    sys.setswitchinterval(SWITCH)
    service.when_open.insert(0, tune)
    service.take_part(link.part)
    service.siblings = Siblings(link, service)
    runner = server(service, options, read)
    raise_open_files(_streams(service))
    if not link.part.index:
        warn_if_open(service, options)
    runner.run([])
    if runner.failure is not None:
        raise runner.failure
