"""One stream's way through a chain of stages, from what a client sends to what it gets.

    bytes ─ source ─> [resampled] ─> the model, one stage or several ─> [resampled] ─ sink ─> messages

All of it is deterministic, so a stream is what it received: `state` says all there is to know, and a flow that is made
from it goes on exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulsify.core.errors import Advised, InvalidChunk, InvalidLength, PulsifyError
from pulsify.serve import boxes
from pulsify.serve.engine import TOGETHER, Array, Chunks, joined, named
from pulsify.serve.protocol import Refused
from pulsify.serve.sinks import Sink, Source
from pulsify.serve.stage import Seat, Stage, Step

Adapt = Callable[[Array], Array]


@dataclass(frozen=True)
class Link:
    """A stage of a chain. passes: its output that goes on, and how the next stage takes it (None: the last one).

    length: an output that says at the end how many frames are real.
    """

    stage: Stage
    passes: str | None = None
    adapt: Adapt | None = None
    length: str | None = None


@dataclass(frozen=True)
class Chain:
    """How streams of one kind go; what it is made of is shared by all of them."""

    links: tuple[Link, ...]
    order: tuple[int, ...]  # of the stages, among those of all chains of the model
    source: Source
    sink: Callable[[], Sink]

    def room(self, least: int) -> int:
        """Bytes of a client that may wait: two first calls at least, or none would ever be whole."""
        pulses = max(self.links[0].stage.opening, 1)
        sizes = self.source.sizes
        return max(least, 2 * pulses * sum(sizes[n] * p.frames for n, p in zip(self.source.names, self.source.ports)))


class Flow:
    """One stream."""

    def __init__(self, chain: Chain, owner: Any) -> None:
        self.chain, self.owner = chain, owner
        self.sink = chain.sink()
        self.received = dict.fromkeys(chain.source.names, 0)
        self._before = dict(self.received)  # frames that came before this flow did
        self.given = [0] * len(chain.links)  # frames that came out of each stage, where lengths are told
        self.ended, self.done = False, False
        self.utterances = 0  # that have ended
        self.seats: list[Seat] = []
        self._open()

    def _open(self) -> None:
        try:
            for at, link in enumerate(self.chain.links):
                self.seats.append(link.stage.open((self, at)))
        except BaseException:
            self.close()
            raise

    def again(self) -> None:
        """The next utterance of the stream: everything is new but what is counted."""
        self.close()
        self.given = [0] * len(self.chain.links)
        self.ended, self.done = False, False
        self.utterances += 1
        self.seats = []
        self._open()
        self.sink.again(self.received)

    # ---- in

    def take(self, data: bytes | memoryview) -> None:
        """A binary message of the client."""
        name, feeds, array, frames = self.chain.source.read(data)
        self.received[name] += frames
        self.seats[0].feed(feeds, array, frames)

    def end(self) -> None:
        self.ended = True
        self.seats[0].end()

    def computed(self) -> int:
        """Bytes of the client's that have left the first line."""
        source, waiting = self.chain.source, self.seats[0].backlog
        return sum(
            (self.received[name] - self._before[name] - waiting[source.feeds[name]].frames) * source.sizes[name]
            for name in source.names
        )

    def starved(self) -> bool:
        """It has no whole pulse: more must come."""
        seat = self.seats[0]
        return seat not in seat.stage.ready and not seat.ended

    def behind(self) -> bool:
        """Does more wait to be computed than one turn takes?"""
        return any(seat in seat.stage.ready and seat.pulses() > TOGETHER for seat in self.seats)

    def uneven(self) -> str:
        """Which input is ahead of which, in words."""
        feeds, waiting = self.chain.source.feeds, self.seats[0].backlog
        most, least = (pick(feeds, key=lambda n: waiting[feeds[n]].frames) for pick in (max, min))
        ahead = waiting[feeds[most]].frames
        return f"input '{most}' is too far ahead of '{least}': {ahead} frames wait; send them side by side"

    def close(self) -> None:
        for seat in self.seats:
            seat.close()

    # ---- through

    def passed(self, at: int, step: Step) -> list[bytes | str]:
        """What came out of a stage goes to the next; out of the last, messages for the client."""
        link, made = self.chain.links[at], step.made
        if link.length is not None:
            made = self._told(at, link, made)
        if link.passes is None:
            out = self.sink.messages(made, step.last)
            if step.last:
                self.done = True
            return out
        after = self.seats[at + 1]
        if link.passes in made and made[link.passes].size:
            array = made[link.passes] if link.adapt is None else link.adapt(made[link.passes])
            name = after.stage.frames[0][0]
            after.feed(name, array, array.shape[after.stage.ports[name].axis], shared=True)
        if step.last:
            after.end()
        return []

    def _told(self, at: int, link: Link, made: Chunks) -> Chunks:
        """Without frames beyond the length that a model says it has, at its end."""
        name, axis = next((o.name, o.axis) for o in link.stage.spec.outputs if o.axis is not None)
        before = self.given[at]
        if name in made:
            self.given[at] += made[name].shape[axis or 0]
        if link.length not in made:
            return made
        keep = int(np.ravel(made[link.length])[0]) - before
        if keep < 0:
            raise InvalidLength(f"the model says it has {before + keep} frames but gave {before} before the end")
        return {**made, name: made[name][(slice(None),) * (axis or 0) + (slice(0, keep),)]}

    def peek(self) -> list[bytes | str]:
        """What ending now would give, with nothing changed."""
        sink, given = self.sink.fork(), list(self.given)
        fed: Chunks = {}
        try:
            for at, (link, seat) in enumerate(zip(self.chain.links, self.seats, strict=True)):
                spec = link.stage.spec
                rest = seat.rest()
                for name, array in fed.items():
                    rest[name] = np.concatenate([rest[name], array], link.stage.ports[name].axis)
                session = seat.place.alone()
                made = named(spec, session.push(rest))
                made = joined(spec, made, named(spec, session.flush()))
                made = made if link.length is None else self._told(at, link, made)
                if link.passes is None:
                    return sink.messages(made, True)
                array = made[link.passes]
                following = self.chain.links[at + 1].stage.frames[0][0]
                fed = {following: array if link.adapt is None else link.adapt(array)}
        finally:
            self.given = given
        raise AssertionError("the last stage passes nothing on")

    # ---- kept

    def kept(self) -> dict[str, int]:
        """Frames in a snapshot: without those that wait to be computed, which may be megabytes. They are sent again."""
        feeds, backlog = self.chain.source.feeds, self.seats[0].backlog
        return {name: count - backlog[feeds[name]].frames for name, count in self.received.items()}

    def state(self) -> bytes:
        """Everything up to `kept`, between two steps; frames that are computed are in `sink`."""
        facts = {
            "received": self.kept(),
            "utterances": self.utterances,
            "given": self.given,
            "openings": [s.opening for s in self.seats],
            "sink": self.sink.facts(),
        }
        arrays: dict[str, Array] = {}
        for at, seat in enumerate(self.seats):
            arrays[f"place{at}"] = np.frombuffer(seat.place.state(), np.uint8)
            if at:
                arrays |= {f"rest{at}.{name}": array for name, array in seat.rest().items()}
        arrays |= {f"sink.{name}": array for name, array in self.sink.arrays().items()}
        return boxes.pack(facts, arrays)

    def restore(self, blob: bytes, have: Mapping[str, int]) -> None:
        """Go on from there. have: what the client has of each output, at least what was sent then."""
        facts, arrays = boxes.unpack(blob)
        self.received = {name: int(facts["received"][name]) for name in self.received}
        self._before = dict(self.received)
        self.utterances = int(facts["utterances"])
        self.given = [int(n) for n in facts["given"]]
        kept = {k.removeprefix("sink."): a for k, a in arrays.items() if k.startswith("sink.")}
        self.sink.restore(facts["sink"], kept, have)
        for at, seat in enumerate(self.seats):
            start = f"rest{at}."
            rest = {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}
            seat.restore(arrays[f"place{at}"].tobytes(), int(facts["openings"][at]), rest)


def refusal(error: PulsifyError, at: int) -> Refused:
    """Why a stream ended. Only what the client sent is the client's fault."""
    chunk = error if isinstance(error, InvalidChunk) else None
    fault = at == 0 and chunk is not None and not chunk.model_failed
    code = "bad_frames" if fault or isinstance(error, InvalidLength) else "failed"
    text = error.summary if isinstance(error, Advised) else str(error)  # advice is for the owner of the session
    if chunk is not None and chunk.not_finite:
        text = "numbers that are not finite"
    return Refused(code, text.split("\n")[0][:300])
