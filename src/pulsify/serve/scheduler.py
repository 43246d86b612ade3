"""One thread for the streams of one model: it alone touches their stages, and calls the model.

    loop ─ post ─> inboxes │ take: frames to seats │ wait for company │ step every stage │ ─ deliver ─> loop

Every stream has an inbox of its own, and those with something in it stand in one line: of each a few messages are
taken, then it is the next one's turn. What a message costs its stream until it is computed is told by `cost`.

Whatever becomes of a stream goes back in one call a round. A stream is known by its own object, never by its slot, so a
late message of one that is gone reaches nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from pulsify.core.errors import InvalidLength, PulsifyError
from pulsify.serve.flow import Chain, Flow, refusal
from pulsify.serve.metrics import Meter
from pulsify.serve.protocol import Refused
from pulsify.serve.stage import Stage, Step

Messages = list[bytes | str]
LEAST = 256  # bytes that any message costs, however small
A_TURN, AT_ONCE = 4, 256  # messages that are taken of one stream at least, of all at most, before the next round
TOLD_EVERY = 1 << 16  # bytes
TICK = 0.1  # seconds between looks at what is due, while nothing comes
PEEK_EVERY = 0.25  # seconds: a peek costs as much as a pulse that nobody shares
PEEK_SHARE = 0.1  # of the time, for those of all streams
EASY, FULL = 0.3, 0.7  # shares of time in rounds between which company is waited for ever longer
RECENT = 0.05  # what one round counts in them
log = logging.getLogger("pulsify.serve")


def cost(size: int) -> int:
    """What a message takes of the room that a stream has for what waits."""
    return size if size > LEAST else LEAST


@dataclass(frozen=True)
class Done:
    """The stream has ended well."""

    received: dict[str, int]
    sent: dict[str, int]
    utterances: int
    more: dict[str, Any]


@dataclass(frozen=True)
class Uttered:
    """An utterance of the stream has ended, perhaps because of an error; the next one begins."""

    received: dict[str, int]
    sent: dict[str, int]
    utterances: int
    more: dict[str, Any]
    error: Refused | None = None


@dataclass(frozen=True)
class Opened:
    """It has its place."""

    received: dict[str, int]
    sent: dict[str, int]
    utterances: int


@dataclass(frozen=True)
class Peeked:
    messages: Messages
    error: str | None = None


@dataclass(frozen=True)
class Snapped:
    """A snapshot was taken: what had come and gone by then."""

    received: dict[str, int]
    sent: dict[str, int]
    utterances: int
    blob: bytes
    final: bool  # the stream goes no further here


@dataclass(frozen=True)
class Taken:
    """So much of what its messages cost, since its start, does not wait any more.

    hungry: what waits is no whole pulse.
    """

    count: int
    hungry: bool = False


News = bytes | str | Done | Uttered | Opened | Peeked | Snapped | Taken | Refused
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
    inbox: deque[tuple[str, Any, float]] = field(default_factory=deque)
    queued: bool = False  # it stands in the scheduler's line
    came: int = 0  # what its messages cost
    light: int = 0  # of that, what is no frames, and does not wait any more
    told: int = 0  # what the event loop knows not to wait any more
    next_peek: float = 0.0
    next_snapshot: float = 0.0
    snapped: tuple[dict[str, int], int] | None = None  # frames and utterances in the last snapshot
    may_snap: bool = True  # the one before has arrived
    ending: bool = False  # an utterance, until which nothing more is taken


class Scheduler:
    """The thread. `post` is for everyone, the rest is its own."""

    def __init__(self, name: str, wait: float, deliver: Deliver, stretch: float = 0.0) -> None:
        """wait: seconds for company; stretch: as long at the most, when there is hardly time for all."""
        self.name, self.meter = name, Meter()
        self._wait, self._stretch, self._deliver = wait, max(stretch, wait), deliver
        self._load, self._rounded = 0.0, time.monotonic()  # the share of time in rounds, of late; the last one's end
        self._line: SimpleQueue[Live | None] = SimpleQueue()  # streams with something in their inboxes; None: stop
        self._stages: list[tuple[int, Stage]] = []
        self._lives: dict[Live, None] = {}
        self._news: dict[Live, list[News]] = {}
        self._peeking: dict[Live, None] = {}  # those that wait for an answer
        self._since: float | None = None  # when the oldest of what is ready came
        self._next_look = self._next_peek = self._began = 0.0
        kinds = ("open", "data", "end", "utterance", "peek", "acked", "snap", "close")
        self._on = {kind: getattr(self, f"_on_{kind}") for kind in kinds}
        self._thread = threading.Thread(target=self._run, name=f"pulsify-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After what is posted; returns when it has."""
        self._line.put(None)
        self._thread.join()

    def post(self, live: Live, kind: str, value: Any = None) -> None:
        """open (a state and what the client has, or None), data, utterance, end, peek, acked, snap, close. Never waits.

        With utterance (it ends here), peek and acked: what the client's message costs.
        """
        item = kind, value, time.monotonic()
        if kind == "close":  # whoever comes next may be let in for its place: what waits before it is nobody's any more
            live.inbox.appendleft(item)
        else:
            live.inbox.append(item)
        if not live.queued:
            live.queued = True
            self._line.put(live)

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
            live = self._line.get(timeout=timeout)
        except Empty:
            return True
        return self._take_from(live, A_TURN) and self._drain()

    def _drain(self) -> bool:
        """A few messages of everyone who has some."""
        going, streams = True, self._line.qsize()
        most = max(AT_ONCE // max(streams, 1), A_TURN)
        for _ in range(streams):
            going = self._take_from(self._line.get_nowait(), most) and going
        return going

    def _take_from(self, live: Live | None, most: int) -> bool:
        if live is None:
            if self._line.qsize():  # what was posted before comes first
                self._line.put(None)
            return bool(self._line.qsize())
        live.queued = False  # from here on whoever posts puts it back in line
        inbox = live.inbox
        for _ in range(most):
            if not inbox or (live.ending and inbox[0][0] != "close"):
                return True
            self._handle(live, *inbox.popleft())
        if inbox and not live.queued:
            live.queued = True
            self._line.put(live)
        return True

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

    def _handle(self, live: Live, kind: str, value: Any, when: float) -> None:
        if live.over or (live.flow is None and kind not in ("open", "close")):
            return
        try:
            self._on[kind](live, value, when)
            self._account(live)
        except Refused as refused:
            self._fail(live, refused)
        except PulsifyError as error:
            self._fail(live, refusal(error, 0))
        except Exception:
            log.exception("%s of a stream of %s", kind, self.name, extra=live.about)
            self._fail(live, Refused("failed", f"{kind} failed; the server's log has more"))

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
        live.snapped = dict(live.flow.received), live.flow.utterances
        live.next_snapshot = when + (live.keeps or 0)
        self._tell(live, Opened(*_counts(live.flow)))

    def _register(self, order: int, stage: Stage) -> None:
        if all(s is not stage for _, s in self._stages):
            self._stages = [each for each in self._stages if each[1].seats]  # a rate that nobody sends any more
            self._stages.append((order, stage))
            self._stages.sort(key=lambda each: each[0])

    def _on_data(self, live: Live, data: bytes, when: float) -> None:
        assert live.flow is not None
        live.when = when
        size, frames = cost(len(data)), len(data) - live.chain.source.head
        live.came += size
        live.light += size - frames
        live.flow.take(data)
        if self._since is None:
            self._since = when

    def _account(self, live: Live) -> None:
        """Tell the event loop what does not wait any more: if it is much, or if it may have stopped reading in vain."""
        waiting = live.came - live.told
        if live.over or waiting < min(TOLD_EVERY, live.room // 4):
            return
        assert live.flow is not None
        computed = live.flow.computed() + live.light
        hungry = waiting > live.room // 2 and not live.inbox and live.flow.starved()
        if computed - live.told >= min(TOLD_EVERY, live.room // 4) or hungry:
            live.told = computed
            self._tell(live, Taken(computed, hungry))
            if hungry and live.came - computed > live.room:
                self._fail(live, Refused("bad_frames", live.flow.uneven()))

    def _on_utterance(self, live: Live, value: Any, when: float) -> None:
        """The utterance ends here; what comes behind it waits until it has."""
        self._text_taken(live, value)
        self._on_end(live, value, when)
        live.ending = True

    def _on_end(self, live: Live, value: Any, when: float) -> None:
        assert live.flow is not None
        live.when = when
        if live in self._peeking:
            del self._peeking[live]
            self._tell(live, Peeked([], "flush came before it could be told"))
        live.flow.end()

    def _on_peek(self, live: Live, value: Any, when: float) -> None:
        """Answered once nearly all that has come is computed: a peek would hold everybody up with it."""
        self._text_taken(live, value)
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
        self._text_taken(live, value)
        live.may_snap = True

    def _text_taken(self, live: Live, size: int | None) -> None:
        """size: what the message cost; None: it is none of the client's."""
        live.came += size or 0
        live.light += size or 0

    def _on_snap(self, live: Live, value: Any, when: float) -> None:
        """The last snapshot: the stream goes on elsewhere, or nowhere."""
        assert live.flow is not None
        self._snap(live, final=True)

    def _on_close(self, live: Live, value: Any, when: float) -> None:
        self._end(live)

    # ---- what comes of it

    def _round(self) -> None:
        """A pulse or a few of everyone who has them, through all stages."""
        start, pulses, one, streams, took, expected = time.perf_counter(), 0, 0.0, 0, 0.0, 0.0
        self._began = self.meter.began = time.monotonic()
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
            if stage.cost.each:  # it was measured
                took += time.perf_counter() - began
                expected += stage.cost.of(len(doing)) * stage.taken
            for step in steps:
                self._stepped(step)
            streams, pulses = max(streams, len(doing)), max(pulses, len(doing) * stage.taken)
            one += (time.perf_counter() - began) / stage.taken
        left = any(stage.ready for _, stage in self._stages)
        self._since = self._since if left else None
        spent, now = time.perf_counter() - start, time.monotonic()
        self._load += RECENT * (min(spent / max(now - self._rounded, spent), 1.0) - self._load)
        self._rounded = now
        self.meter.round(pulses, spent, streams, one)
        self.meter.pace.add(took, expected)
        self.meter.compute.add(spent, len(self._news))

    def _stepped(self, step: Step) -> None:
        flow, at = step.seat.owner
        live: Live = flow.owner
        if live.over:
            return
        try:
            messages = flow.passed(at, step) if step.made or step.error is None else []
        except PulsifyError as error:
            self._ended_badly(live, error, at)
            return
        except Exception:
            log.exception("frames of a stream of %s", self.name, extra=live.about)
            self._fail(live, Refused("failed", "its frames could not be given out; the server's log has more"))
            return
        self._account(live)
        if live.over:
            return
        if messages:
            if live in self._news:
                self._news[live] += messages
            else:
                self._news[live] = messages
            self.meter.queue.add(self._began - live.when)
        if step.error is not None:
            self._ended_badly(live, step.error, at)
        elif flow.done and live.ending:
            self._next_utterance(live, None)
        elif flow.done:
            self._tell(live, Done(*_counts(flow), flow.sink.done()))
            self._end(live)

    def _ended_badly(self, live: Live, error: PulsifyError, at: int) -> None:
        """An utterance that may not be so short is over, and the stream is not."""
        if live.ending and isinstance(error, InvalidLength):
            self._next_utterance(live, refusal(error, at))
        else:
            self._fail(live, refusal(error, at))

    def _next_utterance(self, live: Live, error: Refused | None) -> None:
        flow = live.flow
        assert flow is not None
        done, live.ending = flow.sink.done(), False
        try:
            flow.again()
        except PulsifyError as failed:
            self._fail(live, Refused("failed", str(failed)))
            return
        self._tell(live, Uttered(*_counts(flow), done, error))
        if live.inbox and not live.queued:
            live.queued = True
            self._line.put(live)

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
        if flow.ended or ((flow.kept(), flow.utterances) == live.snapped and not final):
            return
        try:
            made = Snapped(flow.kept(), dict(flow.sink.facts()["made"]), flow.utterances, flow.state(), final)
        except PulsifyError as error:
            self._fail(live, refusal(error, 0))
            return
        live.snapped, live.may_snap = (made.received, made.utterances), False
        self._tell(live, made)
        if final:
            self._end(live)


def _counts(flow: Flow) -> tuple[dict[str, int], dict[str, int], int]:
    """Frames that have come, frames or characters that have gone, utterances that have ended."""
    return dict(flow.received), dict(flow.sink.sent), flow.utterances
