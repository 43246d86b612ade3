"""What a server counts while it runs. `exposition` shows it to Prometheus; nothing here costs more than an addition."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter

from pulsify.serve.pace import Pace

EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds
MEMORY = 5.0  # seconds over which the duty cycle is taken


class Times:
    """A histogram of seconds. One thread writes."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(EDGES) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.seconds += seconds * count
        self.counts[bisect_left(EDGES, seconds)] += count

    def buckets(self) -> list[tuple[str, float]]:
        """Upper edges, each with how many were no longer than that."""
        out, total = [], 0
        for edge, count in zip([*map(str, EDGES), "+Inf"], self.counts, strict=True):
            total += count
            out.append((edge, float(total)))
        return out


class Meter:
    """What the thread of a model has done. It alone writes; whoever reads may see a number one round old.

    queue: from when a message came to the round that computes it. compute: that round.
    """

    def __init__(self) -> None:
        self.rounds = self.pulses = 0
        self.busy = 0.0
        self.queue, self.compute = Times(), Times()
        self.pace = Pace()
        self.began: float | None = None  # the round that is being computed
        self._shared = (0, 0.0)  # streams of all rounds, and the seconds each of them had to wait for a pulse
        self._window = (time.monotonic(), 0.0)
        self._duty = 0.0

    def round(self, pulses: int, seconds: float, streams: int, one: float) -> None:
        """one: of those seconds, for a pulse of each stream."""
        self.began = None
        self.rounds += 1
        self.pulses += pulses
        self.busy += seconds
        count, total = self._shared
        self._shared = count + streams, total + streams * one

    def mean_round(self, since: tuple[int, float]) -> tuple[float, tuple[int, float]]:
        """Seconds that a stream's pulse took with its round, on average since then (0: no rounds); and now."""
        now = self._shared
        count = now[0] - since[0]
        return ((now[1] - since[1]) / count if count else 0.0), now

    @property
    def under_way(self) -> float:
        """Seconds that the round which is being computed has taken; 0: there is none."""
        began = self.began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def duty(self) -> float:
        """The share of the last seconds in which it was computing."""
        since, busy = self._window
        now = time.monotonic()
        if now - since >= MEMORY:
            self._duty = min((self.busy - busy) / (now - since), 1.0)
            self._window = now, self.busy
        elif now - since > 0.5:
            return max(self._duty, min((self.busy - busy) / (now - since), 1.0))
        return self._duty


class Traffic:
    """What the event loop has moved for one model.

    deliver: from the end of a round to when its results were handed to the socket. lag: all of the way, from the last
    message of a stream to the results, with what the event loop was late by before it read that message.
    """

    __slots__ = ("deliver", "lag", "received_bytes", "received_messages", "sent_bytes", "sent_messages")

    def __init__(self) -> None:
        self.received_messages = self.received_bytes = self.sent_messages = self.sent_bytes = 0
        self.deliver, self.lag = Times(), Times()

    def received(self, size: int) -> None:
        self.received_messages += 1
        self.received_bytes += size

    def sent(self, size: int) -> None:
        self.sent_messages += 1
        self.sent_bytes += size


class Figures:
    """What the event loop has counted for the whole server."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()  # streams by model and how they ended
        self.opened: Counter[str] = Counter()  # streams by the name of their token
        self.rejections: Counter[str] = Counter()  # requests by why they were not let in
        self.reloaded: bool | None = None  # did the last reload find everything in order?
        self.loop = Times()  # by how much the event loop was late
        self.loop_late = 0.0  # the same, when it was last looked at
        self.traffic: dict[str, Traffic] = {}  # by model

    def of(self, model: str) -> Traffic:
        return self.traffic.setdefault(model, Traffic())
