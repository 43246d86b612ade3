"""The parent: it accepts clients, gives each to the worker with the fewest streams, and restarts workers that end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pulsify.serve.reload import HANGUPS
from pulsify.serve.store import Memory
from pulsify.serve.workers import counts
from pulsify.serve.workers.channel import Channel, Message, client_pair, hand_over, send_now, take_over
from pulsify.serve.workers.child import VARIABLE
from pulsify.serve.workers.counts import Part
from pulsify.serve.workers.families import Family, lasting, merged
from pulsify.serve.workers.snapshots import answer

BACKLOG = 2048  # clients that may wait to be accepted
ACCEPTS = 64  # at a time
FRESH = 2.0  # seconds: a worker that has said nothing for longer gets no clients if another one does
STUCK = 60.0  # seconds without a word after which a worker that was open is killed
STEADY = 30.0  # seconds that a worker lives at least, unless something is wrong
CRASHES = 5  # in a row: the server ends
PAUSES = 0.1, 10.0  # seconds before a worker is started again: the first time, and the longest
PATIENCE = 1.0  # seconds for figures of a worker
GRACE = 20.0  # seconds beyond those of a drain after which workers are killed
LAST = 255  # turns of a client that is not handed on any more
NO_CLIENTS = 0.2  # seconds, if a client cannot be accepted: too many open files
REPAIR = 2.0  # seconds after which files are looked at again that a worker cannot start with
USAGE = 2  # of one that was given what it cannot take
BUG = 70  # the exit code of a worker that was killed while it opened its models
log = logging.getLogger("pulsify.serve")


@dataclass(frozen=True)
class Plan:
    """What is started. count: None, as many as pay off. command: of a worker, but for what it has from its parent."""

    command: Sequence[str]
    count: int | None
    most: int
    keep_seconds: float
    drain_seconds: float
    cores: float = field(default_factory=counts.cores)


@dataclass(eq=False)
class Worker:
    """A process. streams: and connections that may become some. sent, seen: clients handed over, and those it took."""

    index: int
    process: asyncio.subprocess.Process
    channel: Channel
    clients: socket.socket
    began: float
    joined: bool = False
    opened: bool = False
    unready: str | None = "starting"
    streams: int = 0
    used: float = 0.0
    sent: int = 0
    seen: int = 0
    heard: float = 0.0
    figures: list[Family] = field(default_factory=list)

    def order(self, now: float) -> tuple[Any, ...]:
        """The least is given the next client."""
        late = now - self.heard > FRESH
        return (
            not self.opened, late, self.unready is not None and not self.unready.startswith("full"),
            self.unready is not None, self.streams + self.sent - self.seen, self.used,
        )  # fmt: skip


class Parent:
    """On an event loop of its own. joined, opened: called once, when a worker answers and when its models are open."""

    def __init__(
        self, plan: Plan, listening: socket.socket, joined: Callable[[list[str]], None],
        opened: Callable[[list[dict[str, Any]]], None],
    ) -> None:  # fmt: skip
        self._plan, self._listening = plan, listening
        self._once: dict[str, Callable[[Any], None]] = {"joined": joined, "opened": opened}
        self._count = min(plan.count or 1, plan.most)
        self._settled = plan.count is not None
        self._workers: dict[int, Worker] = {}
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._past: list[Family] = []  # counters of workers that are gone
        self._restarts = self._code = 0
        self._guarded = False  # workers ask for a token
        self._ending = asyncio.Event()
        self._accepting = False
        self._asked: dict[int, tuple[Worker, asyncio.Future[None]]] = {}
        self._asks = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._store, self._key = Memory(plan.keep_seconds), secrets.token_bytes(32)
        self._folder = Path(tempfile.mkdtemp(prefix="pulsify-"))

    async def run(self) -> int:
        """Until a signal ends it, or workers cannot be kept alive; the exit code."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._terminate)
        HANGUPS.tell(partial(self._loop.call_soon_threadsafe, self._hung_up))
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._slot(0)
        self._start(self._look())
        try:
            await self._ending.wait()
            await asyncio.gather(*self._slots.values())
        finally:
            for task in self._tasks:
                task.cancel()
            for worker in self._workers.values():
                with suppress(ProcessLookupError):
                    worker.process.kill()
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._code

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- processes

    def _slot(self, index: int) -> None:
        self._slots[index] = asyncio.create_task(self._kept(index))

    async def _kept(self, index: int) -> None:
        try:
            await self._keep(index)
        except Exception:  # a bug, and nobody would start this worker again
            log.exception("worker %d", index)
            self._fail(BUG, "a fault of the parent process")
            self._kill()

    async def _keep(self, index: int) -> None:
        """A worker with this number, again and again."""
        crashes, opened = 0, index > 0
        while not self._ending.is_set():
            worker = await self._started(index)
            code = await self._attended(worker)
            lived, opened = time.monotonic() - worker.began, opened or worker.opened
            if self._ending.is_set():
                return
            crashes = 1 if lived >= STEADY else crashes + 1
            if not opened:  # it has said why
                self._fail(code if code > 0 else BUG, None if code > 0 else f"a worker {_how(code)} as it started")
            elif code == USAGE:  # files that it reads are broken by now; the others have what they read before
                log.error("worker %d cannot start; tried again in %g s, the others go on", index, REPAIR)
                crashes = 0
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), REPAIR)
            elif crashes >= CRASHES:
                self._fail(BUG, f"worker {index} {_how(code)} after {lived:.1f} s, {crashes} times in a row")
            else:
                pause = min(PAUSES[0] * 2 ** (crashes - 1), PAUSES[1])
                log.warning("worker %d %s after %.1f s; it is started again in %g s", index, _how(code), lived, pause)
                self._restarts += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), pause)

    async def _started(self, index: int) -> Worker:
        pairs = [socket.socketpair(), client_pair(), socket.socketpair()]
        ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
        try:
            handles = [each.fileno() for each in theirs]
            process = await asyncio.create_subprocess_exec(
                *self._plan.command, pass_fds=handles, stdin=asyncio.subprocess.DEVNULL, process_group=0,
                env={**os.environ, VARIABLE: json.dumps(handles)},
            )  # fmt: skip
        finally:
            for each in theirs:
                each.close()
        send_now(ours[0], "hello", part=asdict(self._part(index)), key=self._key.hex(), folder=str(self._folder),
                 guarded=self._guarded)  # fmt: skip
        ours[1].setblocking(False)
        snapshots = Connection(ours[2].detach())
        threading.Thread(target=answer, args=(snapshots, self._store), daemon=True).start()
        now = time.monotonic()
        channel = await Channel.over(ours[0])
        worker = self._workers[index] = Worker(index, process, channel, ours[1], now, heard=now)
        self._loop.add_reader(ours[1].fileno(), self._taken_back, worker)
        if self._ending.is_set():
            process.terminate()
        return worker

    def _part(self, index: int) -> Part:
        return Part(index, self._count, self._plan.cores)

    async def _attended(self, worker: Worker) -> int:
        """Whatever it says, until it ends; its exit code."""
        while (message := await worker.channel.receive()) is not None:
            worker.heard = time.monotonic()
            getattr(self, f"_on_{message['kind']}")(worker, message)
        code = await worker.process.wait()
        del self._workers[worker.index]
        worker.channel.close()
        self._loop.remove_reader(worker.clients.fileno())
        worker.clients.close()
        self._past = merged([self._past, lasting(worker.figures)])
        for asked, answered in list(self._asked.values()):
            if asked is worker and not answered.done():
                answered.set_result(None)
        self._tell_unready()
        self._accept_if_any()
        return code

    # ---- what workers say

    def _on_joined(self, worker: Worker, message: Message) -> None:
        worker.joined = True
        self._guarded |= message["guarded"]
        self._call_once("joined", message)
        self._accept_if_any()

    def _on_opened(self, worker: Worker, message: Message) -> None:
        worker.opened = True
        self._call_once("opened", message)
        if not self._settled:
            self._settled = True
            count, why = counts.worth(counts.Cost.read(message), self._plan.cores, counts.free_memory())
            self._count = min(count, self._plan.most)
            log.info("%d worker%s: %s", self._count, "s" * (self._count > 1), why)
        for each in self._workers.values():
            each.channel.send("part", part=asdict(self._part(each.index)))
        for index in range(self._count):
            if index not in self._slots and not self._ending.is_set():
                self._slot(index)

    def _call_once(self, kind: str, message: Message) -> None:
        if (call := self._once.pop(kind, None)) is not None:
            call(message["models"])

    def _on_status(self, worker: Worker, message: Message) -> None:
        before = worker.unready
        worker.unready, worker.used = message["unready"], message["used"]
        if worker.unready != before:
            self._tell_unready()

    def _on_streams(self, worker: Worker, message: Message) -> None:
        worker.streams, worker.seen = message["streams"], message["seen"]

    def _on_takes(self, worker: Worker, message: Message) -> None:
        for other in self._workers.values():
            if other is not worker:
                other.channel.send("takes", stream=message["stream"], version=message["version"])

    def _on_figures(self, worker: Worker, message: Message) -> None:
        worker.figures = message["families"]
        asked = self._asked.get(message["id"])
        if asked is not None and not asked[1].done():
            asked[1].set_result(None)

    def _on_ask(self, worker: Worker, message: Message) -> None:
        worker.figures = message["families"]  # they are shown, so they outlive it
        self._start(self._answer(worker, message["id"]))

    async def _answer(self, asking: Worker, number: int) -> None:
        await asyncio.gather(*(self._refresh(w) for w in self._workers.values() if w is not asking))
        # read at one moment: the figures of a worker that ends meanwhile are in the past, and only there
        families = [w.figures for w in self._workers.values() if w is not asking]
        own = [
            {"name": "pulsify_workers", "about": "Worker processes that are alive.", "type": "gauge",
             "samples": [["pulsify_workers", {}, float(len(self._workers))]]},
            {"name": "pulsify_workers_open", "about": "Those of them whose models are open.", "type": "gauge",
             "samples": [["pulsify_workers_open", {}, float(sum(w.opened for w in self._workers.values()))]]},
            {"name": "pulsify_worker_restarts", "about": "Workers that ended and were started again.",
             "type": "counter", "samples": [["pulsify_worker_restarts_total", {}, float(self._restarts)]]},
        ]  # fmt: skip
        asking.channel.send("answers", id=number, families=[*families, self._past, own])

    async def _refresh(self, worker: Worker) -> None:
        """Its figures are as they are now, or as it has last said them."""
        if not worker.joined:
            return
        self._asks += 1
        number, answered = self._asks, self._loop.create_future()
        self._asked[number] = worker, answered
        worker.channel.send("figures", id=number)
        with suppress(TimeoutError):
            await asyncio.wait_for(answered, PATIENCE)
        del self._asked[number]

    def _tell_unready(self) -> None:
        for worker in self._workers.values():
            others = [w.unready for w in self._workers.values() if w is not worker]
            worker.channel.send("others", unready=others)

    # ---- clients

    def _accept_if_any(self) -> None:
        """There is no accepting while nobody can take them: they wait in the queue."""
        wanted = any(worker.joined for worker in self._workers.values())
        if wanted != self._accepting:
            self._accepting = wanted
            number = self._listening.fileno()
            self._loop.add_reader(number, self._accept) if wanted else self._loop.remove_reader(number)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                client, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("a client could not be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listening.fileno())
                self._accepting = False
                self._loop.call_later(NO_CLIENTS, self._accept_if_any)
                return
            with client:
                self._give(client)

    def _give(self, client: socket.socket, turns: int = 0, said: bytes = b"", by: Worker | None = None) -> None:
        """To the worker with the fewest streams, or back to the one that has no room, if there is no other."""
        now = time.monotonic()
        others = [w for w in self._workers.values() if w.joined and w is not by]
        for worker in [*sorted(others, key=lambda w: w.order(now)), *([by] if by is not None else [])]:
            if hand_over(worker.clients, client.fileno(), LAST if worker is by else turns, said):
                worker.sent += 1
                return
        log.warning("a client was turned away: no worker takes it")

    def _taken_back(self, worker: Worker) -> None:
        """Clients that a worker has no room for."""
        with suppress(EOFError):
            while (taken := take_over(worker.clients)) is not None:
                client, turns, said = taken
                worker.unready = worker.unready or "full"
                if client is not None:
                    with client:
                        self._give(client, turns, said, worker)
            return
        self._loop.remove_reader(worker.clients.fileno())

    # ---- the end

    async def _look(self) -> None:
        """Workers that say nothing any more are of no use."""
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for worker in list(self._workers.values()):
                if worker.opened and now - worker.heard > STUCK:
                    log.error("worker %d says nothing for %g s: it is killed", worker.index, STUCK)
                    worker.process.kill()
                    worker.heard = now

    def _hung_up(self) -> None:
        if HANGUPS.terminal_closed:
            self._terminate()
            return
        for worker in self._workers.values():
            if worker.joined:  # one that is not has read nothing yet that is to be read again
                worker.process.send_signal(signal.SIGHUP)

    def _terminate(self) -> None:
        """A first signal drains, a second one does not."""
        again = self._ending.is_set()
        self._ending.set()
        for worker in self._workers.values():
            if worker.joined:
                worker.channel.send("stop" if again else "drain")
            else:
                worker.process.terminate()
        self._loop.call_later(GRACE + (0 if again else self._plan.drain_seconds), self._kill)

    def _kill(self) -> None:
        for worker in self._workers.values():
            log.error("worker %d does not end: it is killed", worker.index)
            worker.process.kill()

    def _fail(self, code: int, why: str | None) -> None:
        """It ends by itself, in good order."""
        if why is not None:
            log.error("%s: the server ends", why)
        if not self._ending.is_set():
            self._code = code
            self._terminate()


def _how(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


async def run(plan: Plan, listening: socket.socket, joined: Callable[[list[str]], None],
              opened: Callable[[list[dict[str, Any]]], None]) -> int:  # fmt: skip
    """Until the server ends; its exit code."""
    return await Parent(plan, listening, joined, opened).run()


def command(arguments: Sequence[str]) -> list[str]:
    """Of a worker: what this process was asked to do, once more, with modules from the same places."""
    safe = [] if sys.path[0] in ("", os.getcwd()) else ["-P"]
    return [sys.executable, *safe, "-m", "pulsify", "serve", *arguments]
