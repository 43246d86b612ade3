"""One client with one stream, seen from the event loop: what may be said when, limits, and what is said back.

It knows nothing of sockets: whoever moves the bytes is a `Peer`, and calls `text`, `binary` and `gone`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from pulsify.serve import protocol
from pulsify.serve.access import NOBODY, Client
from pulsify.serve.logs import fields
from pulsify.serve.protocol import CLOSE, NORMAL, Ack, EndUtterance, Flush, Open, Peek, Ping, Refused, Sound, said
from pulsify.serve.resuming import Resumption, elsewhere
from pulsify.serve.scheduler import LEAST, Done, Live, News, Opened, Peeked, Snapped, Taken, Uttered, cost
from pulsify.serve.store import Kept, StoreFailed
from pulsify.serve.turns import Allowance

if TYPE_CHECKING:
    from pulsify.serve.flow import Chain
    from pulsify.serve.hosted import Hosted
    from pulsify.serve.service import Service

PATIENCE = 5.0  # seconds for a client to take its last messages
UTTERANCES = "utterances"  # how many ends of them a client has, among its outputs
LONGEST_TEXT = 1 << 16  # characters
BURST = 10  # seconds' worth of pings, peeks and acks that may come at once
log = logging.getLogger("pulsify.serve")


class Peer(Protocol):
    """Whoever moves the bytes."""

    def send(self, message: bytes | str) -> None: ...
    def close(self, code: int, reason: str) -> None: ...
    def abort(self) -> None: ...
    def pause(self, paused: bool) -> None: ...
    def waiting(self) -> int: ...


class Connection:
    """From `open` to the end."""

    def __init__(self, service: Service, hosted: Hosted, peer: Peer, client: Client = NOBODY) -> None:
        self.service, self.hosted, self.peer = service, hosted, peer
        self.limits = service.settings.limits
        self._traffic = service.figures.of(hosted.served.name)
        self.live: Live | None = None
        self.began = self.heard = time.monotonic()
        self.opened: Open | None = None
        self.flushed = self.over = self.warned = False
        self.resumption = Resumption(service, hosted.served.name)
        self._given, self._wanted = Sound(), Sound()
        self._early: list[bytes | str] = []  # what came while the way of its sound was made
        self._posted = self._taken = 0  # cost of messages for the thread, and of those that do not wait any more
        self._asks = Allowance(self.limits.controls, BURST * self.limits.controls)
        self._paused = False
        self._until = 0.0  # when an ended connection is cut
        self._outcome = "left"
        self.name = f"{service.name}-{next(service.numbers)}"  # never given twice
        about = {"stream": self.name, "client": client.address, "model": hosted.served.name, "token": client.token}
        self.span = service.traces.stream(about, client.trace)
        self.about = fields(**about, trace=self.span.trace)
        service.connections[self] = None

    # ---- from the client

    def text(self, text: str) -> None:
        if self.over:
            return
        self.heard, waiting = time.monotonic(), self.peer.waiting()
        self._traffic.received(len(text))
        try:
            self._said(text)
        except Refused as refused:
            self.refuse(refused)
        if not self.over:  # answers may wait unread, too
            self._check_reader(waiting)

    def binary(self, data: bytes) -> None:
        if self.over:
            return
        self.heard = time.monotonic()
        self._traffic.received(len(data))
        if self.opened is None or self.flushed:
            self.refuse(Refused("bad_message", f"frames {'after flush' if self.flushed else 'before open'}"))
        elif self.live is None:
            self._wait_early(data)
        else:
            self._post(self.live, "data", data, cost(len(data)))

    def _post(self, live: Live, kind: str, value: Any, size: int) -> None:
        """A message for the thread. Nothing more is read while too much waits."""
        self._posted += size
        self.hosted.scheduler.post(live, kind, value)
        if self._posted - self._taken > live.room and not self._paused:
            self._paused = True
            self.peer.pause(True)

    def half_closed(self) -> None:
        """It sends no more, and may still listen: what is inside goes out, then the connection ends."""
        if self.over:
            return
        if self.opened is None:
            self.finish(NORMAL, "")
        elif self.live is None:
            self._wait_early('{"type": "flush"}')
        elif not self.flushed:
            self._flush()

    def alive(self) -> None:
        self.heard = time.monotonic()

    def gone(self) -> None:
        """Nobody is there any more. Snapshots stay: a client may have crashed with all of this unread."""
        self.over = True
        if self._paused:  # others may speak through the same peer
            self._paused = False
            self.peer.pause(False)
        if self.live is not None:
            self.hosted.scheduler.post(self.live, "close")
        self.service.connections.pop(self, None)
        self.service.left(self)
        self.service.figures.ended[self.hosted.served.name, self._outcome] += 1
        seconds = round(time.monotonic() - self.began, 3)
        self.span.end(self._outcome)
        log.info("stream ended", extra=fields(**self.about["fields"], outcome=self._outcome, seconds=seconds))

    def _said(self, text: str) -> None:
        if len(text) > LONGEST_TEXT:
            raise Refused("too_large", f"a text message has {LONGEST_TEXT} characters at the most")
        message = protocol.parse(text)
        if isinstance(message, (Ping, Peek, Ack)) and not self._asks.spend():
            raise protocol.too_many("pings, peeks and acks", self.limits.controls)
        if isinstance(message, Open):
            if self.opened is not None:
                raise Refused("bad_message", "open was said already")
            self.opened = message
            self._open(message)
            return
        if isinstance(message, Ping):
            self.peer.send(said("pong", id=message.id))
            return
        if self.opened is None or (self.flushed and not isinstance(message, Ack)):
            raise Refused("bad_message", "not after flush" if self.flushed else "open comes first")
        if self.live is None:
            self._wait_early(text)
        elif isinstance(message, Flush):
            self._flush()
        elif isinstance(message, EndUtterance):
            self._post(self.live, "utterance", LEAST, LEAST)
        elif isinstance(message, Peek):
            self._post(self.live, "peek", LEAST, LEAST)
        elif isinstance(message, Ack) and message.mark == self.resumption.mark:
            self._post(self.live, "acked", LEAST, LEAST)
            if not self.resumption.confirmed:
                self._aside(self._still_ours(self.resumption.confirm()))

    def _flush(self) -> None:
        assert self.live is not None
        self.flushed = True
        self.span.event("flush")
        self.hosted.scheduler.post(self.live, "end")

    def _wait_early(self, message: bytes | str) -> None:
        self._early.append(message)
        self._posted += cost(len(message))
        if not self._paused and self._posted > self.limits.waiting_bytes:
            self._paused = True
            self.peer.pause(True)

    # ---- opening

    def _open(self, message: Open) -> None:
        if not message.resume:
            self._given, self._wanted = message.input, message.output
            chain = self.hosted.known(message.input, message.output)
            if chain is not None:
                self._begin(chain, None)
                return
        self._aside(self._open_aside(message))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that the client need not wait for. It is held until it is through."""
        task = asyncio.ensure_future(work)
        self.service.tasks.add(task)
        task.add_done_callback(self.service.tasks.discard)

    async def _open_aside(self, message: Open) -> None:
        """What takes longer: a resampler that was not there yet, a snapshot out of a store."""
        loop = asyncio.get_running_loop()
        try:
            kept = None
            self._given, self._wanted = message.input, message.output
            if message.token is not None:
                kept = await self.resumption.find(message.token, message.have)
                self._given, self._wanted = (Sound(*kept.facts[k]) for k in ("input", "output"))
            chain = await loop.run_in_executor(self.service.aside, self.hosted.chain, self._given, self._wanted)
            if message.resume:
                await self._name_it(message.token, kept)
            if not self.over:
                self._begin(chain, kept)
        except Refused as refused:
            self.refuse(refused)
        except Exception as error:
            log.exception("open of a stream", extra=self.about)
            self.refuse(Refused("failed", f"the stream could not be opened ({type(error).__name__})"))

    async def _name_it(self, token: str | None, kept: Kept | None) -> None:
        """A token of its own, under which there is something from the start."""
        if token is not None and kept is not None:
            await self.resumption.take(token, kept, self._given, self._wanted)
        elif (why := await self.resumption.begin(self._given, self._wanted)) is not None:
            self.warn("store_failed", why)
        if not self.over and not self.service.take_over(self):
            raise elsewhere()

    async def _still_ours(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Refused as refused:
            self.refuse(refused)

    def _begin(self, chain: Chain, kept: Kept | None) -> None:
        assert self.opened is not None
        keeps = self.service.settings.snapshot_seconds if self.opened.resume else None
        self.live = Live(chain, self, keeps, chain.room(self.limits.waiting_bytes), about=self.about)
        self.service.figures.opened[self.about["fields"].get("token", "")] += 1
        resumed = None if kept is None else True
        self.span.event("opened", format=self._given.format, rate=self._given.rate, resumed=resumed)
        log.info("stream opened", extra=fields(**self.about["fields"], format=self._given.format, resumed=resumed))
        self.hosted.scheduler.post(self.live, "open", None if kept is None else (kept.blob, self.opened.have))
        early, self._early, self._posted = self._early, [], 0
        if self._paused:
            self._paused = False
            self.peer.pause(False)
        for message in early:
            self.text(message) if isinstance(message, str) else self.binary(message)

    # ---- to the client

    def hear(self, news: list[News]) -> None:
        """What the thread has for it. Whether somebody reads is told by what is left of the last time."""
        waiting = self.peer.waiting()
        for each in news:
            if self.over:
                return
            if isinstance(each, (bytes, str)):
                self._traffic.sent(len(each))
                self.peer.send(each)
            else:
                self._heard(each)
        if self.flushed:
            self.heard = time.monotonic()
        self._check_reader(waiting)

    def _heard(self, news: Any) -> None:
        if isinstance(news, Taken):
            self._taken = news.count
            assert self.live is not None
            if self._paused and (news.hungry or self._posted - self._taken <= self.live.room // 2):
                self._paused = False
                self.peer.pause(False)
        elif isinstance(news, Opened):
            self.peer.send(said("ready", **self._ready(news)))
        elif isinstance(news, Peeked):
            self._peeked(news)
        elif isinstance(news, Snapped):
            self._aside(self._keep(news))
        elif isinstance(news, Uttered):
            self._uttered(news)
        elif isinstance(news, Done):
            self.peer.send(said("done", **_counts(news), **news.more))
            self._outcome = "done"
            self.finish(NORMAL, "done")
        elif isinstance(news, Refused):
            self.refuse(news)

    def _ready(self, news: Opened) -> dict[str, Any]:
        assert self.live is not None
        chain, rate = self.live.chain, self.hosted.served.sample_rate
        forms = [
            {"format": s.format, "rate": (s.rate or rate) if s.sound else rate} for s in (self._given, self._wanted)
        ]
        return {
            "protocol": protocol.VERSION,
            "stream": self.name,
            **self.hosted.facts,
            "latency_seconds": self.hosted.latency_seconds(chain, self._given),
            **forms[0],
            "output": forms[1],
            "limits": self.limits.facts(),
            "token": self.resumption.token,
            **_counts(news),
        }

    def _uttered(self, news: Uttered) -> None:
        if self.opened is not None and news.utterances <= self.opened.have.get(UTTERANCES, 0):
            return  # the client has it from before a cut
        error = {} if news.error is None else {"error": {"code": news.error.code, "message": news.error.message}}
        self.span.event("utterance")
        self.peer.send(said("utterance", **_counts(news), **news.more, **error))

    def _peeked(self, news: Peeked) -> None:
        more = {} if news.error is None else {"error": news.error}
        if self.hosted.served.kind == "text":
            added = "".join(protocol.json_object(m)["added"] for m in news.messages if isinstance(m, str))
            self.peer.send(said("peek", text=added, **more))
            return
        self.peer.send(said("peek", messages=len(news.messages), **more))
        for message in news.messages:
            self.peer.send(message)

    async def _keep(self, news: Snapped) -> None:
        """Into the store, and only then said."""
        assert self.live is not None
        try:
            mark = await self.resumption.keep(_gone(news), news.blob, self._given, self._wanted)
        except Refused as refused:
            self.refuse(refused)
        except StoreFailed as error:
            if not self.over:
                self.warn("store_failed", str(error))
                self.hosted.scheduler.post(self.live, "acked")
        else:
            if not self.over:
                self.peer.send(said("ack", mark=mark, **_counts(news)))
        if news.final and not self.over:
            self.refuse(Refused("going_away", "the server stops; go on elsewhere with your token"))

    def warn(self, code: str, message: str, **more: Any) -> None:
        if not self.over:
            self.span.event("warning", code=code, message=message)
            self.peer.send(said("warning", code=code, message=message, **more))

    def _check_reader(self, waiting: int) -> None:
        if waiting > self.limits.waiting_bytes:
            self.refuse(Refused("slow_reader", f"{waiting} bytes wait to be read"))
        elif waiting > self.limits.waiting_bytes // 2 and not self.warned:
            self.warned = True
            self.warn("slow_reader", f"{waiting} bytes wait to be read; at {self.limits.waiting_bytes} the stream ends")
        elif self.warned and waiting < self.limits.waiting_bytes // 8:
            self.warned = False

    # ---- the end

    def refuse(self, refused: Refused) -> None:
        """The stream is over, and the client is told why."""
        if self.over:
            return
        self._outcome = refused.code
        self.span.event("error", code=refused.code, message=refused.message)
        self.peer.send(protocol.error(refused))
        self.finish(CLOSE[refused.code], refused.code)

    def finish(self, code: int, reason: str) -> None:
        self.over = True
        self._until = time.monotonic() + PATIENCE
        if self.live is not None:
            self.hosted.scheduler.post(self.live, "close")
        self.peer.close(code, reason)

    def send_away(self) -> None:
        """The server stops: the last snapshot, for those who have a token."""
        if self.live is not None and self.resumption.token is not None and not self.flushed:
            self.hosted.scheduler.post(self.live, "snap")
        else:
            self.refuse(Refused("going_away", "the server stops"))

    def look(self, now: float) -> None:
        """Is any time up?"""
        limits = self.limits
        if self.over:
            if now > self._until:
                self.peer.abort()
        elif self.opened is None and now - self.began > limits.open_seconds:
            self.refuse(Refused("idle", f"open did not come within {limits.open_seconds:g} seconds"))
        elif now - self.began > limits.total_seconds:
            self.refuse(Refused("too_long", f"{limits.total_seconds:g} seconds are over"))
        elif now - self.heard > limits.idle_seconds and not self._paused:
            self.refuse(Refused("idle", f"nothing came for {limits.idle_seconds:g} seconds"))
        elif self.live is not None:
            if self.resumption.due(now):
                self._aside(self._still_ours(self.resumption.check()))
            if self.resumption.old(now):
                self.live.snapped = None  # another one is taken, though nothing has come


def _counts(news: Opened | Uttered | Snapped | Done) -> dict[str, Any]:
    """As messages say it. Utterances only if any has ended: most clients never end one."""
    ended = {"utterances": news.utterances} if news.utterances else {}
    return {"received": news.received, "sent": news.sent, **ended}


def _gone(news: Snapped) -> dict[str, int]:
    """What a client must have to go on from a snapshot: its outputs, and the ends of utterances."""
    return {UTTERANCES: news.utterances, **news.sent} if news.utterances else news.sent
