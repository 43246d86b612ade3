"""Everything that is served, and everyone who is connected. All of this is the event loop's."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from pulsify.backends.registry import DEFAULT
from pulsify.serve import detectors
from pulsify.serve.access import Client
from pulsify.serve.admission import SHARE
from pulsify.serve.claims import Claims
from pulsify.serve.doors import Doors
from pulsify.serve.hosted import Hosted, Machine
from pulsify.serve.logs import fields
from pulsify.serve.metrics import Figures
from pulsify.serve.opening import in_thread
from pulsify.serve.pace import Congestion
from pulsify.serve.protocol import Refused
from pulsify.serve.resuming import elsewhere
from pulsify.serve.scheduler import Live, News
from pulsify.serve.sources import ModelSource, Served
from pulsify.serve.store import Keeper, Memory, Store
from pulsify.serve.tokens import Tokens
from pulsify.serve.traces import Traces, open_traces
from pulsify.serve.turns import Turns
from pulsify.serve.uploads import Uploads
from pulsify.serve.vault import Vault
from pulsify.serve.workers.counts import Part

if TYPE_CHECKING:
    from pulsify.serve.connection import Connection
    from pulsify.serve.workers.child import Siblings

LOOK_EVERY = 0.25  # seconds
TRACES_SECONDS = 5.0  # for the last of them to be sent
IDLE = 0.05  # the share of what was measured as possible up to which streams are not what makes results late
log = logging.getLogger("pulsify.serve")


@dataclass(frozen=True)
class Limits:
    """Of every stream, and of those who ask for one.

    controls: pings, peeks and acks a second. run_bytes: the largest file that is run at once; run_seconds: in which it
    has to come. request_seconds: for a request over HTTP to begin and for its head to come. connections: of an address.
    """

    message_bytes: int = 1 << 20
    open_seconds: float = 10
    idle_seconds: float = 60
    total_seconds: float = 4 * 3600
    waiting_bytes: int = 4 << 20
    controls: float = 100
    run_bytes: int = 64 << 20
    run_seconds: float = 300
    request_seconds: float = 10
    connections: int = 4096

    def facts(self) -> dict[str, float]:
        """What a stream's client should know."""
        own = ("message_bytes", "open_seconds", "idle_seconds", "total_seconds", "waiting_bytes", "controls")
        return {name: getattr(self, name) for name in own}


@dataclass(frozen=True)
class Settings:
    """tokens: one of which clients must show. origins: pages from elsewhere that may connect; "*": all.

    aliases: names, or patterns of names, that clients of OpenAI's may use for a model, and its own. detector: of
    speech, for their turn detection; None: the one that is built in.
    hosts: names by which clients may call this server, beside addresses; "*": all.
    """

    machine: Machine = field(default_factory=Machine)
    limits: Limits = field(default_factory=Limits)
    tokens: Tokens = field(default_factory=Tokens)
    origins: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ("*",)
    detector: ModelSource | None = None
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    snapshot_seconds: float = 2.0
    keep_seconds: float = 600.0
    drain_seconds: float = 30.0


class Service:
    """Models by name. `start` and `stop` on the loop that serves.

    served: models that are open, and sources of others, which `start` opens in the background, in order. Until then
    they are in `starting`, and streams of them are refused as such.
    """

    def __init__(
        self, served: Sequence[Served | ModelSource], settings: Settings | None = None, store: Store | None = None
    ) -> None:
        self.settings = settings = settings or Settings()
        self.figures = Figures()
        self.tokens = settings.tokens  # as they were last read
        keeper = Keeper(store or Memory(settings.keep_seconds), settings.key)
        self.vault = Vault(Claims(keeper, settings.keep_seconds))
        self.models = {s.name: self._host(s) for s in served if isinstance(s, Served)}
        self.starting = {s.name: s for s in served if isinstance(s, ModelSource)}
        self.when_open: list[Callable[[], None]] = []  # called once all models are open, just before it is ready
        self.opening: asyncio.Task[None] | None = None  # fails if a model cannot be opened
        self.connections: dict[Connection, None] = {}
        self.resumable: dict[str, Connection] = {}  # by stream: the last one that went on with it
        self.uploads = Uploads(settings.limits)
        self.turns = Turns()
        limits = settings.limits
        self.doors = Doors(limits.connections, limits.request_seconds, limits.idle_seconds)
        self.tasks: set[asyncio.Future[None]] = set()
        self.traces = Traces()
        self.congestion = Congestion()
        self._rounds: dict[str, tuple[int, float]] = {}  # what the meters said at the last look, by model
        self.draining = False
        self.part = Part()
        self.siblings: Siblings | None = None  # if there are other workers
        self.name, self.numbers = secrets.token_hex(4), count(1)
        self.aside = ThreadPoolExecutor(4, "pulsify-aside")  # for resamplers, which take long
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        self._detector: asyncio.Task[Hosted] | None = None
        self.listeners = 0  # sessions with turn detection

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.traces = open_traces(self.name)
        for hosted in self.models.values():
            hosted.scheduler.start()
        self._looking = asyncio.create_task(self._look())
        self.opening = asyncio.create_task(self._open_models())

    def _host(self, served: Served) -> Hosted:
        self.figures.of(served.name)
        return Hosted(served, self.settings.machine, partial(self._deliver, served.name))

    def _open(self, source: ModelSource) -> Hosted:
        return self._host(source.open())

    async def _open_models(self) -> None:
        began = time.monotonic()
        for hosted in self.models.values():
            log.info("%s", hosted.summary)
        for name, source in list(self.starting.items()):
            hosted = await in_thread(partial(self._open, source), f"pulsify-open-{name}")
            hosted.scheduler.start()
            self.models[name] = hosted
            del self.starting[name]
            log.info("%s", hosted.summary)
        if any(hosted.served.kind == "text" for hosted in self.models.values()):
            await self.detector()
        for call in self.when_open:
            call()
        log.info("ready after %.1f s", time.monotonic() - began)

    def detector(self) -> asyncio.Task[Hosted]:
        """What hears in which frames somebody speaks, shared by all sessions with turn detection."""
        if self._detector is None:
            self._detector = asyncio.create_task(self._open_detector())
        return self._detector

    @property
    def detecting(self) -> Hosted | None:
        """The same, if it is open."""
        task = self._detector
        opened = task is not None and task.done() and not task.cancelled() and task.exception() is None
        return task.result() if task is not None and opened else None

    async def _open_detector(self) -> Hosted:
        settings, name = self.settings, detectors.NAME
        count = sum(hosted.served.kind == "text" for hosted in self.models.values())
        machine = replace(settings.machine, most=settings.machine.most * max(count, 1), backend=DEFAULT, options=None)
        source = settings.detector or detectors.detector_source()
        deliver = partial(self._deliver, name)
        hosted = await in_thread(lambda: Hosted(source.open(), machine, deliver), f"pulsify-open-{name}")
        hosted.scheduler.start()
        log.info("%s", hosted.summary.rpartition(", up to")[0])  # as many as sessions: it is no model of its own
        return hosted

    async def stop(self) -> None:
        for task in (self._looking, self.opening):
            if task is not None:
                task.cancel()
        for connection in list(self.connections):
            connection.refuse(Refused("going_away", "the server stops"))
        for hosted in self.models.values():
            await asyncio.to_thread(hosted.scheduler.stop)
        if self._detector is not None:
            self._detector.cancel()  # if it is still being opened
            for opened in await asyncio.gather(self._detector, return_exceptions=True):
                if isinstance(opened, Hosted):
                    await asyncio.to_thread(opened.scheduler.stop)
        self.aside.shutdown(wait=True)
        self.vault.end()
        if self.traces.close is not None:
            await asyncio.wait({in_thread(self.traces.close, "pulsify-traces")}, timeout=TRACES_SECONDS)

    async def drain(self, seconds: float | None = None) -> None:
        """Take no more streams, give those that are here some time to end, then their snapshot."""
        self.draining = True
        log.info("draining: %d streams are open", len(self.connections))
        seconds = self.settings.drain_seconds if seconds is None else seconds
        for connection in list(self.connections):
            connection.warn("draining", "the server goes away; end, or come back with your token", seconds=seconds)
        end = time.monotonic() + seconds
        while self.connections and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for connection in list(self.connections):
            connection.send_away()
        end = time.monotonic() + 5
        while self.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)

    # ---- who may come

    def named(self, name: str) -> str:
        """The model that a client of OpenAI's means."""
        if name in self.models or name in self.starting:
            return name
        model = next((model for alias, model in self.settings.aliases if fnmatchcase(name, alias)), None)
        if model is None:
            names = ", ".join([*self.models, *self.starting])
            message = f"{name[:80]!r}: there are {names}; the server's option --alias gives a model more names"
            raise Refused("unknown_model", message)
        return model

    def rejected(self, refused: Refused, client: Client) -> None:
        """A request that was not let in."""
        self.figures.rejections[refused.code] += 1
        log.info("rejected", extra=fields(reason=refused.code, client=client.address, token=client.token))

    def take_over(self, connection: Connection) -> bool:
        """It goes on with its stream, and whoever had it ends; False if another one was quicker."""
        claim = connection.resumption.claim
        assert claim is not None
        other = self.resumable.get(claim.stream)
        if other is not None:
            assert other.resumption.claim is not None
            if other.resumption.claim.version >= claim.version:
                return False
            other.refuse(elsewhere())
        self.resumable[claim.stream] = connection
        if self.siblings is not None:
            self.siblings.takes(claim.stream, claim.version)
        return True

    def taken_elsewhere(self, stream: str, version: int) -> None:
        """Another worker goes on with it; whoever has an older claim ends."""
        other = self.resumable.get(stream)
        if other is not None and other.resumption.claim is not None and other.resumption.claim.version < version:
            other.refuse(elsewhere())

    def left(self, connection: Connection) -> None:
        claim = connection.resumption.claim
        if claim is not None and self.resumable.get(claim.stream) is connection:
            del self.resumable[claim.stream]

    def hosted(self, name: str) -> Hosted:
        if name in self.starting:
            raise Refused("starting", f"{name!r} is being opened; try again in a few seconds")
        if name not in self.models:
            raise Refused("unknown_model", f"there are {', '.join(self.models)}")
        return self.models[name]

    def admit(self, name: str) -> Hosted:
        """The model, if there is room for one more stream of it. Said at once."""
        hosted = self.hosted(name)
        if self.draining:
            raise Refused("too_many_streams", "the server is going away")
        taken = self.taken()
        if taken[name] >= self.part.of(hosted.machine.most):
            raise Refused(
                "too_many_streams", f"{taken[name]} streams of {name!r} are open, and that is all there may be"
            )
        shares = sum(count * self.models[other].share for other, count in taken.items()) + self._listening()
        if taken.total() and shares + hosted.share > self.part.time:
            raise Refused("too_many_streams", f"there is no time for more than {taken.total()} streams")
        if self.congestion.present and self.used > IDLE:
            raise Refused("too_many_streams", "the streams that are here take all the time there is")
        return hosted

    def _listening(self) -> float:
        """The share of time that turn detection takes. Its messages are those of the recogniser's streams."""
        if not self.listeners or self._detector is None:
            return 0.0
        hosted = self._detector.result()
        slowdown = hosted.scheduler.meter.pace.slowdown
        return self.listeners * replace(hosted.capacity, message=0.0).share(slowdown)

    @property
    def used(self) -> float:
        """The share of what was measured as possible that is taken."""
        return sum(count / self.models[name].capacity.streams for name, count in self.taken().items())

    def take_part(self, part: Part) -> None:
        """One of several workers: connections are spread evenly over them."""
        self.part = part
        self.doors.most = math.ceil(self.settings.limits.connections / part.count)

    def room(self, hosted: Hosted) -> int:
        """For how many streams of it there is time here, and place."""
        in_time = hosted.capacity.in_time
        most = self.part.of(hosted.machine.most)
        return most if in_time is None else min(most, max(1, math.floor(in_time * self.part.time)))

    def taken(self) -> Counter[str]:
        """Streams by model."""
        return Counter(c.hosted.served.name for c in self.connections) + self.uploads.models

    def recogniser(self) -> str:
        """The first one there is, for clients that name none."""
        found = next((name for name, h in self.models.items() if h.served.kind == "text"), None)
        return found or next(iter(self.starting), "")

    @property
    def ready(self) -> bool:
        """Are streams taken, of any model?"""
        return self.unready is None

    @property
    def is_open(self) -> bool:
        """Are all models open?"""
        return self.opening is not None and self.opening.done() and not self.starting

    @property
    def unready(self) -> str | None:
        """Why no streams are taken, by this worker or another; None: they are."""
        reason = self.unready_here
        return None if self.siblings is not None and self.siblings.any_ready else reason

    @property
    def unready_here(self) -> str | None:
        if self.draining:
            return "draining: the server is going away"
        if not self.is_open:
            return f"starting: {', '.join(self.starting) or 'models'} not open yet"
        reasons = [self._refusal(name) for name in self.models]
        return None if None in reasons else f"full: {reasons[0]}"

    def _refusal(self, name: str) -> str | None:
        try:
            self.admit(name)
        except Refused as refused:
            return refused.message
        return None

    # ---- from the threads

    def _deliver(self, model: str, batch: list[tuple[Live, list[News]]]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._delivered, model, time.monotonic(), batch)

    def _delivered(self, model: str, computed: float, batch: list[tuple[Live, list[News]]]) -> None:
        traffic = self.figures.of(model)
        self.turns.begin()
        for live, news in batch:
            try:
                live.peer.hear(news)
            except Refused as refused:  # by whoever moves the bytes
                live.peer.refuse(refused)
            except Exception:  # a bug, which must not take the others' frames with it
                log.exception("news of a stream", extra=live.about)
                live.peer.refuse(Refused("failed", "its frames could not be sent; the server's log has more"))
            if isinstance(news[-1], (bytes, str)):
                traffic.lag.add(time.monotonic() - live.when + self.figures.loop_late)
        self.turns.finish()
        traffic.deliver.add(time.monotonic() - computed, len(batch))

    def _late(self) -> bool:
        """Have results been late since the last look: by the event loop, or by rounds of a model?"""
        taken, late = self.taken(), False
        for name, hosted in self.models.items():
            pulse, meter = hosted.capacity.pulse_seconds, hosted.scheduler.meter
            took, self._rounds[name] = meter.mean_round(self._rounds.get(name, (0, 0.0)))
            if taken[name] and pulse is not None:
                late |= self.figures.loop_late > pulse or max(took, meter.under_way) > SHARE * pulse
        return late

    async def _look(self) -> None:
        while True:
            due = time.monotonic() + LOOK_EVERY
            await asyncio.sleep(LOOK_EVERY)
            now = time.monotonic()
            self.figures.loop_late = max(now - due, 0.0)
            self.figures.loop.add(self.figures.loop_late)
            self.congestion.look(self._late())
            for connection in list(self.connections):
                connection.look(now)
            self.doors.look(now)
