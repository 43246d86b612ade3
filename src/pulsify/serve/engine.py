"""What computes the streams of one model: a pool, or a session each where a model cannot be pooled.

Both are asked for the same two things: some whole pulses of each of some streams (`pulses`, the way nearly all frames
go), and frames of any number, perhaps the last (`pushes`). What a stream's failure leaves to the others is everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pulsify.api import Stream
from pulsify.backends.seam import Own, stream_axis
from pulsify.core.errors import InvalidArgument, PulsifyError
from pulsify.core.spec import Spec, concrete
from pulsify.runtime.lane import Lane
from pulsify.runtime.pool import Pool, check_pooled
from pulsify.runtime.session import Session

Array = np.ndarray[Any, Any]
Chunks = dict[str, Array]  # frames by port
Made = tuple[Chunks, PulsifyError | None]  # of one stream: frames, and what came after them
Push = tuple[Any, Chunks, bool]  # a stream's place, frames, and whether they are its last
TOGETHER = 8  # pulses of a stream between which nobody else has a turn


class Engine(Protocol):
    """A place is what `open` gives; it has `state`, `restore` and `alone`."""

    spec: Spec
    backend: str  # by name
    together: int  # pulses of each that one call takes at the most
    settles: int  # pulses of a new stream before its pulses are like all later ones

    def open(self) -> Any: ...
    def close(self, place: Any) -> None: ...
    def pulses(self, places: Sequence[Any], feeds: Sequence[Chunks], count: int = 1) -> list[Made]: ...
    def pushes(self, given: Sequence[Push]) -> list[Made]: ...


def open_engine(stream: Stream, most: int, backend: str, options: Mapping[str, Own]) -> Engine:
    """A pool if the model's streams can be computed together. What cannot be had is said here, not to clients."""
    try:
        check_pooled(stream.spec, most)
    except InvalidArgument:
        if stream.statics:
            raise
        return Alone(stream, most, backend, options)
    return Pooled(Pool(stream, most, backend=backend, options=options))


class Pooled:
    """Streams in the slots of a pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.spec, self.backend, self.settles = pool, pool.spec, pool.backend, pool.settles
        self._axes = {i.name: stream_axis(i.dims) or 0 for i in self.spec.inputs}
        apart = all(stream_axis(i.dims) not in (None, i.axis) for i in self.spec.inputs)
        self.together = TOGETHER if apart else 1  # time and streams in one axis are not cut

    def open(self) -> Lane:
        return self.pool.open()

    def close(self, place: Lane) -> None:
        if not place.closed:
            place.close()

    def pulses(self, places: Sequence[Lane], feeds: Sequence[Chunks], count: int = 1) -> list[Made]:
        """One call; whoever makes it fail is found by halves, and where in what it gave."""
        given = {name: np.concatenate([f[name] for f in feeds], axis) for name, axis in self._axes.items()}
        try:
            made = self.pool.exchange(np.array([lane.slot for lane in places]), given)
        except PulsifyError as error:
            half = len(places) // 2
            if half:
                return self.pulses(places[:half], feeds[:half], count) + self.pulses(places[half:], feeds[half:], count)
            return [self._until(places[0], feeds[0], count) if count > 1 else ({}, error)]
        if made.whole and not made.failures:
            rows = made.rows()
            return [({name: each[i] for name, each in rows.items()}, None) for i in range(len(places))]
        return [(named(self.spec, made.of(i)), made.failures.get(i)) for i in range(len(places))]

    def _until(self, place: Lane, chunks: Chunks, count: int) -> Made:
        """Pulse by pulse, up to the one that fails."""
        out: Chunks = {}
        for at in range(count):
            ((made, error),) = self.pulses([place], [self._pulse(chunks, at)])
            out = joined(self.spec, out, made)
            if error is not None:
                return out, error
        return out, None

    def _pulse(self, chunks: Chunks, at: int) -> Chunks:
        cuts = {i.name: (*(slice(None),) * i.axis, slice(at * i.frames, (at + 1) * i.frames)) for i in self.spec.inputs}
        return {name: chunks[name][cut] for name, cut in cuts.items()}

    def pushes(self, given: Sequence[Push]) -> list[Made]:
        refused: dict[Lane, PulsifyError] = {}
        for lane, chunks, last in given:
            try:
                lane.push(chunks)
                if last:
                    lane.flush()
            except PulsifyError as error:
                refused[lane] = error
        outcome = self.pool.step(None)
        failed = {**outcome.failures, **refused}
        return [
            ({}, failed[lane]) if lane in failed else (named(self.spec, outcome.results.get(lane)), None)
            for lane, _, _ in given
        ]


class Place:
    """A session of its own."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def state(self) -> bytes:
        return self.session.state()

    def restore(self, blob: bytes) -> None:
        self.session.restore(blob)

    def alone(self) -> Session:
        return self.session.fork()


class Alone:
    """One session per stream."""

    together = 1  # a push is taken whole or not at all
    settles = 0

    def __init__(self, stream: Stream, most: int, backend: str, options: Mapping[str, Own]) -> None:
        self.spec, self._stream, self._most, self._open = stream.spec, stream, most, 0
        self.backend, self._options = backend, dict(options)
        self._session()

    def _session(self) -> Session:
        return self._stream.session(backend=self.backend, options=self._options)

    def open(self) -> Place:
        if self._open >= self._most:
            raise InvalidArgument(f"all {self._most} streams of this model are open")
        made = Place(self._session())
        self._open += 1
        return made

    def close(self, place: Place) -> None:
        self._open -= 1

    def pulses(self, places: Sequence[Place], feeds: Sequence[Chunks], count: int = 1) -> list[Made]:
        return [self._one(place, chunks, False) for place, chunks in zip(places, feeds, strict=True)]

    def pushes(self, given: Sequence[Push]) -> list[Made]:
        return [self._one(*push) for push in given]

    def _one(self, place: Place, chunks: Chunks, last: bool) -> Made:
        made: Chunks = {}
        try:
            made = named(self.spec, place.session.push(chunks))
            return (joined(self.spec, made, named(self.spec, place.session.flush())) if last else made), None
        except PulsifyError as error:
            return made, error


def named(spec: Spec, result: Any) -> Chunks:
    """What a session or a pool gives, by output."""
    if result is None:
        return {}
    return result if isinstance(result, dict) else {spec.outputs[0].name: result}


def joined(spec: Spec, first: Chunks, then: Chunks) -> Chunks:
    """Frames, and those after them; what has none is as it was last."""
    out = {**first, **then}
    for o in spec.outputs:
        if o.axis is not None and o.name in first and o.name in then:
            out[o.name] = np.concatenate([first[o.name], then[o.name]], o.axis)
    return out


def shape_of(port: Any, frames: int) -> tuple[int, ...]:
    """The shape of a chunk of one stream."""
    dims = list(concrete(port.dims, 1))
    if port.axis is not None:
        dims[port.axis] = frames
    return tuple(dims)
