"""Streams on their way through one model: chunks of any size in, cut to pulses, computed together.

seat    one stream's place in a stage: frames that wait for a whole pulse, and a place in the engine
ready   seats with something to compute; `step` takes as many pulses of each as the one with the fewest has, and few at
        the most, so nobody holds the others back
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pulsify.core.errors import InvalidState, PulsifyError
from pulsify.core.framing import Backlog, ready, whole_pulses
from pulsify.serve.engine import Array, Chunks, Engine, Made, Push, shape_of

SMALL, MANY = 256, 64  # bytes of a small piece; so many are merged


@dataclass(frozen=True)
class Cost:
    """Seconds of a call: `base`, and `each` for a stream."""

    base: float
    each: float

    def of(self, streams: int) -> float:
        return self.base + self.each * streams


class Step(NamedTuple):
    """What came of one stream: frames, perhaps an error behind them. last: the stage has nothing more of it."""

    seat: Seat
    made: Chunks
    error: PulsifyError | None
    last: bool


class Seat:
    """One stream in one stage."""

    __slots__ = ("backlog", "closed", "ended", "opening", "owner", "place", "small", "stage")

    def __init__(self, stage: Stage, owner: Any) -> None:
        self.stage, self.owner, self.closed, self.ended = stage, owner, False, False
        self.opening = stage.opening  # pulses that a first call of its own takes, until it was made
        self.backlog = {n: Backlog(stage.nothing[n], p.axis, p.frames) for n, p in stage.ports.items()}
        self.small = dict.fromkeys(stage.ports, 0)  # messages since small ones were merged
        self.place = stage.engine.open()
        stage.seats += 1

    def feed(self, name: str, array: Array, frames: int, shared: bool = False) -> None:
        """Frames that come next, of one input, not written to from here on. shared: they are part of a whole batch."""
        if frames:
            backlog = self.backlog[name]
            backlog.put(array, frames)
            if self.has_call():
                self.stage.ready[self] = None
            elif shared:  # the frames of all others would wait with them
                backlog.pieces[-1] = array.copy()
            if array.nbytes < SMALL:
                self._merge_small(name, backlog)

    def _merge_small(self, name: str, backlog: Backlog) -> None:
        """Many small ones that wait become one, or each would take many times the memory of its frames."""
        self.small[name] += 1
        if self.small[name] >= MANY:
            self.small[name] = 0
            pieces = backlog.pieces
            if len(pieces) > 1:
                last = [pieces.pop() for _ in range(min(MANY, len(pieces)))]
                pieces.append(np.concatenate(last[::-1], backlog.axis))

    def end(self) -> None:
        """No more will come."""
        self.ended = True
        self.stage.ready[self] = None

    def has_call(self) -> bool:
        """Are all frames of the next call there?"""
        if not self.opening:
            return ready(self.backlog.values(), 1)
        return all(self.backlog[name].frames >= frames for name, frames in self.stage.first)

    def cut_first(self) -> Chunks:
        """The frames of the first call."""
        return {name: self.backlog[name].take(frames) for name, frames in self.stage.first}

    def pulses(self) -> int:
        """How many whole ones wait."""
        return whole_pulses(self.backlog.values())

    def cut(self, pulses: int | None) -> Chunks:
        """The next so many pulses, or everything."""
        if pulses is None:
            return {name: b.take(b.frames) for name, b in self.backlog.items()}
        return {name: b.take(b.pulse * pulses) for name, b in self.backlog.items()}

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.stage.seats -= 1
            self.stage.ready.pop(self, None)
            self.stage.engine.close(self.place)

    def rest(self) -> Chunks:
        """What waits for a whole pulse, left where it is."""
        return {name: backlog.all() for name, backlog in self.backlog.items()}

    def restore(self, blob: bytes, opening: int, rest: Chunks) -> None:
        """Go on from `place.state()`, with what waited then."""
        for name, array in rest.items():
            port = self.stage.ports.get(name)
            if port is None or array.shape != shape_of(port, array.shape[port.axis]):
                raise InvalidState("frames that waited do not fit this model")
        self.place.restore(blob)
        self.opening = opening
        for name, array in rest.items():
            self.feed(name, array, array.shape[self.stage.ports[name].axis])


class Stage:
    """One model for many streams. The thread that steps it is the only one that touches it."""

    def __init__(self, engine: Engine) -> None:
        spec = engine.spec
        self.engine, self.spec = engine, spec
        self.opening = spec.opening or int(spec.phase > 0)
        ahead = zip(spec.inputs, spec.ahead, strict=True)
        self.first = tuple((i.name, i.frames * self.opening - more) for i, more in ahead)  # frames of the first call
        self.ports = {i.name: i for i in spec.inputs}
        self.frames = tuple((i.name, i.frames) for i in spec.inputs)
        self.nothing = {i.name: np.empty(shape_of(i, 0), i.dtype) for i in spec.inputs}
        self.ready: dict[Seat, None] = {}
        self.seats = 0  # that are taken
        self.taken = 1  # pulses of each stream, in the last step
        self.cost = Cost(0.0, 0.0)  # of a pulse, as measured at the start; zero: unknown

    def open(self, owner: Any) -> Seat:
        return Seat(self, owner)

    def step(self) -> list[Step]:
        """A pulse or a few of every stream that has them, or its end."""
        seats, self.ready = self.ready, {}
        self.taken = 1
        whole, pushes, pushed = [], [], []
        for seat in seats:
            if not seat.has_call():
                if seat.ended:
                    pushes.append((seat.place, seat.cut(None), True))
                    pushed.append(seat)
            elif seat.opening:
                pushes.append((seat.place, seat.cut_first(), False))
                pushed.append(seat)
                seat.opening = 0
            else:
                whole.append(seat)
        out = self._pulses(whole) if whole else []
        return out + self._pushes(pushed, pushes) if pushes else out

    def _pulses(self, seats: list[Seat]) -> list[Step]:
        count = min(self.engine.together, min(s.pulses() for s in seats)) if self.engine.together > 1 else 1
        self.taken = count
        made = self.engine.pulses([s.place for s in seats], [s.cut(count) for s in seats], count)
        return [self._stepped(seat, each, False) for seat, each in zip(seats, made, strict=True)]

    def _pushes(self, seats: list[Seat], pushes: list[Push]) -> list[Step]:
        made = self.engine.pushes(pushes)
        return [self._stepped(s, each, last) for s, each, (_, _, last) in zip(seats, made, pushes, strict=True)]

    def _stepped(self, seat: Seat, made: Made, last: bool) -> Step:
        frames, error = made
        if last or error is not None:
            seat.close()
        elif seat.ended or seat.has_call():
            self.ready[seat] = None
        return Step(seat, frames, error, last and error is None)
