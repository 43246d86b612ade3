"""What computes the streams of one model: a pool, or a session each where a model cannot be pooled.

Both are asked for the same two things: one whole pulse of each of some streams (`pulses`, the way nearly all frames
go), and frames of any number, perhaps the last (`pushes`). What a stream's failure leaves to the others is everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pulsify.api import Stream
from pulsify.backends.seam import Own, parted, stream_axis
from pulsify.core.errors import InvalidArgument, PulsifyError
from pulsify.core.spec import Spec, concrete
from pulsify.runtime.lane import Lane
from pulsify.runtime.pool import Pool
from pulsify.runtime.session import Session

Array = np.ndarray[Any, Any]
Chunks = dict[str, Array]  # frames by port
Made = Chunks | PulsifyError  # of one stream
Push = tuple[Any, Chunks, bool]  # a stream's place, frames, and whether they are its last


class Engine(Protocol):
    """A place is what `open` gives; it has `state`, `restore` and `alone`."""

    spec: Spec

    def open(self) -> Any: ...
    def close(self, place: Any) -> None: ...
    def pulses(self, places: Sequence[Any], feeds: Sequence[Chunks]) -> list[Made]: ...
    def pushes(self, given: Sequence[Push]) -> list[Made]: ...


def open_engine(stream: Stream, most: int, backend: str, options: Mapping[str, Own]) -> Engine:
    """A pool if the model's streams can be computed together."""
    try:
        return Pooled(Pool(stream, most, backend=backend, options=options))
    except InvalidArgument:
        if stream.statics:
            raise
        return Alone(stream, most, backend, options)


class Pooled:
    """Streams in the slots of a pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.spec = pool, pool.spec
        self._axes = {i.name: stream_axis(i.dims) or 0 for i in self.spec.inputs}
        self._timed = [o for o in self.spec.outputs if o.axis is not None]

    def open(self) -> Lane:
        return self.pool.open()

    def close(self, place: Lane) -> None:
        if not place.closed:
            place.close()

    def pulses(self, places: Sequence[Lane], feeds: Sequence[Chunks]) -> list[Made]:
        """In one call; whoever makes it fail is found by halves."""
        given = {name: np.concatenate([f[name] for f in feeds], axis) for name, axis in self._axes.items()}
        try:
            made = self.pool.exchange(np.array([lane.slot for lane in places]), given)
        except PulsifyError as error:
            half = len(places) // 2
            if not half:
                return [error]
            return [*self.pulses(places[:half], feeds[:half]), *self.pulses(places[half:], feeds[half:])]
        frames = made.frames if isinstance(made.frames, Mapping) else {o.name: made.frames for o in self._timed}
        rows = {o.name: parted(frames[o.name], o.dims, len(places)) for o in self._timed}
        if made.whole:
            return [{name: each[i] for name, each in rows.items()} for i in range(len(places))]
        real: Any = made.real if isinstance(made.real, Mapping) else {o.name: made.real for o in self._timed}
        return [made.failures.get(i) or self._cut(rows, real, i) for i in range(len(places))]

    def _cut(self, rows: Chunks, real: Chunks, i: int) -> Chunks:
        return {
            o.name: rows[o.name][i][(*(slice(None),) * (o.axis or 0), slice(*real[o.name][i].tolist()))]
            for o in self._timed
        }

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
        return [failed.get(lane) or named(self.spec, outcome.results.get(lane)) for lane, _, _ in given]


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

    def __init__(self, stream: Stream, most: int, backend: str, options: Mapping[str, Own]) -> None:
        self.spec, self._stream, self._most, self._open = stream.spec, stream, most, 0
        self._backend, self._options = backend, dict(options)

    def open(self) -> Place:
        if self._open >= self._most:
            raise InvalidArgument(f"all {self._most} streams of this model are open")
        made = Place(self._stream.session(backend=self._backend, options=self._options))
        self._open += 1
        return made

    def close(self, place: Place) -> None:
        self._open -= 1

    def pulses(self, places: Sequence[Place], feeds: Sequence[Chunks]) -> list[Made]:
        return [self._one(place, chunks, False) for place, chunks in zip(places, feeds, strict=True)]

    def pushes(self, given: Sequence[Push]) -> list[Made]:
        return [self._one(*push) for push in given]

    def _one(self, place: Place, chunks: Chunks, last: bool) -> Made:
        try:
            made = named(self.spec, place.session.push(chunks))
            return joined(self.spec, made, named(self.spec, place.session.flush())) if last else made
        except PulsifyError as error:
            return error


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
