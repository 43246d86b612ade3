"""One thread for the streams of one model: it alone touches their stages, and calls the model.

    loop ── post ──> inbox │ take: frames to seats │ wait for company │ step every stage │ ── deliver ──> loop

Whatever becomes of a stream goes back in one call a round. A stream is known by its own object, never by its slot, so a
late message of one that is gone reaches nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from pulsify.core.errors import PulsifyError
from pulsify.serve.flow import Chain, Flow, refusal
from pulsify.serve.metrics import Meter
from pulsify.serve.protocol import Refused
from pulsify.serve.stage import Stage, Step

Messages = list[bytes | str]
TOLD_EVERY = 1 << 16  # bytes
TICK = 0.1  # seconds between looks at what is due, while nothing comes
PEEK_EVERY = 0.25  # seconds: a peek costs as much as a pulse that nobody shares
PEEK_SHARE = 0.1  # of the time, for those of all streams
EASY, FULL = 0.3, 0.7  # shares of time in rounds between which company is waited for ever longer
RECENT = 0.05  # what one round counts in them
log = logging.getLogger("pulsify.serve")


@dataclass(frozen=True)
class Done:
    """The stream has ended well."""

    received: dict[str, int]
    sent: dict[str, int]
    more: dict[str, Any]


@dataclass(frozen=True)
class Opened:
    """It has its place."""

    received: dict[str, int]
    sent: dict[str, int]


@dataclass(frozen=True)
class Peeked:
    messages: Messages
    error: str | None = None


@dataclass(frozen=True)
class Snapped:
    """A snapshot was taken: what had come and gone by then."""

    received: dict[str, int]
    sent: dict[str, int]
    blob: bytes
    final: bool  # the stream goes no further here


@dataclass(frozen=True)
class Taken:
    """So many bytes of it, since its start, do not wait any more. hungry: what waits is no whole pulse."""

    count: int
    hungry: bool = False


News = bytes | str | Done | Opened | Peeked | Snapped | Taken | Refused
Deliver = Callable[[list[tuple["Live", list[News]]]], None]


@dataclass(eq=False)
class Live:
    """One stream. The thread has `flow`; the event loop has `peer`, and knows what it has posted."""

    chain: Chain
    peer: Any = None
    keeps: float | None = None  # seconds between snapshots
    room: int = 1 << 62  # bytes that may wait
    about: dict[str, Any] = field(default_factory=dict)  # facts for log lines
    flow: Flow | None = None
    over: bool = False
    when: float = 0.0  # the last chunk came
    came: int = 0  # bytes of frames
    told: int = 0  # of them the event loop knows to be computed
    next_peek: float = 0.0
    next_snapshot: float = 0.0
    snapped: dict[str, int] = field(default_factory=dict)
    may_snap: bool = True  # the one before has arrived


class Scheduler:
    """The thread. `post` is for everyone, the rest is its own."""

    def __init__(self, name: str, wait: float, deliver: Deliver, stretch: float = 0.0) -> None:
        """wait: seconds for company; stretch: as long at the most, when there is hardly time for all."""
        self.name, self.meter = name, Meter()
        self._wait, self._stretch, self._deliver = wait, max(stretch, wait), deliver
        self._load, self._rounded = 0.0, time.monotonic()  # the share of time in rounds, of late; the last one's end
        self._inbox: SimpleQueue[tuple[Live | None, str, Any, float]] = SimpleQueue()
        self._stages: list[tuple[int, Stage]] = []
        self._lives: dict[Live, None] = {}
        self._news: dict[Live, list[News]] = {}
        self._peeking: dict[Live, None] = {}  # those that wait for an answer
        self._since: float | None = None  # when the oldest of what is ready came
        self._next_look = self._next_peek = self._began = 0.0
        kinds = ("open", "data", "end", "peek", "acked", "snap", "close")
        self._on = {kind: getattr(self, f"_on_{kind}") for kind in kinds}
        self._thread = threading.Thread(target=self._run, name=f"pulsify-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After what is posted; returns when it has."""
        self._inbox.put((None, "stop", None, 0.0))
        self._thread.join()

    def post(self, live: Live, kind: str, value: Any = None) -> None:
        """open (a state and what the client has, or None), data, end, peek, acked, snap, close. Never waits."""
        self._inbox.put((live, kind, value, time.monotonic()))

    def __len__(self) -> int:
        return len(self._lives)

    # ---- the thread

    def _run(self) -> None:
        going = True
        while going:
            try:
                going = self._take(TICK)
                while going and any(stage.ready for _, stage in self._stages):
                    self._company()
                    going = self._drain()
                    self._round()
                    self._answer_peeks()
                    self._hand_out()
                    self._look()
                self._answer_peeks()
                self._hand_out()
                self._look()
            except Exception:  # no stream's fault, and none may suffer: the thread must go on
                log.exception("in the thread of %s", self.name)

    def _take(self, timeout: float) -> bool:
        """Wait for something to come, and take all there is."""
        try:
            item = self._inbox.get(timeout=timeout)
        except Empty:
            return True
        return self._handle(*item) and self._drain()

    def _drain(self) -> bool:
        going = True
        for _ in range(self._inbox.qsize()):
            going = self._handle(*self._inbox.get_nowait()) and going
        return going

    def _company(self) -> None:
        """A moment for others to come, unless everyone is here or somebody has waited that long.

        The less time there is, the longer: a model takes much less for many at once than for the same one by one.
        """
        now = time.monotonic()
        since = self._since if self._since is not None else now
        pressed = min(max((self._load - EASY) / (FULL - EASY), 0.0), 1.0)
        left = since + self._wait + (self._stretch - self._wait) * pressed - now
        if left > 0 and sum(len(stage.ready) for _, stage in self._stages) < len(self._lives):
            time.sleep(left)

    def _handle(self, live: Live | None, kind: str, value: Any, when: float) -> bool:
        if live is None:
            return False
        if live.over or (live.flow is None and kind != "open"):
            return True
        try:
            self._on[kind](live, value, when)
        except Refused as refused:
            self._fail(live, refused)
        except PulsifyError as error:
            self._fail(live, refusal(error, 0))
        except Exception:
            log.exception("%s of a stream of %s", kind, self.name, extra=live.about)
            self._fail(live, Refused("failed", f"{kind} failed; the server's log has more"))
        return True

    # ---- what is posted

    def _on_open(self, live: Live, value: Any, when: float) -> None:
        try:
            live.flow = Flow(live.chain, live)
        except PulsifyError as error:
            raise Refused("too_many_streams", str(error)) from error
        for at, link in enumerate(live.chain.links):
            self._register(live.chain.order[at], link.stage)
        if value is not None:
            blob, have = value
            try:
                live.flow.restore(blob, have) if blob else live.flow.sink.skip(have)
            except (PulsifyError, ValueError, LookupError) as error:
                raise Refused("unknown_stream", f"its snapshot does not fit this server's model ({error})") from error
        self._lives[live] = None
        live.snapped = dict(live.flow.received)
        live.next_snapshot = when + (live.keeps or 0)
        self._tell(live, Opened(dict(live.flow.received), dict(live.flow.sink.sent)))

    def _register(self, order: int, stage: Stage) -> None:
        if all(s is not stage for _, s in self._stages):
            self._stages = [each for each in self._stages if each[1].seats]  # a rate that nobody sends any more
            self._stages.append((order, stage))
            self._stages.sort(key=lambda each: each[0])

    def _on_data(self, live: Live, data: bytes, when: float) -> None:
        assert live.flow is not None
        live.when = when
        live.came += len(data) - live.chain.source.head
        live.flow.take(data)
        if self._since is None:
            self._since = when
        if live.came - live.told > live.room // 2 and live.flow.starved():
            self._feed_on(live)

    def _feed_on(self, live: Live) -> None:
        """The event loop may have stopped reading what this stream waits for."""
        assert live.flow is not None
        live.told = live.flow.computed()
        if live.came - live.told > live.room:
            raise Refused("bad_frames", live.flow.uneven())
        self._tell(live, Taken(live.told, hungry=True))

    def _on_end(self, live: Live, value: Any, when: float) -> None:
        assert live.flow is not None
        live.when = when
        if live in self._peeking:
            del self._peeking[live]
            self._tell(live, Peeked([], "flush came before it could be told"))
        live.flow.end()

    def _on_peek(self, live: Live, value: Any, when: float) -> None:
        """Answered once nearly all that has come is computed: a peek would hold everybody up with it."""
        if live in self._peeking or when < live.next_peek or time.monotonic() < self._next_peek:
            self._tell(live, Peeked([], f"not so often: every {PEEK_EVERY} seconds at the most"))
        elif live.flow is not None and live.flow.behind():
            self._peeking[live] = None
        else:
            self._peek(live)

    def _answer_peeks(self) -> None:
        for live in list(self._peeking):
            now = time.monotonic()
            if now >= self._next_peek and live.flow is not None and not live.flow.behind():
                del self._peeking[live]
                self._handle(live, "peek", None, now)

    def _peek(self, live: Live) -> None:
        assert live.flow is not None
        start = time.monotonic()
        try:
            self._tell(live, Peeked(live.flow.peek()))
        except PulsifyError as error:
            self._tell(live, Peeked([], str(error)))
        now = time.monotonic()
        live.next_peek, self._next_peek = now + PEEK_EVERY, now + (now - start) / PEEK_SHARE

    def _on_acked(self, live: Live, value: Any, when: float) -> None:
        live.may_snap = True

    def _on_snap(self, live: Live, value: Any, when: float) -> None:
        """The last snapshot: the stream goes on elsewhere, or nowhere."""
        assert live.flow is not None
        self._snap(live, final=True)

    def _on_close(self, live: Live, value: Any, when: float) -> None:
        self._end(live)

    # ---- what comes of it

    def _round(self) -> None:
        """A pulse or a few of everyone who has them, through all stages."""
        start, pulses, one = time.perf_counter(), 0, 0.0
        self._began = time.monotonic()
        for _, stage in self._stages:
            if not stage.ready:
                continue
            doing, began = list(stage.ready), time.perf_counter()
            try:
                steps: Sequence[Step] = stage.step()
            except (
                Exception
            ):  # an engine says what it must with PulsifyError: this is a bug, of which others know nothing
                log.exception("a step of %s", self.name)
                for seat in doing:
                    self._fail(seat.owner[0].owner, Refused("failed", "the model failed; the server's log has more"))
                continue
            for step in steps:
                self._stepped(step)
            pulses = max(pulses, len(doing) * stage.taken)
            one += (time.perf_counter() - began) / stage.taken
        left = any(stage.ready for _, stage in self._stages)
        self._since = self._since if left else None
        spent, now = time.perf_counter() - start, time.monotonic()
        self._load += RECENT * (min(spent / max(now - self._rounded, spent), 1.0) - self._load)
        self._rounded = now
        self.meter.round(pulses, spent, one)
        self.meter.compute.add(spent, len(self._news))

    def _stepped(self, step: Step) -> None:
        flow, at = step.seat.owner
        live: Live = flow.owner
        if live.over:
            return
        try:
            messages = flow.passed(at, step) if step.made or step.error is None else []
        except PulsifyError as error:
            self._fail(live, refusal(error, at))
            return
        except Exception:
            log.exception("frames of a stream of %s", self.name, extra=live.about)
            self._fail(live, Refused("failed", "its frames could not be given out; the server's log has more"))
            return
        enough = min(TOLD_EVERY, live.room // 4)
        if live.came - live.told >= enough and (taken := flow.computed()) - live.told >= enough:
            live.told = taken
            self._tell(live, Taken(taken))
        if messages:
            if live in self._news:
                self._news[live] += messages
            else:
                self._news[live] = messages
            self.meter.queue.add(self._began - live.when)
        if step.error is not None:
            self._fail(live, refusal(step.error, at))
        elif flow.done:
            self._tell(live, Done(dict(flow.received), dict(flow.sink.sent), flow.sink.done()))
            self._end(live)

    def _tell(self, live: Live, news: News) -> None:
        self._news.setdefault(live, []).append(news)

    def _fail(self, live: Live, refused: Refused) -> None:
        if not live.over:
            self._tell(live, refused)
            self._end(live)

    def _end(self, live: Live) -> None:
        live.over = True
        self._lives.pop(live, None)
        self._peeking.pop(live, None)
        if live.flow is not None:
            live.flow.close()

    def _hand_out(self) -> None:
        if self._news:
            news, self._news = self._news, {}
            self._deliver(list(news.items()))

    # ---- snapshots

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + TICK
        for live in list(self._lives):
            if live.keeps is not None and live.may_snap and now >= live.next_snapshot:
                self._snap(live, final=False)
                live.next_snapshot = now + live.keeps

    def _snap(self, live: Live, final: bool) -> None:
        flow = live.flow
        assert flow is not None
        if flow.ended or (flow.received == live.snapped and not final):
            return
        try:
            made = Snapped(dict(flow.received), dict(flow.sink.facts()["made"]), flow.state(), final)
        except PulsifyError as error:
            self._fail(live, refusal(error, 0))
            return
        live.snapped, live.may_snap = made.received, False
        self._tell(live, made)
        if final:
            self._end(live)
