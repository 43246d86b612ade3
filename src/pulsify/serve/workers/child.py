"""A worker: a server whose clients are handed over by its parent."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsify.serve.workers.channel import Channel, Message, hand_over, receive_now, take_over
from pulsify.serve.workers.counts import Part, own_memory
from pulsify.serve.workers.families import Family, packed
from pulsify.serve.workers.snapshots import InParent

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from pulsify.serve.running import Server
    from pulsify.serve.service import Service

VARIABLE = "PULSIFY_WORKER"  # file descriptors, for a process that is started as one
REPORT_EVERY = 0.25  # seconds
FIGURES_EVERY = 2.0  # seconds: what is counted after the last time is lost with a worker that is killed
PATIENCE = 2.0  # seconds for the others' figures
CLIENTS = 64  # taken at a time
REMEMBERED = 1024  # clients that came from another worker
LOOK_EVERY = 0.02  # seconds: has the number of streams changed?
log = logging.getLogger("pulsify.serve")


@dataclass(frozen=True)
class Link:
    """What a worker has from its parent."""

    control: socket.socket
    clients: socket.socket
    snapshots: InParent
    part: Part
    key: bytes  # signs snapshots, if none was given
    folder: Path  # converted models, for all workers
    guarded: bool  # other workers ask for a token


def link() -> Link | None:
    """If this process was started as a worker. Asked once."""
    if (text := os.environ.pop(VARIABLE, None)) is None:
        return None
    control, clients, snapshots = json.loads(text)
    own = socket.socket(fileno=control)
    hello = receive_now(own)
    return Link(
        own, socket.socket(fileno=clients), InParent(Connection(snapshots)), Part(**hello["part"]),
        bytes.fromhex(hello["key"]), Path(hello["folder"]), hello["guarded"],
    )  # fmt: skip


class Siblings:
    """The parent and all other workers, as the service of this one knows them."""

    def __init__(self, link: Link, service: Service) -> None:
        self._link, self._service = link, service
        self._channel: Channel
        self._server: Server
        self._seen = 0  # clients that were handed over
        self._arriving = 0  # those in the middle of a TLS handshake
        self._turns: dict[Any, int] = {}  # workers that had no room for one, by its address
        self._others: list[str | None] = []  # why they take no streams
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._figures: Callable[[], list[Metric]] | None = None

    async def join(self, server: Server) -> None:
        """On the loop that serves, once that is ready for clients."""
        self._server, self._channel = server, await Channel.over(self._link.control)
        models = [*self._service.models, *self._service.starting]
        self._channel.send("joined", models=models, guarded=bool(self._service.tokens))
        self._link.clients.setblocking(False)
        asyncio.get_running_loop().add_reader(self._link.clients.fileno(), self._take)
        for each in (self._listen(), self._report()):
            self._start(each)

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- what the service asks

    @property
    def any_ready(self) -> bool:
        """Does another worker take streams?"""
        return None in self._others

    def takes(self, stream: str, version: int) -> None:
        """A stream goes on here: whoever has it ends. They would notice by the store, but later."""
        self._channel.send("takes", stream=stream, version=version)

    async def families(self, own: list[Metric]) -> list[list[Family]]:
        """Figures of all workers; of those that do not answer, the last they said."""
        number = max(self._asked, default=0) + 1
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        families = packed(own)
        self._channel.send("ask", id=number, families=families)
        try:
            message = await asyncio.wait_for(answered, PATIENCE)
        except TimeoutError:
            log.warning("the parent process does not answer: /metrics has the figures of one worker only")
            return [families]
        finally:
            del self._asked[number]
        return [families, *message["families"]]

    def gives(self, figures: Callable[[], list[Metric]]) -> None:
        """Those of this process, for others that ask."""
        self._figures = figures

    # ---- clients

    def pass_on(self, transport: asyncio.BaseTransport, said: bytes) -> bool:
        """Another worker may have room for this client. Its connection is closed here then, and stays open there."""
        turns = self._turns.pop(transport.get_extra_info("peername"), 0) + 1
        if turns >= self._service.part.count or transport.get_extra_info("sslcontext"):
            return False
        return hand_over(self._link.clients, transport.get_extra_info("socket").fileno(), turns, said)

    def _take(self) -> None:
        for _ in range(CLIENTS):
            try:
                taken = take_over(self._link.clients)
            except EOFError:
                asyncio.get_running_loop().remove_reader(self._link.clients.fileno())
                return
            if taken is None:
                return
            self._seen += 1
            client, turns, said = taken
            if client is None:
                log.error("a client was lost: too many open files")
            else:
                self._start(self._serve(client, turns, said))

    async def _serve(self, client: socket.socket, turns: int, said: bytes) -> None:
        server, loop = self._server, asyncio.get_running_loop()
        config = server.config

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=server.server_state, app_state=server.lifespan.state, _loop=loop
            )

        client.setblocking(False)
        self._arriving += 1
        try:
            if turns:
                self._turns[client.getpeername()] = turns
                while len(self._turns) > REMEMBERED:
                    del self._turns[next(iter(self._turns))]
            _, http = await loop.connect_accepted_socket(protocol, client, ssl=config.ssl)
        except (OSError, asyncio.CancelledError):  # it is gone, or its handshake fails
            client.close()
        else:
            if said:
                http.data_received(said)
        finally:
            self._arriving -= 1

    # ---- the parent

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            getattr(self, f"_on_{message['kind']}")(message)
        if not self._service.draining:
            log.error("the parent process is gone")
            shutil.rmtree(self._link.folder, ignore_errors=True)
        await self._service.drain(0.0)
        self._server.should_exit = True

    def _on_part(self, message: Message) -> None:
        self._service.take_part(Part(**message["part"]))

    def _on_others(self, message: Message) -> None:
        self._others = message["unready"]

    def _on_figures(self, message: Message) -> None:
        self._channel.send("figures", id=message["id"], families=self._own())

    def _on_answers(self, message: Message) -> None:
        if (answered := self._asked.get(message["id"])) is not None and not answered.done():
            answered.set_result(message)

    def _on_takes(self, message: Message) -> None:
        self._service.taken_elsewhere(message["stream"], message["version"])

    def _on_drain(self, message: Message) -> None:
        self._server.handle_exit(signal.SIGTERM, None)

    def _on_stop(self, message: Message) -> None:
        self._server.should_exit = True

    def _own(self) -> list[Family]:
        return packed(self._figures()) if self._figures is not None else []

    # ---- what the parent is told

    async def _report(self) -> None:
        told = counted = time.monotonic()
        opened, before, unready = False, (0, 0), None
        while True:
            service, now = self._service, time.monotonic()
            if not opened and service.is_open:
                opened = True
                self._channel.send("opened", **self._cost())
            streams = (
                len(service.connections) + service.uploads.models.total() + self._arriving + len(service.doors.doors)
            )
            if (streams, self._seen) != before:
                before = streams, self._seen
                self._channel.send("streams", streams=streams, seen=self._seen)
                told = told if unready is None else -REPORT_EVERY  # there may be room again
            if now > told + REPORT_EVERY:
                told, unready = now, service.unready_here
                self._channel.send("status", unready=unready, used=service.used)
            if now > counted + FIGURES_EVERY:
                counted = now
                self._channel.send("figures", id=None, families=self._own())
            await asyncio.sleep(LOOK_EVERY)

    def _cost(self) -> dict[str, Any]:
        models = self._service.models.values()
        return {
            "models": [hosted.facts for hosted in models],
            "most": self._service.settings.machine.most,
            "streams": [hosted.capacity.in_time for hosted in models],
            "elsewhere": not all(hosted.own_thread for hosted in models),
            "memory": own_memory(),
        }
